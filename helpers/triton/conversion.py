"""The convert stage: in this process, or in a container for a file that fits one release only."""

from pathlib import Path

from helpers import inference
from helpers.config import ConvertConfig
from helpers.store import Artefact


def convert(config: ConvertConfig) -> Artefact:
    """Convert the export to the format that is served."""

    def run_in_image(image: str, folder: Path, command: list[str]) -> None:
        from helpers.triton import docker  # loads Triton's client, which few conversions need

        docker.run_in_image(config, image, folder, command)

    return inference.convert(config, run_in_image)
