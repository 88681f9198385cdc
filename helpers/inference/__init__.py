"""Data sets, checkpoints, exports and conversions, and running them in this process."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
