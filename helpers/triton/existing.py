"""Deploying a model of a Triton repository: a copy of it, as it is but for its name."""

import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers.config import DeployConfig, artifact_folder
from helpers.errors import CheckpointError
from helpers.inference import prepare, require, threads
from helpers.store import Artifact, from_root, making
from helpers.triton.client import write_client

FILE = "config.pbtxt"
SCENARIOS = ("offline", "online")


def deploy(config: DeployConfig) -> Artifact:
    """Copy the model into a repository of its own; both scenarios have its own configuration."""
    prepare(config)
    source = from_root(config.checkpoint)
    message = read_configuration(source)
    message.name = config.model
    with making(artifact_folder(config, "deploy")) as (temporary, facts):
        target = temporary / config.model
        shutil.copytree(source, target)
        (target / "configs").mkdir(exist_ok=True)
        for path in (target / FILE, target / "configs/offline.pbtxt"):
            path.write_text(text_format.MessageToString(message))
        Path(temporary / "requirements.txt").write_text("")
        write_client(config, temporary)
        facts["model"] = config.model
        facts["threads"] = {scenario: threads(config, scenario) for scenario in SCENARIOS}
    return require(config, "deploy")


def read_configuration(folder: Path) -> pb.ModelConfig:
    """Read the configuration of the model in `folder` as Triton's own message.

    Raises CheckpointError if there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        return text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    except text_format.ParseError as error:
        raise CheckpointError(f"{path} is not a Triton model configuration: {error}") from None
