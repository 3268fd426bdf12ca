"""Simulates step times on many devices from costs of collectives, of a profiled network and a placement."""
