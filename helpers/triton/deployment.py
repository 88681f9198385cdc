"""The deploy stage: the model repository of an experiment."""

from helpers.config import DeployConfig, artefact_folder
from helpers.inference import require, threads
from helpers.store import Artefact, making
from helpers.triton.repository import SCENARIOS, write_repository


def deploy(config: DeployConfig) -> Artefact:
    """Write the model repository of the experiment."""
    converted = require(config, "convert")
    per_scenario = {scenario: threads(config, scenario) for scenario in SCENARIOS}
    with making(artefact_folder(config, "deploy")) as (temporary, facts):
        write_repository(temporary, config, converted, per_scenario)
        facts.update(model=config.model, threads={**per_scenario})
    return require(config, "deploy")
