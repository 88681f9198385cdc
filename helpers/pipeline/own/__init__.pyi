from .creation import NewOptions, create

__all__ = [
    "NewOptions",
    "create",
]
