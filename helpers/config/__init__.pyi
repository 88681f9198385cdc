from .comparison import differences
from .loading import TARGET_VARIABLE, Parameters, configure, parse, read_file, resolve, select
from .parameter_file import Experiment, ParameterFile, Server, Value
from .places import artefact_folder, command, notebook_file, results_folder
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
    "LoadConfig",
    "OfflineConfig",
    "OnlineConfig",
    "ParameterFile",
    "Parameters",
    "ReportConfig",
    "Server",
    "StageConfig",
    "Value",
    "artefact_folder",
    "command",
    "configure",
    "differences",
    "notebook_file",
    "parse",
    "read_file",
    "resolve",
    "results_folder",
    "select",
    "write_new",
]
