"""Adafactor with the numerics and the interface of PyTorch's."""
