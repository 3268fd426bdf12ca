"""Which layers of a network are captured, and the taps that read their factors."""
