"""Search the fastest configuration by Optuna's TPE, comparison by comparison, within a time limit
and with a journal from which an interrupted search resumes.

Each candidate is compared with the fastest configuration so far, at nearly the same time, so that a
machine that drifts does not decide. The gain of a trial is the product of the ratios that lead to
it: its throughput in units of the experiment's own.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import BaseModel

from helpers.compare.space import Choice, Space
from helpers.config import BoundFields
from helpers.errors import DeploymentError, MeasurementError
from helpers.measure import Comparison, cost_in_words, cost_per_million, over_cost, over_memory
from helpers.results import Estimate
from helpers.store import write_atomic

if TYPE_CHECKING:
    from optuna import Study
    from optuna import Trial as OptunaTrial

PAIRS = 4  # at most, in the search
WORTH_PAIRS, FINAL_PAIRS = 3, 6  # always as many
SEED = 14
STALE = 10  # trials in a row, none of them faster, after which the search ends
REPEATS = 40  # proposals in a row that were tried before, after which it ends

# the fields that a trial has from its comparison as they are
MEASURED = ("throughput", "p99_latency_ms", "budget", "peak_memory_mb", "background_cpu_cores")

State = Literal["faster", "measured", "ended early", "over budget", "failed"]


class Evaluator(Protocol):
    """Measures configurations; the real one has servers."""

    def compare(
        self, first: Choice, second: Choice, pairs: int, is_race: bool = True
    ) -> Comparison:
        """Compare the second one with the first; raise `DeploymentError` if that fails."""

    def failed_check(self, choice: Choice) -> str:
        """Return what is wrong with a configuration's served outputs; empty if nothing."""


class Trial(BaseModel, frozen=True):
    """A configuration that was compared with another. Intervals are of 95%."""

    number: int
    choice: Choice
    state: State
    reason: str = ""
    against: int  # the number of the other
    ratio: float | None = None  # of the throughputs
    low: float | None = None
    high: float | None = None
    gain: float | None = None  # throughput in units of the first trial's
    throughput: float | None = None  # samples/s
    cost_per_million: Estimate | None = None  # of inferences, if there is a price
    peak_memory_mb: float | None = None  # on a GPU its device memory
    p99_latency_ms: float | None = None
    budget: str = ""  # whether p99 is known to be within it
    pairs: int = 0
    background_cpu_cores: float | None = None
    seconds: float = 0.0

    @property
    def ratio_in_words(self) -> str:
        """Return the ratio with its 95% CI."""
        if not self.ratio:
            return "not measured"
        return Estimate(value=self.ratio, low=self.low, high=self.high).times

    @property
    def cost(self) -> str:
        """Return the cost of a million inferences with its 95% CI; empty without a price."""
        return cost_in_words(self.cost_per_million)

    @property
    def inverse(self) -> "Trial":
        """Return the same with the ratio of the other one's throughput to this one's."""
        low, high = (bound and 1 / bound for bound in (self.high, self.low))
        ratio = self.ratio and 1 / self.ratio
        return self.model_copy(update={"ratio": ratio, "low": low, "high": high})


class Winner(BaseModel, frozen=True):
    """The fastest configuration that keeps accuracy and limits, and how that is known."""

    choice: Choice
    final: Trial  # in units of the experiment's own configuration, with as many clients
    # for each field that differs: the ratio to the same one with the experiment's own value, of
    # which the other columns are
    why: dict[str, Trial]
    passed_over: dict[int, str]  # faster trials and what was wrong with them


