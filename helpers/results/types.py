"""What a stage leaves behind, as types: `Result` is the content of `<stage>.json`, `Row` a line of
`results.csv`.

A number that is not finite is written as null, because JSON has no other word for it.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from helpers.config import Value

if TYPE_CHECKING:
    from pandas import DataFrame

State = Literal["done", "failed", "blocked", "skipped"]
Verdict = Literal[
    "stable",
    "wide",  # the interval of its throughput
    "disturbed",
    "few requests",
    "client-bound",
    "overloaded",  # more requests a second than it can take
    "failed",
    "unstable",  # in results of older schemas
]

# The parts of the average latency, in the order in which a request meets them: field -> label.
LATENCY_COMPONENTS = {
    "client_send_ms": "client send",
    "network_server_send_recv_ms": "network",
    "server_queue_ms": "server queue",
    "server_compute_input_ms": "server input",
    "server_compute_infer_ms": "server inference",
    "server_compute_output_ms": "server output",
    "client_recv_ms": "client receive",
}


class Record(BaseModel):
    """Plain data that does not change and has no other fields than these."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="null", arbitrary_types_allowed=True
    )


class Difference(Record):
    """One output of one rung against its reference, in standard deviations of the latter."""

    output: str
    max_difference: float | None = None  # where shapes differ or a value is not finite
    mean_difference: float | None = None
    max_bound: float
    mean_bound: float
    # the sample that differs most, from 0 on, and both values; None where shapes differ
    sample: int | None = None
    value: float | None = None
    reference_value: float | None = None

    @property
    def ok(self) -> bool:
        """Whether both differences are within their bounds."""
        if self.max_difference is None or self.mean_difference is None:
            return False
        return self.max_difference <= self.max_bound and self.mean_difference <= self.mean_bound


class Rung(Record):
    """One rung of the accuracy ladder: exported, converted, served, or served under load."""

    name: str
    precision: str
    reference: str = "framework"  # or the converted model
    samples: int
    differences: tuple[Difference, ...]  # none if it is the file of the rung before
    note: str = ""

    @property
    def fault(self) -> str:
        """What is wrong, in one line; empty if every output is within its bounds."""
        for bad in (each for each in self.differences if not each.ok):
            how = "has another shape" if bad.sample is None else "is not finite"
            if bad.max_difference is not None:
                how = (
                    f"differs from the {self.reference} by {bad.max_difference:.2g} deviations at "
                    f"most and {bad.mean_difference:.2g} on average; the bounds are "
                    f"{bad.max_bound:.2g} and {bad.mean_bound:.2g}"
                )
            if bad.sample is not None:
                values = f"{bad.value}, not {bad.reference_value}"
                how += f"; sample {bad.sample} of {self.samples} is {values}"
            return f"{self.name} {self.precision}: {bad.output} {how}"
        return ""

    @property
    def headline(self) -> str:
        """How far its outputs are from the reference's, at most."""
        largest = [each.max_difference or 0.0 for each in self.differences]
        return f"within {max(largest):.1e}" if largest else self.note

    def rows(self) -> list[dict[str, Value]]:
        """One row for each output, for a table."""
        head: dict[str, Value] = {"rung": self.name, "precision": self.precision}
        head |= {"compared with": self.reference, "samples": self.samples}
        columns = {"output", "max_difference", "mean_difference", "max_bound", "mean_bound"}
        found = [(each.model_dump(include=columns), each.ok) for each in self.differences]
        return [
            {**head, "verdict": "green" if ok else "red", **values, "reason": self.note}
            for values, ok in found or [({}, True)]
        ]


class Score(Record):
    """One of the task's metrics, as served and as the framework has it."""

    metric: str
    framework: float
    served: float
    bound: float
    better: Literal["higher", "lower"]

    @property
    def fault(self) -> str:
        """What is wrong, in one line; empty if the metric is kept."""
        if self.served >= self.bound if self.better == "higher" else self.served <= self.bound:
            return ""
        return (
            f"{self.metric} served is {self.served:.4f}; the framework's {self.framework:.4f} "
            f"asks for {self.bound:.4f}"
        )


