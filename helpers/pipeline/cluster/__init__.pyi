from .access import Access as Access
from .preparation import prepare as prepare
from .scheduler import serve_scheduler as serve_scheduler
from .submission import run as run
from .transfer import fetch_repository as fetch_repository
from .worker import work as work
