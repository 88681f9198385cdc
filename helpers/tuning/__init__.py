"""Searching the fastest configuration of a model that keeps its accuracy and its latency budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
