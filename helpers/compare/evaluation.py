"""Measure configurations on servers: that of the fastest keeps running."""

import json
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from helpers.compare.search import Search, Trial, Winner, open_study
from helpers.compare.space import Choice, Space, clients
from helpers.compare.winner import differing
from helpers.config import TuneConfig, Value, changed, results_folder
from helpers.errors import DeploymentError, MeasurementError
from helpers.inference import require
from helpers.measure import Candidate, Comparison, LoadSession, evaluate, open_session, served
from helpers.results import ParityCheck, Score
from helpers.store import digest, display_path
from helpers.triton import Server

MISSING = "tune needs Optuna. Run pip install 'optuna>=5,<6'."
SERVERS = 2  # at a time
MANY_TRIALS = 20  # from which on the importances of fields are shown


@dataclass(frozen=True)
class Tuning:
    """The result of a search, with the parity checks and metrics of its winner."""

    trials: tuple[Trial, ...]
    winner: Winner
    checks: tuple[ParityCheck, ...]
    scores: tuple[Score, ...]
    importances: dict[str, float]  # empty with too few trials

    @property
    def headline(self) -> str:
        """Return the winner in one line."""
        final = self.winner.final
        cost = f"{final.cost} per million inferences, " if final.cost else ""
        speed = f"{final.throughput:,.1f} samples/s, {final.ratio_in_words} the experiment's"
        return f"{speed}, {cost}{len(self.trials)} trials"

    def rows(self) -> list[dict[str, Value]]:
        """Return one row for each trial."""
        return [
            {
                "trial": trial.number,
                **{name: str(value) for name, value in trial.choice.items()},
                "compared with": trial.against,
                "ratio": trial.ratio_in_words,
                "relative to trial 0": trial.gain,
                **trial.model_dump(include={"throughput", "p99_latency_ms", "pairs"}),
                "peak_memory_mb": trial.peak_memory_mb,
                **({"cost_per_million": trial.cost} if self.winner.final.cost else {}),
                "result": trial.state,
                "reason": trial.reason or self.winner.passed_over.get(trial.number, ""),
            }
            for trial in self.trials
        ]

    def worth(self) -> list[dict[str, Value]]:
        """Return one row for each field of the winner that differs, and one for all of them."""
        winner, start = self.winner, self.trials[0].choice
        return [
            {
                "field": name,
                "winner": str(winner.choice.get(name, "")),
                "experiment": str(start.get(name, "")),
                "contribution": trial.ratio_in_words,
                "pairs": trial.pairs,
            }
            for name, trial in [*winner.why.items(), ("all fields", winner.final)]
        ]

    def facts(self, space: Space, written: Path) -> dict[str, Value]:
        """Return the search for the metadata of the stage's result."""
        return {
            "space": {name: list(values) for name, values in space.values.items()},
            "excluded": dict(space.excluded),
            "trials": [trial.model_dump() for trial in self.trials],
            "winner": self.winner.model_dump(),
            "differs": differing(space, self.winner),
            "importances": dict(self.importances),
            "written": display_path(written),
        }


@dataclass
class CandidateEvaluator:
    """Measures configurations of an experiment, on two servers at a time at most."""

    config: TuneConfig
    space: Space
    opened: ExitStack
    session: LoadSession | None = None
    running: dict[str, tuple[Candidate, ExitStack]] = field(default_factory=dict)
    checks: tuple[ParityCheck, ...] = ()  # of the configuration that was evaluated last
    scores: tuple[Score, ...] = ()

    def compare(
        self, first: Choice, second: Choice, pairs: int, is_race: bool = True
    ) -> Comparison:
        """Compare the second one with the first; raise `ServerError` or `MeasurementError`."""
        try:
            one, other = (self.serve(choice, keep=first) for choice in (first, second))
            assert self.session
            return self.session.compare(one, other, pairs, is_race, self.config.latency_budget_ms)
        except DeploymentError:
            self.end_all()  # one of them may have ended
            raise

    def end_all(self, but: str = "") -> None:
        """End every server that runs, but for one."""
        for key in self.running.keys() - {but}:
            self.running.pop(key)[1].close()

    def failed_check(self, choice: Choice) -> str:
        """Return what is wrong with a configuration, evaluated as the deploy stage does."""
        candidate = self.serve(choice, keep=choice)
        context: AbstractContextManager[Server] = nullcontext(candidate.server)
        if candidate.server.codec:  # in the deploy stage a parameter server waits for all vectors
            self.end_all()
            context = served(candidate.config, "exact")
        with context as server:
            self.checks, self.scores = evaluate(candidate.config, server)
        failures = [check.failure for check in self.checks]
        return next(filter(None, failures + [score.failure for score in self.scores]), "")

    def serve(self, choice: Choice, keep: Choice) -> Candidate:
        """Serve a configuration, unless its server runs; if `SERVERS` run, end all but `keep`."""
        fields, count = self.space.fields(choice), clients(choice)
        key, kept_key = (json.dumps(self.space.fields(option)) for option in (choice, keep))
        if key in self.running:
            return replace(self.running[key][0], clients=count)
        if len(self.running) >= SERVERS:
            self.end_all(kept_key)
        config = changed(self.config, fields)
        with ExitStack() as stack:
            server = stack.enter_context(served(config))
            if self.session is None:
                self.session = self.opened.enter_context(open_session(self.config, server))
            candidate = self.session.warm(server, config, max(config.concurrency, default=count))
            self.running[key] = candidate, self.opened.enter_context(stack.pop_all())
        return replace(candidate, clients=count)


def tune(config: TuneConfig, space: Space) -> Tuning:
    """Search the fastest configuration of an experiment for `tune_minutes`, and explain it.

    An interrupted search resumes; a finished one continues if it has more time.
    Raises `MeasurementError` without Optuna, or if no configuration is left.
    """
    if not find_spec("optuna"):
        raise MeasurementError(MISSING)
    from optuna.importance import get_param_importances

    bounds = config.latency_budget_ms, config.max_memory_mb, config.price_per_hour
    about = config.cache_fields("deploy"), space.values, bounds
    hashes = {
        name: require(changed(config, fields), "convert").sha256
        for name, fields in space.formats.items()
    }
    journal = results_folder(config) / "tune_journal.log"
    study = open_study(journal, digest([about, hashes, config.online_batch_size]))
    with ExitStack() as opened:
        evaluator = CandidateEvaluator(config, space, opened)
        evaluator.serve(space.start, space.start)  # before the search: it waits for the machine
        search = Search(space, evaluator, study, config.latency_budget_ms, bounds=config)
        search.run(60 * config.tune_minutes)
        winner = search.winner()
    trials = tuple(search.trials)
    enough = sum(trial.gain is not None for trial in trials) >= MANY_TRIALS
    importances = get_param_importances(study) if enough else {}
    return Tuning(trials, winner, evaluator.checks, evaluator.scores, importances)
