from .binaries import libraries, perf_analyzer
from .client import show_client
from .conversion import conversion_plan, convert
from .explained import show_configuration
from .guard import before_exec, sweep
from .native import backend_of
from .process import SETTINGS, apply_settings, exit_reason, guarded, last_lines
from .repository import deploy, read_configuration, write_repository
from .server import Server
from .serving import counting, predictor, serve, serve_elsewhere

__all__ = [
    "SETTINGS",
    "Server",
    "apply_settings",
    "backend_of",
    "before_exec",
    "conversion_plan",
    "convert",
    "counting",
    "deploy",
    "exit_reason",
    "guarded",
    "last_lines",
    "libraries",
    "perf_analyzer",
    "predictor",
    "read_configuration",
    "serve",
    "serve_elsewhere",
    "show_client",
    "show_configuration",
    "sweep",
    "write_repository",
]
