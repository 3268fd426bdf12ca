"""How a factor is cut into blocks, what A and G are, and what is gathered of them."""
