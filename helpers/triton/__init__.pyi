from .binaries import libraries, perf_analyzer
from .client import show_client
from .config_reference import show_configuration
from .conversion import conversion_plan, convert
from .native import backend_of
from .process import SETTINGS, apply_settings, exit_reason, last_lines, supervised
from .repository import deploy, read_configuration, write_repository
from .server import Server
from .serving import count_requests, docker_command, predictor, serve
from .supervisor import before_exec, remove_shared_memory

__all__ = [
    "SETTINGS",
    "Server",
    "apply_settings",
    "backend_of",
    "before_exec",
    "conversion_plan",
    "convert",
    "count_requests",
    "deploy",
    "docker_command",
    "exit_reason",
    "last_lines",
    "libraries",
    "perf_analyzer",
    "predictor",
    "read_configuration",
    "remove_shared_memory",
    "serve",
    "show_client",
    "show_configuration",
    "supervised",
    "write_repository",
]
