"""Which of NVIDIA's published rows stands beside a measured one, their ratio, and every reason why
the two may not be comparable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from helpers.config import Server, Value
from helpers.perf import littles_law
from helpers.report.published import PublishedRow, breaks, gpus, tables
from helpers.results import Row

PROTOCOL = "HTTP"  # of our measurements, as `helpers.perf.analyzer` asks for it
ADAPTER = "Python backend"  # in the name of the backend of a row that the adapter served
ENSEMBLE = "NVIDIA Triton Ensemble (NVIDIA Merlin HPS + NVIDIA TensorRT)"
FORMATS = {ENSEMBLE: "NVIDIA TensorRT"}  # the graph's, behind the lookup
ACCELERATORS = {
    "TensorRT": "NVIDIA TensorRT",  # as ResNet50's tables say
    "trt": "NVIDIA TensorRT",
    "amp": "Automatic FP16",
    "openvino": "OpenVINO",
}


@dataclass(frozen=True)
class Pair:
    """A measured row and the published one beside it."""

    ours: Row
    theirs: PublishedRow
    reasons: tuple[str, ...]  # why the comparison may be unfair

    @property
    def ratio(self) -> float:
        """Our throughput over NVIDIA's."""
        return (self.ours.throughput or 0) / self.theirs.throughput

    def as_row(self) -> dict[str, Any]:
        """Give the pair as data: ours, NVIDIA's, the ratios and the reasons."""
        names = ("experiment", "gpu", "scenario", "batch_size", "concurrency", "throughput")
        p99, published = self.ours.p99_latency_ms, self.theirs.p99_latency_ms
        return {
            **self.ours.model_dump(include=set(names)),
            "p99_latency_ms": p99,
            **as_published(self.theirs),
            "throughput_ratio": self.ratio,
            "p99_latency_ratio": p99 / published if p99 and published else None,
            "reasons": "; ".join(self.reasons),
        }


def as_published(row: PublishedRow) -> dict[str, Any]:
    """Give a published row as the columns that stand beside ours."""
    return {
        "nvidia_gpu": row.gpu,
        "nvidia_dataset": row.dataset,
        "nvidia_served": row.label,
        "nvidia_batch_size": row.batch_size,
        "nvidia_concurrency": row.concurrency,
        "nvidia_throughput": row.throughput,
        "nvidia_p99_latency_ms": row.p99_latency_ms,
        "nvidia_littles_law": row.littles_law,
    }


def choose_gpu(published: Sequence[PublishedRow], gpu: str, device: str) -> str:
    """Name NVIDIA's GPU to compare with: the target's own where NVIDIA published it, else the
    slowest beside a processor and the fastest beside another GPU; "" if nothing is published.
    """
    names = gpus(published)
    if gpu in names or not names:
        return gpu if names else ""
    return names[0] if device == "cpu" else names[-1]


def compare(
    ours: Row, settings: Mapping[str, Value], published: Sequence[PublishedRow], gpu: str
) -> Pair | None:
    """Find the published row on `gpu` that is nearest to a measured one.

    `ours` is a row of `results.csv`, `settings` the configuration that it was measured with. None
    if ours holds no figure, or NVIDIA published nothing of its scenario and data set.
    """
    if ours.throughput is None or not (theirs := nearest(ours, published, gpu)):
        return None
    return Pair(ours, theirs, reasons(ours, settings, theirs))


def nearest(ours: Row, published: Sequence[PublishedRow], gpu: str) -> PublishedRow | None:
    """Choose the table of the same format, else precision, else accelerator, and of those the
    fastest; of that table the row of the nearest batch, then the nearest number of clients.
    """
    place = (gpu, ours.scenario)
    named = ("", ours.variant)
    found = [row for row in published if (row.gpu, row.scenario) == place and row.dataset in named]
    if not found:
        return None

    def distance(table: Sequence[PublishedRow]) -> tuple[bool | float, ...]:
        same = [is_ == was for is_, was in zip(_served(ours), _published(table[0]), strict=True)]
        return (*(not each for each in same), -max(row.throughput for row in table))

    table: Sequence[PublishedRow] = min([*tables(found).values()], key=distance)
    return min(
        table,
        key=lambda row: (
            abs(log2(row.batch_size / ours.batch_size)),
            abs(log2(row.concurrency / ours.concurrency)),
        ),
    )


