"""The files in a run's folder: metrics, checkpoints, vocabulary, class names, block plan, lock and stop request."""
