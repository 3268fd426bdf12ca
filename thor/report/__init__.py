"""The report of a training run: its metrics file, figures and one HTML page."""
