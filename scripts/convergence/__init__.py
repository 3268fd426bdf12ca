"""Which optimizer gets where how fast: tasks, search, runs, results of bench_convergence.py."""
