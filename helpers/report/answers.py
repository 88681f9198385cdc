"""What a report recommends, as its result keeps it: indexes read it and compute nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from pydantic import JsonValue, TypeAdapter, ValidationError

from helpers.display import digits, short
from helpers.results import Result

KEY = "answers"  # in the metadata of a report's result


@dataclass(frozen=True)
class Recommendation:
    """A configuration that is best for something, and why; or that none is confirmed to be."""

    best: str  # such as "for throughput"
    experiment: str  # "" if none is confirmed
    why: str
    throughput: float | None = None  # samples/s
    p99_latency_ms: float | None = None
    load: str = ""  # at which that was measured
    accuracy: str = ""  # kept, not kept or not checked
    command: str = ""  # that serves it

    @property
    def figures(self) -> str:
        """Return what was measured, in one line."""
        if self.throughput is None:
            return "not confirmed"
        p99 = "" if self.p99_latency_ms is None else f", p99 {short(self.p99_latency_ms)} ms"
        accuracy = f"; accuracy {self.accuracy}" if self.accuracy else ""
        return f"{digits(self.throughput)} samples/s{p99}: {self.load}{accuracy}"


@dataclass(frozen=True)
class Answer:
    """What to deploy for one workload of a model: one variant of the network and one data set."""

    workload: str  # its name among the model's workloads; "" if it is the only one
    choices: tuple[Recommendation, ...]  # the one to deploy first
    throughputs: dict[str, float]  # the highest of each experiment (samples/s)

    @property
    def recommended(self) -> Recommendation | None:
        """Return what to deploy; None if no throughput is known."""
        return next((choice for choice in self.choices if choice.experiment), None)

    @property
    def others(self) -> list[Recommendation]:
        """Return the other choices, in their order."""
        return [choice for choice in self.choices if choice is not self.recommended]


def facts(answers: Iterable[Answer]) -> dict[str, JsonValue]:
    """Return the answers of a report for the metadata of its result."""
    return {KEY: _schema().dump_python(tuple(answers), mode="json")}


def answers_of(result: Result | None) -> tuple[Answer, ...]:
    """Read the answers of a report's result; none if it has none, or those of another release."""
    try:
        return _schema().validate_python(result.facts.get(KEY, []) if result else [])
    except ValidationError:
        return ()


@cache
def _schema() -> TypeAdapter[tuple[Answer, ...]]:
    return TypeAdapter(tuple[Answer, ...])
