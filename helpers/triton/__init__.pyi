from .client import Server
from .conversion import convert
from .deployment import deploy
from .embedded import libraries
from .guard import sweep
from .log import exit_reason, last_lines
from .process import SETTINGS, guarded
from .repository import SCENARIOS, write_repository
from .serving import asking, client_example, serve, serve_elsewhere

__all__ = [
    "SCENARIOS",
    "SETTINGS",
    "Server",
    "asking",
    "client_example",
    "convert",
    "deploy",
    "exit_reason",
    "guarded",
    "last_lines",
    "libraries",
    "serve",
    "serve_elsewhere",
    "sweep",
    "write_repository",
]
