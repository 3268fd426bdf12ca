"""The compiled parts of a training step."""
