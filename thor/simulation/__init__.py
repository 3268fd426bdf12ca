"""Step times on many devices, by simulation: costs of collectives, placement, report."""
