"""Kronecker factors: their cut into blocks, the formulas of A and G, and the Cells that compute their statistics."""