class TableRow(Record):
    """The columns of NVIDIA's published tables, which ours have too; None was not measured."""

    gpu: str = ""
    model: str = ""
    dataset: str = ""
    scenario: str = ""  # offline, online or open loop
    backend: str = ""
    backend_accelerator: str = ""
    precision: str = ""
    model_format: str = ""
    cuda_graph: bool | None = None
    max_batch_size: int | None = None
    instances: int | None = None
    batch_size: int  # offline of a request, online the samples of a client's request
    concurrency: int  # 0 in an open loop
    throughput: float | None = None  # inferences (samples) per second
    client_send_ms: float | None = None
    network_server_send_recv_ms: float | None = None
    server_queue_ms: float | None = None
    server_compute_input_ms: float | None = None
    server_compute_infer_ms: float | None = None
    server_compute_output_ms: float | None = None
    client_recv_ms: float | None = None
    p50_latency_ms: float | None = None
    p90_latency_ms: float | None = None
    p95_latency_ms: float | None = None
    p99_latency_ms: float | None = None
    avg_latency_ms: float | None = None
    source: str = ""  # <experiment>/<stage>.json, or NVIDIA's document


class Row(TableRow):
    """A measured point. Its fields are the columns of `results.csv`, in their order: those of the
    published tables, then ours. What identifies a row is filled in when it is saved. Intervals are
    of 95 %. Columns of older schemas that are gone are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    cuda_graph: bool = False
    experiment: str = ""
    variant: str = ""  # of the network
    verdict: Verdict
    reason: str = ""  # what keeps the row from being believed, and what to do
    throughput_low: float | None = None
    throughput_high: float | None = None
    half_width: float | None = None  # of the throughput's interval (open loop: p50's), relative
    p50_low_ms: float | None = None  # None where so few requests bound nothing
    p50_high_ms: float | None = None
    p90_low_ms: float | None = None
    p90_high_ms: float | None = None
    p95_low_ms: float | None = None
    p95_high_ms: float | None = None
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    rate: float | None = None  # requests/s that were sent, in an open loop; None in a closed one
    # in an open loop latencies count from when a request was due; these from when it was sent
    p50_sent_ms: float | None = None
    p99_sent_ms: float | None = None
    send_delay_p99_ms: float | None = None
    requests: int | None = None  # without each client's first
    executed_batch: float | None = None  # samples in an execution, on average
    client_overhead: float | None = None  # share of its time that the client spends on itself
    pace: float | None = None  # GFLOP/s of a fixed kernel before and after the point, on average
    distinct_rows: int | None = None  # different samples that were sent in turn
    repeated: bool = False  # whether each request was the same one
    hit_rate: float | None = None  # share of different keys that a store's cache had
    default_share: float | None = None  # of vectors that were the default instead
    background_cpu_cores: float | None = None  # processor time that other processes took
    littles_law: float | None = None  # throughput x latency / (batch x concurrency)
    bare_throughput: float | None = None
    served_bare_ratio: float | None = None
    served_bare_low: float | None = None
    served_bare_high: float | None = None
    ratio_verdict: str = ""
    serving_ms: float | None = None  # latency of a request, less that of a bare call
    # latency of a request to a model with the same tensors that computes nothing: what Triton, the
    # wire and the adapter cost for them; and what serving takes more than this
    floor_ms: float | None = None
    floor_reason: str = ""  # why there is none
    adapter_ms: float | None = None
    adapter_low_ms: float | None = None
    adapter_high_ms: float | None = None
    gflops: float | None = None  # 10^9 operations/s: throughput x what the graph needs for a sample
    intensity: float | None = None  # operations for each byte that a sample must move at least
    limit: Literal["", "compute", "memory"] = ""  # which of the machine's peaks is nearer
    limit_share: float | None = None  # of the throughput that this peak would allow
    gpu_utilisation: float | None = None  # a share from 0 to 1
    gpu_utilisation_max: float | None = None
    gpu_memory_mb: float | None = None
    gpu_memory_max_mb: float | None = None
    gpu_power_w: float | None = None
    gpu_power_max_w: float | None = None

    def point(self, scenario: str) -> str:
        """The name of its requests in the file beside its result."""
        if self.rate:
            return f"rate_{self.rate}"
        if scenario == "offline":
            return f"batch_{self.batch_size}{'_repeated' if self.repeated else ''}"
        return f"clients_{self.concurrency}"


class Fingerprint(Record):
    """All that a stage reads, taken before it runs: two equal fingerprints, one outcome."""

    config: dict[str, Value]  # the configuration fields that decide the outcome
    notebook: str  # SHA-256 of the notebook's cells
    versions: dict[str, str]  # of the runtimes
    inputs: dict[str, str]  # SHA-256 or name of each input
    modules: dict[str, str] = {}  # SHA-256 of each file of this package that the stage read


class Source(Record):
    """Which source and which command made a result."""

    git_commit: str
    command: str


class ArtefactFacts(Record):
    """The artefact of a stage: its folder, hashes, and what its maker wrote down."""

    folder: str
    sha256: str
    size_mb: float
    files: dict[str, str]  # name -> SHA-256
    facts: dict[str, JsonValue] = {}


class GpuState(Record):
    """The GPU at the start and at the end of a measurement, and what changed meanwhile."""

    start: dict[str, Value]
    end: dict[str, Value]
    changes: tuple[str, ...]
    load_from: tuple[str, ...]  # where utilisation, memory and power were read


class LookupPass(Record):
    """The whole evaluation set sent once to a store, request after request."""

    name: str  # "cold" begins with an empty cache
    batch_size: int
    hit_rate: float | None = None  # unknown from a server that takes no counters
    default_share: float | None = None
    scores: dict[str, float]
    p50_latency_ms: float
    # after each request: samples so far, hit rate, default share and milliseconds of this one
    course: tuple[tuple[int, float | None, float | None, float], ...]

    @property
    def row(self) -> dict[str, Value]:
        """What stands of it in a table."""
        return {
            "cache": self.name,
            "hit rate": self.hit_rate,
            "default vectors": self.default_share,
            **self.scores,
            "p50_latency_ms": self.p50_latency_ms,
        }


class Peaks(Record):
    """The most that this machine did in short measurements before and after the rows."""

    threads: int  # 0 on a GPU
    gflops: dict[str, float]  # 10^9 operations/s of matrix products, by precision
    memory_gb_s: float  # 10^9 bytes/s, read and written
    library: str
    seconds: float  # that measuring them took


class Measurement(Record):
    """The rows of a scenario and the circumstances of measuring them."""

    rows: tuple[Row, ...]
    distinct_rows: int
    background_before: float | None  # processor cores that others used just before a point, at most
    measuring_seconds: float | None = None  # of the stage, waiting for a quiet machine apart
    server_samples: int | None = None  # that the server counted, warm-up included
    server_executions: int | None = None
    passes: tuple[LookupPass, ...] = ()
    requests_file: str = ""  # beside the result, with all of `requests`
    gpu: GpuState | None = None
    peaks: Peaks | None = None  # None where this process cannot compute on what serves
    # of each run the start and end of every request (ns, [n, 2]), or bare throughputs
    requests: SkipJsonSchema[dict[str, NDArray[np.generic]]] = Field({}, exclude=True, repr=False)

    def frame(self) -> "DataFrame":
        """The rows as a table."""
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
    """Where the time of a converted model goes, as its runtime's own profiler tells."""

    batch_size: int = 0
    threads: int = 0
    operators: tuple[Operator, ...] = ()  # the longest first
    findings: tuple[str, ...] = ()  # what is to be noticed, in sentences
    reason: str = ""  # why there is none

    @property
    def caption(self) -> str:
        """What it is of, in one line, or why there is none."""
        return self.reason or f"A run of {self.batch_size} samples, with {self.threads} threads"

    def rows(self, most: int = 12) -> list[dict[str, Value]]:
        """One row for each of the longest, for a table, and one for all others together."""
        total = sum(each.ms for each in self.operators) or 1.0
        rest = self.operators[most:]
        found: list[dict[str, Value]] = [
            {"operator": each.kind, "share": each.ms / total, **each.model_dump(exclude={"kind"})}
            for each in self.operators[:most]
        ]
        if rest:
            ms, calls = sum(each.ms for each in rest), sum(each.calls for each in rest)
            found.append({"operator": "others", "share": ms / total, "calls": calls, "ms": ms})
        return found


class Result(Record):
    """The content of `<stage>.json`; a file of a schema version not named here is not read."""

    schema_version: Literal[2, 3] = 3  # 2 has no intervals
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
    machine: dict[str, Value] = {}  # in the fields of MLPerf's system description
    rungs: tuple[Rung, ...] = ()
    scores: tuple[Score, ...] = ()
    facts: dict[str, JsonValue] = {}
    artefact: ArtefactFacts | None = None
    measurement: Measurement | None = None
    profile: Profile | None = None
