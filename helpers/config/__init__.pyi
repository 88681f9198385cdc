from .comparison import differences
from .loading import TARGET_VARIABLE, Parameters, configure, parse, read_file, resolve, select
from .parameter_file import Experiment, Instances, ParameterFile, Server, Value
from .places import command, folder, folder_of, notebook_file
from .schema import (
    STAGE,
    STAGES,
    ConvertConfig,
    DeployConfig,
    EngineConfig,
    ExportConfig,
    LoadConfig,
    OfflineConfig,
    OnlineConfig,
    ReportConfig,
    StageConfig,
)
from .targets import Gpu, write_new

__all__ = [
    "STAGE",
    "STAGES",
    "TARGET_VARIABLE",
    "ConvertConfig",
    "DeployConfig",
    "EngineConfig",
    "Experiment",
    "ExportConfig",
    "Gpu",
    "Instances",
    "LoadConfig",
    "OfflineConfig",
    "OnlineConfig",
    "ParameterFile",
    "Parameters",
    "ReportConfig",
    "Server",
    "StageConfig",
    "Value",
    "command",
    "configure",
    "differences",
    "folder",
    "folder_of",
    "notebook_file",
    "parse",
    "read_file",
    "resolve",
    "select",
    "write_new",
]
