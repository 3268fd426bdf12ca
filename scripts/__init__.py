"""Command-line programs: train, quickstart, plot; importable, and runnable as files from the checkout."""
