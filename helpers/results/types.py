"""Types of a stage's results: `Result` is the content of `<stage>.json`.

A number that is not finite is written as null, because JSON cannot represent it.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from helpers.config import Value
from helpers.results.comparison import Comparison
from helpers.results.row import Record, Row, clients_of

if TYPE_CHECKING:
    from pandas import DataFrame

State = Literal["done", "failed", "blocked", "skipped"]


class Difference(Record):
    """One output of a parity check: differences in standard deviations of the reference."""

    output: str
    max_difference: float | None = None  # None where shapes differ or a value is not finite
    mean_difference: float | None = None
    max_bound: float
    mean_bound: float
    # the sample that differs most, from 0 on, and both values; None where shapes differ
    sample: int | None = None
    value: float | None = None
    reference_value: float | None = None

    @property
    def ok(self) -> bool:
        """Return whether both differences are within their tolerances."""
        if self.max_difference is None or self.mean_difference is None:
            return False
        return self.max_difference <= self.max_bound and self.mean_difference <= self.mean_bound


class ParityCheck(Record):
    """One of the parity checks: exported, converted, served, or served under load."""

    name: str
    precision: str
    reference: str = "reference"  # PyTorch or Keras in fp32; or the converted model
    samples: int
    differences: tuple[Difference, ...]  # empty if its file is that of the previous check
    note: str = ""

    @property
    def failure(self) -> str:
        """Return what is wrong, in one line; empty if every output is within its tolerances."""
        for bad in (difference for difference in self.differences if not difference.ok):
            how = "has a different shape" if bad.sample is None else "is not finite"
            if bad.max_difference is not None:
                how = (
                    f"differs from the {self.reference} by up to {bad.max_difference:.2g} standard "
                    f"deviations (tolerance {bad.max_bound:.2g}) and {bad.mean_difference:.2g} on "
                    f"average (tolerance {bad.mean_bound:.2g})"
                )
            if bad.sample is not None:
                values = f"{bad.value} instead of {bad.reference_value}"
                how += f"; sample {bad.sample} of {self.samples} is {values}"
            return f"{self.name} {self.precision}: output {bad.output} {how}"
        return ""

    @property
    def headline(self) -> str:
        """Return the largest difference from the reference, in standard deviations."""
        largest = [difference.max_difference or 0.0 for difference in self.differences]
        return f"max difference {max(largest):.1e}" if largest else self.note

    def rows(self) -> list[dict[str, Value]]:
        """Return one row for each output, for a table."""
        head: dict[str, Value] = {"check": self.name, "precision": self.precision}
        head |= {"compared with": self.reference, "samples": self.samples}
        columns = {"output", "max_difference", "mean_difference", "max_bound", "mean_bound"}
        outcomes = [(each.model_dump(include=columns), each.ok) for each in self.differences]
        return [
            {**head, "result": "passed" if ok else "failed", **values, "reason": self.note}
            for values, ok in outcomes or [({}, True)]
        ]


class Score(Record):
    """One of the task's metrics, of the served model and of the reference."""

    metric: str
    framework: float  # the metric of the reference
    served: float
    bound: float  # required of the served model
    better: Literal["higher", "lower"]

    @property
    def failure(self) -> str:
        """Return what is wrong, in one line; empty if the metric is within its bound."""
        if self.served >= self.bound if self.better == "higher" else self.served <= self.bound:
            return ""
        limit = "at least" if self.better == "higher" else "at most"
        return (
            f"{self.metric} is {self.served:.4f} as served, {limit} {self.bound:.4f} is required "
            f"(reference: {self.framework:.4f})"
        )


class Fingerprint(Record):
    """All that a stage reads, taken before it runs: equal fingerprints mean an equal outcome."""

    config: dict[str, Value]  # the configuration fields that decide the outcome
    notebook: str  # SHA-256 of the notebook's cells
    versions: dict[str, str]  # of the runtimes
    inputs: dict[str, str]  # SHA-256 or name of each input
    # SHA-256 of each file of this package that the stage read
    modules: dict[str, str] = Field(default={})


class Source(Record):
    """The git commit and the command that made a result."""

    git_commit: str
    command: str


class ArtifactFacts(Record):
    """The artifact of a stage: its folder, hashes and metadata."""

    folder: str
    sha256: str
    size_mb: float
    files: dict[str, str]  # name -> SHA-256
    facts: dict[str, JsonValue] = Field(default={})


class GpuState(Record):
    """The GPU at the start and at the end of a measurement, and the changes between."""

    start: dict[str, Value]
    end: dict[str, Value]
    changes: tuple[str, ...]
    load_from: tuple[str, ...]  # where utilisation, memory and power were read


