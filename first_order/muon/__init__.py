"""Muon with the numerics of PyTorch's, and AdamW for the weights that are no hidden matrices."""
