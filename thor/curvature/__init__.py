"""Kronecker factors, their damped inverses, preconditioned directions, and the trace rule."""
