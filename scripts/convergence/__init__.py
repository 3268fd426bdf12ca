"""Which optimizer gets where how fast: tasks, search, runs, results of convergence/run.py."""
