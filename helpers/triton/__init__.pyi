from .conversion import conversion_plan, convert
from .embedded import libraries
from .explained import show_configuration
from .guard import sweep
from .process import SETTINGS, apply_settings, exit_reason, guarded, last_lines
from .repository import deploy, write_repository
from .server import Server
from .serving import asking, client_example, serve, serve_elsewhere

__all__ = [
    "SETTINGS",
    "Server",
    "apply_settings",
    "asking",
    "client_example",
    "conversion_plan",
    "convert",
    "deploy",
    "exit_reason",
    "guarded",
    "last_lines",
    "libraries",
    "serve",
    "serve_elsewhere",
    "show_configuration",
    "sweep",
    "write_repository",
]
