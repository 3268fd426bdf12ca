"""Adafactor, number for number as PyTorch's."""
