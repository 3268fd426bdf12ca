"""What all programs share: arguments, errors, files that are written whole, cores and memory."""
