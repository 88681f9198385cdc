from .access import Access
from .joining import work
from .moving import bring
from .preparation import prepare
from .rendezvous import serve_scheduler
from .submission import run
from .view import lines_or_live

__all__ = [
    "Access",
    "bring",
    "lines_or_live",
    "prepare",
    "run",
    "serve_scheduler",
    "work",
]
