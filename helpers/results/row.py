"""Define `Row`, a line of `results.csv`, and its columns that NVIDIA's published tables have."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Quality = Literal[
    "stable",
    "imprecise",  # the 95% CI of its throughput is too wide
    "noisy",
    "too few requests",
    "client-bound",
    "saturated",  # the request rate exceeds the server's capacity
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


def clients_of(concurrency: float) -> str:
    """Return a number of clients in words: "1 client", "4 clients"."""
    return f"{concurrency:,.0f} client{'' if concurrency == 1 else 's'}"


class Record(BaseModel):
    """Immutable data without other fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="null", arbitrary_types_allowed=True
    )


class TableRow(Record):
    """The columns of NVIDIA's published tables; None: not measured."""

    gpu: str = ""
    model: str = ""
    dataset: str = ""
    scenario: str = ""  # offline, online or request rate
    backend: str = ""
    backend_accelerator: str = ""
    precision: str = ""
    model_format: str = ""
    cuda_graph: bool | None = None
    max_batch_size: int | None = None
    instances: int | None = None
    batch_size: int  # samples per request
    concurrency: int  # clients; 0 in request-rate mode
    throughput: float | None = None  # samples per second
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
    """A measurement: its fields are the columns of `results.csv` in order.

    Those of the published tables come first; `save` fills in those that identify the row. Intervals
    are 95% CIs. Unknown columns of older schemas are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    cuda_graph: bool = False
    experiment: str = ""
    variant: str = ""  # of the network
    quality: Quality
    reason: str = ""  # why the quality is not stable, and what to do
    throughput_low: float | None = None
    throughput_high: float | None = None
    # relative, of the throughput (request rate: of p50), from its 95% CI: sqrt(high / low) - 1
    margin_of_error: float | None = None
    p50_low_ms: float | None = None  # None with too few requests for an interval
    p50_high_ms: float | None = None
    p90_low_ms: float | None = None
    p90_high_ms: float | None = None
    p95_low_ms: float | None = None
    p95_high_ms: float | None = None
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    rate: float | None = None  # requests/s, in request-rate mode; None in concurrency mode
    # in request-rate mode latencies count from when a request was due; these from when it was sent
    p50_sent_ms: float | None = None
    p99_sent_ms: float | None = None
    send_delay_p99_ms: float | None = None
    requests: int | None = None  # without the first of each client
    average_batch_size: float | None = None  # Triton: inference count / execution count
    client_overhead: float | None = None  # share of the load generator's time outside requests
    # machine speed: mean GFLOP/s of a reference kernel before and after each run
    machine_gflops: float | None = None
    distinct_rows: int | None = None  # different samples that were sent, one after the other
    repeated: bool = False  # whether each request was the same
    models_ms: dict[str, float] = {}  # of an ensemble: mean time in each model, queue included
    hit_rate: float | None = None  # share of different keys found in the parameter server's cache
    default_share: float | None = None  # share of default vectors
    background_cpu_cores: float | None = None  # CPU cores used by other processes
    littles_law: float | None = None  # throughput x latency / (batch x concurrency)
    in_process_throughput: float | None = None
    relative_throughput: float | None = None
    relative_throughput_low: float | None = None
    relative_throughput_high: float | None = None
    relative_quality: str = ""
    # latency of a request minus that of an in-process call
    serving_overhead_ms: float | None = None
    # latency of the no-op model, which has the same tensors and computes nothing: the overhead of
    # Triton, transport and adapter; the residual is the rest of the serving overhead
    noop_latency_ms: float | None = None
    noop_reason: str = ""  # why there is no such latency
    residual_overhead_ms: float | None = None
    residual_overhead_low_ms: float | None = None
    residual_overhead_high_ms: float | None = None
    gflops: float | None = None  # 10^9 operations/s: throughput x operations per sample
    # operations per byte, for the fewest bytes that a sample must move
    intensity: float | None = None
    roofline_bound: Literal["", "compute", "memory"] = ""  # the lower of the machine's rates
    roofline_share: float | None = None  # throughput / throughput at this rate
    # largest resident sets of the server's processes, added up: shared pages count once for each
    server_peak_memory_mb: float | None = None
    gpu_utilisation: float | None = None  # a share from 0 to 1
    gpu_utilisation_max: float | None = None
    gpu_memory_mb: float | None = None
    gpu_memory_max_mb: float | None = None
    gpu_power_w: float | None = None
    gpu_power_max_w: float | None = None

    def point(self, scenario: str) -> str:
        """Return the name of its requests in the file next to its result."""
        if self.rate:
            return f"rate_{self.rate}"
        if scenario == "offline":
            return f"batch_{self.batch_size}{'_repeated' if self.repeated else ''}"
        return f"clients_{self.concurrency}"
