"""What a parameter file may say, choosing one experiment from it, and what each stage reads."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
