"""Where the results and artefacts of a stage are, and the command that makes them."""

from pathlib import Path

from helpers.config.schema import StageConfig
from helpers.store import ROOT, outputs


def results_folder(config: StageConfig) -> Path:
    """Where the results of the experiment are; those of a report are with the model."""
    base = outputs() / config.target / config.model
    return base if config.stage == "report" else base / config.experiment


def notebook_file(model: str, stage: str) -> Path:
    """Where the notebook of `stage` is."""
    return ROOT / "notebooks" / model / f"{stage}.ipynb"


def artefact_folder(config: StageConfig, stage: str) -> Path:
    """Where the artefact of `stage` is or will be."""
    return outputs() / config.target / "artefacts" / config.key(stage)


def command(config: StageConfig, stage: str) -> str:
    """The command that runs `stage` of this experiment."""
    only = f"--model {config.model} --experiment {config.experiment} --stage {stage}"
    return f"triton-notebooks run params/{config.target}.yaml {only}"
