"""How figures, tables and progress look, the same in every notebook and report."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
