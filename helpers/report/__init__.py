"""What results say: figures, tables, text and pages, compared with NVIDIA's rows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
