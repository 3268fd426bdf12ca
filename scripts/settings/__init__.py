"""What a configuration may hold, and how it is read."""
