"""Small programs, each of which shows one way to train."""
