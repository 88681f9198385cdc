"""A model of a Triton repository: reading its configuration."""

from pathlib import Path
from typing import Any

from helpers.errors import CheckpointError

FILE = "config.pbtxt"


def read(folder: Path) -> Any:
    """Read the configuration of the model in `folder` as Triton's own message.

    Raises CheckpointError if there is none, or it is damaged.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    path = folder / FILE
    try:
        return text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    except text_format.ParseError as error:
        raise CheckpointError(f"{path} is no configuration of Triton's: {error}") from None


def backend(message: Any) -> str:
    """Name the backend that runs a model; older configurations have a platform instead."""
    platform = str(message.platform)
    known = {"tensorrt_plan": "tensorrt", "pytorch_libtorch": "pytorch", "ensemble": "ensemble"}
    by_platform = known.get(platform) or platform.partition("_")[0]
    return str(message.backend) or by_platform
