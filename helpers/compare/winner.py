"""The fastest configuration as an experiment: a parameter file with the effect of each field."""

import json
from pathlib import Path

import yaml

from helpers.compare.search import Winner
from helpers.compare.space import Choice, Space, clients
from helpers.config import Experiment, TuneConfig, results_folder
from helpers.display import number
from helpers.results import clients_of
from helpers.store import outputs, write_atomic

EXPERIMENT = "tuned"


def differing(space: Space, winner: Winner) -> Choice:
    """Return the fields of the winner's experiment that differ from the experiment's own."""
    start, chosen = space.fields(space.start), space.fields(winner.choice)
    return {name: value for name, value in chosen.items() if value != start.get(name)}


def write_experiment(config: TuneConfig, space: Space, winner: Winner) -> Path:
    """Write the winner as the only experiment of a parameter file.

    Its name has target and model, because a run's results folder has the file's name, and two
    models must not share one. The file of an experiment with overrides lies with its results.
    """
    final, budget_ms, name = winner.final, config.latency_budget_ms, config.experiment
    settings = config.model_dump(include=set(Experiment.model_fields), exclude_defaults=True)
    changes = differing(space, winner)
    fields = {key: settings[key] for key in settings if not key.startswith("tune_")} | changes
    budget = f" (budget {number(budget_ms)} ms: {final.budget})" if budget_ms else ""
    cost = f"# A million inferences cost {final.cost}.\n" if final.cost else ""
    server = config.server.model_dump(exclude_defaults=True) | {"release": config.server.release}
    text = (
        f"# Found by triton-notebooks tune for {config.model}, starting from {name}.\n"
        f"# With {clients_of(clients(winner.choice))}: {final.throughput:,.1f} samples/s, "
        f"{final.ratio_in_words}\n"
        f"# the throughput of {name}; p99 {final.p99_latency_ms:.3g} ms{budget}.\n{cost}"
        "# The comment of a field that differs is its contribution: the throughput relative to\n"
        f"# the same configuration with the value of {name}.\n"
    )
    text += yaml.safe_dump({"gpu": config.gpu, "device": config.device, "server": server})
    text += f"models:\n  {config.model}:\n    experiments:\n      {EXPERIMENT}:\n"
    for field, value in fields.items():
        trial = winner.why.get(field if field in winner.choice else "format")
        worth = trial and (trial.ratio_in_words if trial.ratio else trial.reason)
        comment = f"  # {worth}" if worth and field in changes else ""
        text += f"        {field}: {json.dumps(value)}{comment}\n"
    own = outputs() / config.target / config.model
    folder = results_folder(config) if config.overrides else own
    return write_atomic(folder / f"{config.target}-{config.model}-{EXPERIMENT}.yaml", text)
