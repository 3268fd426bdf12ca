"""What lies in a run's folder."""
