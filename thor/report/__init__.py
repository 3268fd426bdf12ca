"""A run's refreshes as lines, figures and one HTML page."""
