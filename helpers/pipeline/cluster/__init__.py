"""Run stages on the machines of a Dask cluster that offer their targets."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
