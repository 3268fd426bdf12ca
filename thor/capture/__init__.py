"""Capturing layers: the choice of layers, and the taps that read their factors in the backward pass."""