class LookupPass(Record):
    """One pass of the evaluation set through a parameter server, request after request."""

    name: str  # "cold" begins with an empty cache
    batch_size: int
    hit_rate: float | None = None  # None if the server has no counters
    default_share: float | None = None
    scores: dict[str, float]
    p50_latency_ms: float
    # after each request: samples so far, hit rate, default share and its latency in ms
    course: tuple[tuple[int, float | None, float | None, float], ...]

    @property
    def row(self) -> dict[str, Value]:
        """Return the row of a table."""
        return {
            "cache": self.name,
            "hit rate": self.hit_rate,
            "default vectors": self.default_share,
            **self.scores,
            "p50_latency_ms": self.p50_latency_ms,
        }


class Peaks(Record):
    """The machine's highest measured rates, in short runs before and after the measurements."""

    threads: int  # 0 on a GPU
    gflops: dict[str, float]  # 10^9 operations/s of matrix multiplications, by precision
    memory_gb_s: float  # 10^9 bytes/s, read and written
    library: str
    seconds: float  # the duration of measuring them


class Measurement(Record):
    """The measurements of a scenario and their circumstances."""

    rows: tuple[Row, ...]
    distinct_rows: int
    # the most CPU cores that other processes used just before a measurement
    background_before: float | None
    measuring_seconds: float | None = None  # of the stage, without waiting for an idle machine
    again_seconds: float = 0.0  # of these, for repeated runs; only in older results
    waited_seconds: float = 0.0  # in addition, for an idle machine
    server_samples: int | None = None  # counted by the server, warm-up included
    server_executions: int | None = None
    passes: tuple[LookupPass, ...] = ()
    requests_file: str = ""  # next to the result, with all of `requests`
    gpu: GpuState | None = None
    peaks: Peaks | None = None  # None where this process cannot compute on the device
    # of each run the start and end of every request (ns, [n, 2]), or in-process throughputs
    requests: SkipJsonSchema[dict[str, NDArray[np.generic]]] = Field({}, exclude=True, repr=False)

    @property
    def headline(self) -> str:
        """Return the highest stable or imprecise throughput in concurrency mode and its load; if
        there is none, the highest of all and its quality.
        """
        closed = [row for row in self.rows if (row.throughput or 0) > 0 and not row.rate]
        usable = [row for row in closed if row.quality in ("stable", "imprecise")]
        if not closed:
            return "no throughput was measured"
        best = max(usable or closed, key=lambda row: row.throughput or 0)
        load = f"batch size {best.batch_size}, {clients_of(best.concurrency)}"
        text = f"{best.throughput:,.1f} samples/s at {load}"
        return text if usable else f"{text} ({best.quality})"

    def frame(self) -> "DataFrame":
        """Return the rows as a table."""
        from pandas import DataFrame

        return DataFrame([row.model_dump() for row in self.rows], columns=list(Row.model_fields))


class Operator(Record):
    """Calls of one kind of operator by one kernel in one precision, in a run."""

    kind: str
    kernel: str
    precision: str
    calls: int
    ms: float


class Profile(Record):
    """The time of a converted model by operator, from its runtime's profiler."""

    batch_size: int = 0
    threads: int = 0
    operators: tuple[Operator, ...] = ()  # the longest first
    findings: tuple[str, ...] = ()  # sentences
    reason: str = ""  # why there is no profile

    @property
    def caption(self) -> str:
        """Return what was profiled, in one line, or why nothing was."""
        load = f"{self.batch_size} samples, {self.threads} threads"
        return self.reason or f"Profile of one run: {load}"

    def rows(self, most: int = 12) -> list[dict[str, Value]]:
        """Return one row for each of the longest operators, for a table, and one for the others."""
        total = sum(op.ms for op in self.operators) or 1.0
        rest = self.operators[most:]
        rows: list[dict[str, Value]] = [
            {"operator": op.kind, "share": op.ms / total, **op.model_dump(exclude={"kind"})}
            for op in self.operators[:most]
        ]
        if rest:
            ms, calls = sum(op.ms for op in rest), sum(op.calls for op in rest)
            rows.append({"operator": "others", "share": ms / total, "calls": calls, "ms": ms})
        return rows


class Result(Record):
    """The content of `<stage>.json`; a file of a schema version not named here is not read."""

    # 2 has no intervals, 3 no comparisons, 4 no models_ms, 5 no load beside a comparison
    schema_version: Literal[2, 3, 4, 5, 6] = 6
    model: str
    experiment: str
    stage: str
    gpu: str
    state: State
    reason: str = ""  # of a state that is not "done"
    headline: str = ""
    finished: str = ""
    seconds: float | None = None
    fingerprint: Fingerprint | None = None  # None for a stage that never ran
    source: Source | None = None
    machine: dict[str, Value] = Field(default={})  # in the fields of MLPerf's system description
    checks: tuple[ParityCheck, ...] = ()
    scores: tuple[Score, ...] = ()
    facts: dict[str, JsonValue] = Field(default={})
    artifact: ArtifactFacts | None = None
    measurement: Measurement | None = None
    profile: Profile | None = None
    comparisons: tuple[Comparison, ...] = ()  # one per workload, of the stage compare
