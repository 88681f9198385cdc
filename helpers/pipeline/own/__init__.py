"""Your own model: inspect a source, and write the package, notebooks and parameter file
that are written of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
