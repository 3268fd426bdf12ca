"""Names of algorithms that need no MindSpore to be known."""

#: The algorithm of eigenbases, in the place of an inverse's name.
EIGH = "eigh"
