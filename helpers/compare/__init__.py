"""What the lessons compare, its charts, and what a reader should notice in it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
