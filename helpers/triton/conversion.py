"""The convert stage: its settings, and the conversion in this process or in a container."""

from pathlib import Path

from helpers import formats, inference
from helpers.config import ConvertConfig
from helpers.formats import Setting
from helpers.store import Artifact


def conversion_plan(config: ConvertConfig) -> list[dict[str, str]]:
    """Return a row for each setting of the conversion, and of the server when it loads the file,
    with its value and the reason. It needs no file, and no GPU.
    """
    source, target = (formats.get(name) for name in (config.export_format, config.format))
    exported = f"{source.DISPLAY_NAMES[1]}, {config.export_precision}"
    why = f"The format that {target.DISPLAY_NAMES[0]} runs."
    if inference.is_as_exported(config):
        why = "Same format and precision as the export, so the file is used as it is."
    converted = Setting("to", f"{target.DISPLAY_NAMES[1]}, {config.precision}", why)
    rows = [Setting("from", exported, "The exported file."), converted]
    if target.IMAGE and config.server.is_native:
        why = "Only the release that builds it can load it."
        rows.append(Setting("built in", target.IMAGE.format(release=config.server.release), why))
    rows += [*inference.asked(config), *_accelerator(config)]
    return [setting._asdict() for setting in rows]


def _accelerator(config: ConvertConfig) -> list[Setting]:
    """Return what the server's own backend does with the file when it loads it."""
    if config.accelerator == "none":
        return []
    from helpers.triton import config_reference, native  # only these experiments depend on them

    _, name = native.ACCELERATORS[config.accelerator]
    parameters = native.accelerator_parameters(config)
    values = ", ".join(f"{key}={value}" for key, value in parameters.items())
    why = f"{config_reference.meaning(name, 'accelerators')} The file stays as it is."
    return [Setting("accelerator", f"{name} ({values})" if values else name, why)]


def convert(config: ConvertConfig) -> Artifact:
    """Convert the export to the format that is served."""

    def run_in_image(image: str, folder: Path, command: list[str]) -> None:
        from helpers.triton import docker  # loads Triton's client, which few conversions need

        docker.run_in_image(config, image, folder, command)

    return inference.convert(config, run_in_image)