def _served(ours: Row) -> tuple[str, str, str]:
    """Name format, precision and accelerator of a measured row, most important first."""
    accelerator = ours.backend_accelerator or ""
    return ours.model_format, ours.precision, ACCELERATORS.get(accelerator, accelerator)


def _published(row: PublishedRow) -> tuple[str, str, str]:
    """Name the same of a published row as it was, whatever its label says."""
    accelerator = ACCELERATORS.get(row.backend_accelerator, row.backend_accelerator)
    precision = "FP32" if _is_mislabelled(row) else row.precision
    return FORMATS.get(row.model_format, row.model_format), precision, accelerator


def _is_mislabelled(row: PublishedRow) -> bool:
    """Tell whether a row is one of TFT's TorchScript: exported in fp32, labelled FP16."""
    return row.model == "tft" and row.model_format.startswith("TorchScript")


def reasons(ours: Row, settings: Mapping[str, Value], theirs: PublishedRow) -> tuple[str, ...]:
    """Say every reason why a measured and a published row may not be comparable."""
    document = theirs.document
    is_offline = theirs.scenario == "offline"
    server = Server.model_validate(settings.get("server") or {})
    # There is one release of the embedded server.
    release = Server().release if server.kind == "embedded" else server.release
    memory = (settings.get("shared_memory", "none"), document.shared_memory)
    (format_, precision, accelerator), was = _served(ours), _published(theirs)
    started = theirs.instances if is_offline else document.instances_online or theirs.instances
    table = "" if started == theirs.instances else f"its table says {theirs.instances}"
    found = [
        _another("GPU", ours.gpu, theirs.gpu),
        _another("variant of the network", ours.variant, document.variant)
        if document.variant
        else "",
        _another("release of Triton", release, document.release),
        _another("protocol", PROTOCOL, document.protocol),
        _another("use of shared memory", *memory) if is_offline else "",
        "served by Triton's Python backend, not by a native one" if ADAPTER in ours.backend else "",
        _another("format", format_, was[0]),
        _another("precision", precision, was[1]),
        _another("accelerator", accelerator, was[2]),
        _another("batch", ours.batch_size, theirs.batch_size, "the nearest published"),
        _another("number of clients", ours.concurrency, theirs.concurrency, "the nearest"),
        _another("number of instances", ours.instances, started, table),
        *_sides(ours, settings, theirs),
    ]
    return tuple(filter(None, found))


def _another(what: str, ours: Any, theirs: Any, note: str = "") -> str:
    """Say that the two sides differ in something; "" if they do not."""
    if ours == theirs:
        return ""
    return f"another {what}: {_name(ours)}, not {_name(theirs)}{f' ({note})' if note else ''}"


def _name(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else value or "none"


def _sides(ours: Row, settings: Mapping[str, Value], theirs: PublishedRow) -> list[str]:
    """Say what is particular about one side: its labels, lookup, inputs and its own figures."""
    graphs = {True: "with CUDA graphs", False: "without CUDA graphs"}
    captured = bool(ours.cuda_graph)
    latency, flight = ours.avg_latency_ms, (ours.batch_size, ours.concurrency)
    law = littles_law(ours.throughput or 0, latency, *flight) if latency else None
    verdict = ours.verdict
    return [
        f"NVIDIA's is labelled {theirs.precision}, but its TorchScript is fp32"
        if _is_mislabelled(theirs)
        else "",
        f"ours is {graphs[captured]}, NVIDIA's {graphs[theirs.cuda_graph]}"
        if theirs.cuda_graph is not None and theirs.cuda_graph != captured
        else "",
        "NVIDIA's lookup is its hierarchical parameter server, ours a table in memory"
        if theirs.model_format == ENSEMBLE
        else "",
        f"NVIDIA sent {theirs.document.inputs}, we samples of a data set"
        if theirs.document.inputs
        else "",
        "checkpoint fitted to generated data" if settings.get("checkpoint") == "fitted" else "",
        f"our row is {verdict}" if verdict != "stable" else "",
        f"our row breaks Little's law ({law:.2f})" if breaks(law) else "",
        f"NVIDIA's row breaks Little's law ({theirs.littles_law:.2f})"
        if theirs.breaks_littles_law
        else "",
    ]
