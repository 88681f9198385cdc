"""`Row`: a line of `results.csv`, and the part of it that NVIDIA's published tables have."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Quality = Literal[
    "stable",
    "imprecise",  # the interval of its throughput
    "noisy",
    "too few requests",
    "client-bound",
    "saturated",  # more requests a second than it can take
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
    of 95%. Columns of older schemas that are gone are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    cuda_graph: bool = False
    experiment: str = ""
    variant: str = ""  # of the network
    quality: Quality
    reason: str = ""  # what keeps the row from being believed, and what to do
    throughput_low: float | None = None
    throughput_high: float | None = None
    margin_of_error: float | None = (
        None  # of the throughput's interval (open loop: p50's), relative
    )
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
    average_batch_size: float | None = None  # samples in an execution, on average
    client_overhead: float | None = None  # share of its time that the client spends on itself
    machine_gflops: float | None = (
        None  # GFLOP/s of a fixed kernel before and after each run, on average
    )
    distinct_rows: int | None = None  # different samples that were sent in turn
    repeated: bool = False  # whether each request was the same one
    hit_rate: float | None = None  # share of different keys that a store's cache had
    default_share: float | None = None  # of vectors that were the default instead
    background_cpu_cores: float | None = None  # processor time that other processes took
    littles_law: float | None = None  # throughput x latency / (batch x concurrency)
    in_process_throughput: float | None = None
    relative_throughput: float | None = None
    relative_throughput_low: float | None = None
    relative_throughput_high: float | None = None
    relative_quality: str = ""
    serving_overhead_ms: float | None = None  # latency of a request, less that of a bare call
    # latency of a request to a model with the same tensors that computes nothing: what Triton, the
    # wire and the adapter cost for them; and what serving takes more than this
    noop_latency_ms: float | None = None
    noop_reason: str = ""  # why there is none
    residual_overhead_ms: float | None = None
    residual_overhead_low_ms: float | None = None
    residual_overhead_high_ms: float | None = None
    gflops: float | None = None  # 10^9 operations/s: throughput x what the graph needs for a sample
    intensity: float | None = None  # operations for each byte that a sample must move at least
    roofline_bound: Literal["", "compute", "memory"] = ""  # which of the machine's peaks is nearer
    roofline_share: float | None = None  # of the throughput that this peak would allow
    # largest resident sets of the server's processes, added up: shared pages count once for each
    server_peak_memory_mb: float | None = None
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
