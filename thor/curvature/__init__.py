"""From a layer's factors to its inverses and its preconditioned direction; which layers refresh."""
