"""Thin library under the notebooks: from a training checkpoint to a measured deployment on
Triton.
"""

__version__ = "0.1.0"
