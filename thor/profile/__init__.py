"""The block-size profiler: the split chosen by spectral loss and measured time."""
