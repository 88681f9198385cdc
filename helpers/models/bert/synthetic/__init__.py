"""Questions that stand for SQuAD's, and a network that is fitted to them."""
