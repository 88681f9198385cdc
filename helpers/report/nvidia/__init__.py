"""NVIDIA's published rows: as data, compared with ours, and as a page of their own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
