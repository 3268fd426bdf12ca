"""Command-line programs such as train, eval and plot; they can be imported, or run as files from a checkout."""
