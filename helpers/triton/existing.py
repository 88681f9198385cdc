"""Deploying a model of a Triton repository: a copy of it, as it is but for its name."""

import shutil
from pathlib import Path

from google.protobuf import text_format

from helpers.config import DeployConfig, artefact_folder
from helpers.inference import prepare, require, threads
from helpers.models._own import served
from helpers.store import Artefact, from_root, making
from helpers.triton.client import write_client

SCENARIOS = ("offline", "online")


def deploy(config: DeployConfig) -> Artefact:
    """Copy the model into a repository of its own; both scenarios have its own configuration."""
    prepare(config)
    source = from_root(config.checkpoint)
    message = served.read(source)
    message.name = config.model
    with making(artefact_folder(config, "deploy")) as (temporary, facts):
        target = temporary / config.model
        shutil.copytree(source, target)
        (target / "configs").mkdir(exist_ok=True)
        for path in (target / served.FILE, target / "configs/offline.pbtxt"):
            path.write_text(text_format.MessageToString(message))
        Path(temporary / "requirements.txt").write_text("")
        write_client(config, temporary)
        facts["model"] = config.model
        facts["threads"] = {scenario: threads(config, scenario) for scenario in SCENARIOS}
    return require(config, "deploy")
