from .client import Server
from .conversion import convert
from .deployment import deploy
from .embedded import last_lines, libraries
from .guard import sweep
from .process import SETTINGS
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
    "last_lines",
    "libraries",
    "serve",
    "serve_elsewhere",
    "sweep",
    "write_repository",
]
