"""The block-size profiler: chooses block sizes from spectral losses and measured times."""
