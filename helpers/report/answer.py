"""What to deploy: the comparison of a model's experiments in sentences, for report and indexes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import floor
from pathlib import Path

from helpers import results
from helpers.compare import comparison_headline
from helpers.config import ReportConfig, stages
from helpers.measure import MATCH_RATE
from helpers.results import ComparedExperiment, Comparison, Result, clients_of, same_as
from helpers.store import outputs


@dataclass(frozen=True)
class Card:
    """A figure, whose experiment it is, and what it is compared with."""

    title: str
    experiment: str  # or a word why there is none
    figure: str = ""
    compared: str = ""


@dataclass(frozen=True)
class Answer:
    """What to deploy for one workload of a model, or the reason why that is not known."""

    comparison: Comparison | None = None
    reason: str = "the stage compare has not run"  # why there is no comparison
    deployed: Mapping[str, Result] = field(default_factory=dict)  # of the stage deploy
    finished: str = ""  # when the comparison was

    @property
    def best(self) -> ComparedExperiment | None:
        """Return what to deploy, if that is known."""
        return self.comparison.recommended if self.comparison else None

    @property
    def accuracy(self) -> str:
        """Return whether what to deploy keeps its accuracy: kept, not kept or not checked."""
        deploy = self.deployed.get(self.best.experiment) if self.best else None
        if deploy is None or not deploy.scores:
            return "not checked"
        failures = [check.failure for check in deploy.checks]
        is_lost = any(failures + [score.failure for score in deploy.scores])
        return "not kept" if is_lost else "kept"

    @property
    def sentence(self) -> str:
        """Return what to deploy, or why that is not known."""
        if not self.comparison:
            return f"Not measured: {self.reason}."
        if not self.best:
            return f"{self.comparison.headline}."
        return f"{self.comparison.headline}; {_matches(self.deployed.get(self.best.experiment))}."

    def remarks(self, budget_ms: float | None) -> Iterator[str]:
        """Yield what limits the answer. `budget_ms` is the reader's own budget."""
        if not self.comparison:
            return
        ranked, rivals = self.comparison.ranked, self.comparison.rivals
        for one in ranked[: ranked.index(self.best) if self.best else None]:
            if one not in rivals:
                yield f"{one.experiment}{_faster(self.comparison, one)}."
        if lost := [one for one in self.comparison.experiments if one not in ranked]:
            reasons = "; ".join(f"{one.experiment} ({one.reason})" for one in lost)
            yield f"Left out: {reasons}."
        if budget_ms != self.comparison.latency_budget_ms:
            measured = self.comparison.limit or "no budget"
            here = f"a budget of {budget_ms:,g} ms" if budget_ms else "no budget"
            yield f"Measured with {measured}; here {here} applies."
        if again := [name for name, one in self.deployed.items() if one.finished > self.finished]:
            yield f"Deployed again since this was measured: {', '.join(again)}."

    @property
    def cards(self) -> tuple[Card, ...]:
        """Return throughput, latency of single requests, and the budget."""
        if not self.comparison or not self.comparison.ranked:
            return ()
        return _throughput(self.comparison), _latency(self.comparison), _within(self.comparison)


def answers_of(folder: Path) -> tuple[Answer, ...]:
    """Read the answer for each workload of the model whose results are in `folder`."""
    if "compare" not in stages(folder.name):
        return (Answer(reason="models of an existing repository are not compared"),)
    result = results.read(folder / "compare.json")
    if result is None:
        return (Answer(),)
    if not result.comparisons:
        reason = f": {result.reason.rstrip('.')}" if result.reason else ""
        state = f"{'' if result.state == 'failed' else 'is '}{result.state}"
        return (Answer(reason=f"the stage compare {state}{reason}"),)
    names = [each.experiment for one in result.comparisons for each in one.experiments]
    read = ((name, results.read(folder / name / "deploy.json")) for name in names)
    deployed = {name: deploy for name, deploy in read if deploy}
    return tuple(Answer(one, "", deployed, result.finished) for one in result.comparisons)


