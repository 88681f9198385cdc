"""This machine: its GPU, what a target needs of it, and where a result comes from."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
