"""The convert stage: in this process, or in a container for a file that fits one release only."""

from functools import partial
from pathlib import Path

from helpers import inference
from helpers.config import ConvertConfig
from helpers.store import Artefact


def convert(config: ConvertConfig) -> Artefact:
    """Convert the export to the format that is served."""
    return inference.convert(config, partial(_run_in_image, config))


def _run_in_image(config: ConvertConfig, image: str, folder: Path, command: list[str]) -> None:
    """Run `command` in a container of `image`; its words after the first name files in `folder`."""
    from helpers.triton import docker  # loads Triton's client, which few conversions need

    server = config.server.model_copy(update={"image": image})
    words = [command[0], *(f"/build/{name}" for name in command[1:])]
    docker.run_in_image(config.model_copy(update={"server": server}), words, {folder: "/build"})
