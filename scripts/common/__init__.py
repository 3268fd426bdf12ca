"""Helpers shared by all programs: argument types, errors, atomic file writes, CPU cores and memory."""
