"""The convergence benchmark (run.py): optimizers compared by the epochs and seconds that they need to a target."""
