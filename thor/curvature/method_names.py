"""Names of ways to precondition, and of an algorithm; none needs MindSpore to be known."""

INVERSE, EIGENBASIS = "inverse", "eigenbasis"
#: The algorithm of eigenbases, in the place of an inverse's name.
EIGH = "eigh"
