"""Programs that measure: step times, block sizes, kernels, start-up, ranks, collectives."""
