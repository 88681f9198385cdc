from .creation import Wishes, create

__all__ = ["Wishes", "create"]
