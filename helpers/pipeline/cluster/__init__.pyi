from .access import Access
from .preparation import prepare
from .scheduler import serve_scheduler
from .submission import run
from .transfer import fetch_repository
from .worker import work

__all__ = [
    "Access",
    "fetch_repository",
    "prepare",
    "run",
    "serve_scheduler",
    "work",
]
