"""Many machines: a run whose stages go to the workers that have their targets, on Dask."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
