"""`tune` and the lessons: configurations compared, the search, and what was found."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
