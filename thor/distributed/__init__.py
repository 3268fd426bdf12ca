"""Data-parallel training: which rank inverts which blocks, and how ranks exchange gradients, factors and inverses."""
