"""The parity checks: each step computes what the reference (PyTorch or Keras) computes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
