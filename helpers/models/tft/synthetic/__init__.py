"""Series that stand for the public ones, and a network that is fitted to them."""