@dataclass(frozen=True)
class Search:
    """A study of a space by an evaluator."""

    space: Space
    evaluator: Evaluator
    study: "Study"
    budget_ms: float | None = None  # of p99
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print
    bounds: BoundFields = field(default_factory=BoundFields)

    @property
    def trials(self) -> list[Trial]:
        """Return what was tried so far, in earlier runs too."""
        saved = (trial.user_attrs.get("trial") for trial in self.study.get_trials(deepcopy=False))
        return [Trial.model_validate(fields) for fields in saved if fields]

    def run(self, seconds: float) -> None:
        """Try configurations until these seconds are spent, those of earlier runs included, nothing
        is left to try, or the last trials were not faster.
        """
        if not self.trials:
            self.study.enqueue_trial(_texts(self.space.start))
        while not self._is_over(seconds):
            self.study.optimize(self._try, n_trials=1)

    def _is_over(self, seconds: float) -> bool:
        trials = self.trials
        spent = [trial.seconds for trial in trials]
        # a comparison with a faster configuration takes less time
        is_late = sum(spent) + max(spent[-3:], default=0.0) > seconds
        is_stale = len(trials) > STALE and all(trial.state != "faster" for trial in trials[-STALE:])
        proposals = self.study.get_trials(deepcopy=False)[-REPEATS:]
        is_new = [bool(proposal.user_attrs) for proposal in proposals]
        is_repeating = len(is_new) == REPEATS and not any(is_new)
        return len(trials) >= self.space.size or is_late or is_stale or is_repeating

    def _try(self, proposal: "OptunaTrial") -> float:
        """Compare what the sampler proposes with the fastest; return the logarithm of the gain."""
        from optuna import TrialPruned

        choice: Choice = {
            name: json.loads(proposal.suggest_categorical(name, [*map(json.dumps, values)]))
            for name, values in self.space.values.items()
        }
        trials = self.trials
        trial = next((trial for trial in trials if trial.choice == choice), None)
        if trial is None:
            best = fastest(trials)
            trial = self._compare(best, choice, len(trials))
            if best is None and trial.state == "failed":
                why = f"The experiment itself could not be measured: {trial.reason}"
                raise MeasurementError(why)
            if best is None and trial.state == "over budget":
                for fewer in self.space.values["concurrency"]:
                    self.study.enqueue_trial(_texts({**choice, "concurrency": fewer}))
            proposal.set_user_attr("trial", trial.model_dump())
            self.say(in_words(trial))
        if trial.gain is None or trial.state == "over budget":
            raise TrialPruned  # the sampler ranks it last
        return log(trial.gain)

    def _compare(self, first: Trial | None, choice: Choice, number: int, pairs: int = 0) -> Trial:
        """Compare a configuration with that of a trial in so many pairs, by default in a race.
        Compare the first of all with itself, which shows how much two equal ones differ.
        """
        is_race, pairs = first is not None and not pairs, pairs or PAIRS
        started, against = self.clock(), first.number if first else number
        fields = {"number": number, "choice": choice, "against": against}
        try:
            compared = first.choice if first else choice
            found = self.evaluator.compare(compared, choice, pairs, is_race)
        except DeploymentError as error:
            fields |= {"state": "failed", "reason": str(error)}
        else:
            ratio, price = found.ratio, self.bounds.price_per_hour
            fields["state"], fields["reason"] = self._state(first, found, pairs)
            fields |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
            fields["gain"] = ratio.value * (first.gain or 1) if first else 1.0
            cost = cost_per_million(price, found.throughput, found.throughput_interval)
            fields |= {"cost_per_million": cost, "pairs": found.rounds}
            fields |= {name: getattr(found, name) for name in MEASURED}
        return Trial.model_validate(fields | {"seconds": self.clock() - started})

    def _state(self, first: Trial | None, comparison: Comparison, pairs: int) -> tuple[State, str]:
        """Return the state of a trial, and why it cannot win, if so."""
        limit, p99_ms = self.budget_ms, comparison.p99_latency_ms
        if limit and (comparison.budget == "not met" or p99_ms > limit):
            return "over budget", f"p99 is {p99_ms:.0f} ms, over the latency budget"
        if over := over_memory(self.bounds, comparison.peak_memory_mb):
            return "over budget", over
        if first is None or comparison.ratio.is_above_one or first.state == "over budget":
            return "faster", ""
        return "ended early" if comparison.rounds < pairs else "measured", ""

    def winner(self) -> Winner:
        """Choose the fastest configuration within all limits whose responses are right, and measure
        the effect of each of its fields.

        A field without an effect is reset. Raises `MeasurementError` if no configuration is left.
        """
        trials, passed_over = self.trials, dict[int, str]()
        for trial in (trial for trial in reversed(trials) if trial.state == "faster"):
            if over := over_cost(self.bounds, trial.cost_per_million):
                passed_over[trial.number] = over
                continue
            best, why = self._explained(trial)
            start = {**self.space.start, "concurrency": best.choice["concurrency"]}
            alone = Trial(number=0, choice=start, state="measured", against=0)
            final = self._compare(alone, best.choice, trial.number, FINAL_PAIRS)
            wrong = final.reason or over_cost(self.bounds, final.cost_per_million)
            if best.choice != start and trials[0].state == "faster" and not (final.low or 0) > 1:
                wrong = wrong or f"not faster than the experiment ({final.ratio_in_words})"
            if not (wrong := wrong or self.evaluator.failed_check(best.choice)):
                return Winner(choice=best.choice, final=final, why=why, passed_over=passed_over)
            passed_over[trial.number] = wrong
        none = f"none of {len(trials)} is within the limits. Trial 0: {trials[0].reason}"
        cause = next(iter(passed_over.values()), none)
        raise MeasurementError(f"No configuration can be recommended: {cause}")

    def _explained(self, best: Trial) -> tuple[Trial, dict[str, Trial]]:
        """Compare it, field by field, with itself with the experiment's own value."""
        why: dict[str, Trial] = {}
        for name, value in self.space.start.items():
            if name == "concurrency" or best.choice[name] == value:
                continue
            without = {**best.choice, name: value}
            trial = self._compare(best, without, best.number, WORTH_PAIRS)
            if trial.state in ("faster", "measured") and (trial.ratio or 0) >= 1:
                best = best.model_copy(update={"choice": without})
            else:
                why[name] = trial.inverse
        return best, why


def fastest(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest one so far within all limits; the first of all if none does."""
    faster = [trial for trial in trials if trial.state == "faster"]
    return next(iter([*faster[-1:], *trials]), None)


def in_words(trial: Trial) -> str:
    """Return the result of a trial in one line."""
    settings = ", ".join(f"{name} {value}" for name, value in trial.choice.items())
    ratio = f"{trial.ratio_in_words} that of trial {trial.against}"
    result = f"{trial.throughput:.1f} samples/s, {ratio}" if trial.throughput else ""
    words = ", ".join(filter(None, (result, trial.reason, trial.state)))
    return f"trial {trial.number}: {settings}: {words}"


def _texts(choice: Choice) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in choice.items()}


def open_study(journal: Path | None, name: str) -> "Study":
    """Open the study `name` in a journal, which an interrupted search may have left cut off;
    without one it is kept in memory.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if journal:
        journal.parent.mkdir(parents=True, exist_ok=True)
        if journal.exists():
            write_atomic(journal, _whole_lines(journal.read_bytes()))
        storage = JournalStorage(JournalFileBackend(str(journal)))
    sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=0)
    study = optuna.create_study(
        study_name=name, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
    )
    for _ in study.get_trials(deepcopy=False, states=[TrialState.WAITING]):
        study.ask()
    for trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def _whole_lines(text: bytes) -> bytes:
    """Return a text without what follows its last whole line."""
    lines = []
    with suppress(ValueError):
        for line in text.splitlines(keepends=True):
            json.loads(line)
            lines.append(line)
    return b"".join(line for line in lines if line.endswith(b"\n"))
