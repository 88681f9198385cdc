"""Textures that stand for photographs, and a network that is fitted to them."""