def of_model(config: ReportConfig) -> tuple[Answer, ...]:
    """Return the answers for the report's model."""
    return answers_of(outputs() / config.target / config.model)


def headline(answers: Iterable[Answer]) -> str:
    """Return the answers in one line."""
    return comparison_headline([each.comparison for each in answers if each.comparison])


def _faster(comparison: Comparison, one: ComparedExperiment) -> str:
    """Return why an experiment with more throughput is not the one to deploy."""
    ratio = one.ratio_to_baseline
    speed = f"{ratio.value:.2f}× as fast as {comparison.baseline}" if ratio else "faster"
    if one.experiment == comparison.baseline:
        speed = "the baseline"
    state = comparison.budget_of(one) if one.check else "its p99 was not measured"
    return f" is {speed}, but {state}"


def _matches(deploy: Result | None) -> str:
    """Return how many predictions of the served model equal those of the reference."""
    checks, scores = (deploy.checks, deploy.scores) if deploy else ((), ())
    share = next((score.served for score in scores if score.metric == MATCH_RATE), None)
    if share is None or not checks:
        return "predictions were not compared"
    percent, samples = f"{floor(1000 * share + 1e-9) / 10:g}%", checks[-1].samples
    if abs(share * samples - round(share * samples)) < 1e-6:
        return f"predictions match in {percent} of {samples:,} samples"
    return f"match rate {percent} ({samples:,} samples)"  # of several or numeric predictions each


def _throughput(comparison: Comparison) -> Card:
    """Return the highest throughput."""
    top = comparison.ranked[0]
    speed, same = comparison.speed_of(top), same_as(comparison.rivals_of(top))
    figure = top.throughput.in_words("samples/s") if top.throughput else ""
    load = f"{clients_of(comparison.clients)}, batch size {comparison.batch_size}"
    compared = f"{speed[:1].upper()}{speed[1:]}. {same}"
    return Card(f"Throughput: {load}", top.experiment, figure, compared.rstrip())


def _latency(comparison: Comparison) -> Card:
    """Return the lowest latency of single requests, compared with the baseline's."""
    title, low = "Single requests: 1 client, batch size 1", comparison.lowest_latency
    if low is None or low.p50_latency_ms is None:
        return Card(title, "not measured")
    p50, p90 = low.p50_latency_ms, low.p90_latency_ms
    baseline_first = sorted(
        comparison.ranked, key=lambda one: one.experiment != comparison.baseline
    )
    others = [
        (one.experiment, one.p50_latency_ms)
        for one in baseline_first
        if one.p50_latency_ms and one is not low
    ]
    compared = [f"{name}: p50 {other.in_words('ms')}." for name, other in others[:1]]
    if near := [name for name, other in others if other.low and other.overlaps(p50)]:
        compared.append(f"No clear difference from {', '.join(near)}.")
    figure = f"p50 {p50.in_words('ms')}" + (f", p90 {p90.in_words('ms')}" if p90 else "")
    return Card(title, low.experiment, figure, " ".join(compared))


def _within(comparison: Comparison) -> Card:
    """Return what meets the budget, and how the others compare with it."""
    best, budget_ms = comparison.recommended, comparison.latency_budget_ms
    if not budget_ms:
        return Card("Latency budget", "not set", "", "The field latency_budget_ms sets it.")
    title = f"Within {budget_ms:,g} ms at p99"
    others = [one for one in comparison.ranked if one.check and one is not best]
    compared = "; ".join(f"{one.experiment}: {comparison.budget_of(one)}" for one in others)
    if best is None or best.check is None:
        return Card(title, "not measured" if best else "all are too slow", "", compared)
    requests = f" ({best.check.requests:,} requests)" if best.met else ""
    return Card(title, best.experiment, f"{comparison.budget_of(best)}{requests}", compared)
