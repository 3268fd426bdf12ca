"""The compiled functions of a training step, and their parts."""
