"""Clicks that stand for Criteo's, and networks that are fitted to them."""
