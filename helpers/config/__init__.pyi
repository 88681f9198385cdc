from .comparison import differences
from .loading import TARGET_VARIABLE, configure, read_file, resolve, select
from .places import command, folder, folder_of, notebook_file
from .schema import STAGES, Config, Instances, Server
from .targets import write_new

__all__ = [
    "STAGES",
    "TARGET_VARIABLE",
    "Config",
    "Instances",
    "Server",
    "command",
    "configure",
    "differences",
    "folder",
    "folder_of",
    "notebook_file",
    "read_file",
    "resolve",
    "select",
    "write_new",
]
