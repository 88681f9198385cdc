"""Displays that stand for outbrain's, and a network that is fitted to them."""
