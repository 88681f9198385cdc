"""A model of the user's: what a file says of itself, and the package, notebooks and parameter file
that are written of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
