from .access import Access
from .preparation import prepare
from .rendezvous import serve_scheduler
from .submission import run
from .transfer import bring
from .worker import work

__all__ = [
    "Access",
    "bring",
    "prepare",
    "run",
    "serve_scheduler",
    "work",
]
