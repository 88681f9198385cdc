"""The settings of a measurement by name: NVIDIA's of a published row, ours of a measured one, and
the reasons why a comparison of both may be unfair.

Each has a list of values, so that those of several rows or experiments can be put together.
"""

from collections.abc import Mapping

from helpers.config import PROTOCOLS, Server
from helpers.config import Value as Field
from helpers.report.nvidia.rows import PublishedRow, accelerator, served_as, violates_littles_law
from helpers.results import Row

Value = str | int
Settings = dict[str, list[Value]]  # none where it does not apply
ADAPTER = "Python backend"  # in the name of the backend of a row that the adapter served
PIXELS, TOKENS = 224, 384  # of a side of ResNet50's images, of BERT's sequences
CAPTURED = {True: "captured", False: "not captured"}
TF32 = {True: "used, as the runtime does by default", False: "not used: forbidden"}
NO_TF32 = "not used: no fp32 arithmetic, or a GPU without TF32"
SENT = {"none": "in the request", "system": "in shared memory", "cuda": "in CUDA's shared memory"}
NOTES = {
    "batch size": "the nearest published",
    "clients": "the nearest published",
    "embedding lookup": "NVIDIA's HPS is now deprecated",
}


def published_settings(row: PublishedRow) -> Settings:
    """Return NVIDIA's settings of a row."""
    setup = row.setup
    model_format, precision, accelerated_by = served_as(row)
    settings = {
        "GPU": row.gpu,
        "variant of the network": setup.variant or [],
        "Triton release": setup.release,
        "protocol": setup.protocol,
        "tensors": SENT[setup.shared_memory if row.scenario == "offline" else "none"],
        "backend": _backend(row),
        "format": model_format,
        "precision": precision,
        "TF32": TF32[True] if setup.tf32 else NO_TF32,
        "accelerator": accelerated_by or "none",
        "CUDA graphs": CAPTURED[setup.cuda_graph],
        "instances": setup.instances or row.instances,
        "largest batch": row.max_batch_size,
        "batch size": row.batch_size,
        "clients": row.concurrency,
        "samples sent": setup.inputs,
        "image size (pixels)": PIXELS,
        "sequence length": TOKENS,
        "precision of embedding tables": "fp32",
        **setup.settings,
    }
    return {name: [*v] if isinstance(v, list) else [v] for name, v in settings.items()}


def _backend(row: PublishedRow) -> str:
    return row.backend.removeprefix("NVIDIA Merlin HPS + ")


def measured_settings(
    row: Row, config: Mapping[str, Field], published: PublishedRow
) -> dict[str, Field]:
    """Return our settings of a row, in the published row's words where only a part matters."""
    server = Server.model_validate(config.get("server") or {})
    # There is one release of the embedded server.
    release = Server().release if server.kind == "embedded" else server.release
    is_offline, inputs = row.scenario == "offline", published.setup.inputs
    return {
        "GPU": row.gpu,
        "variant of the network": row.variant,
        "Triton release": release,
        "protocol": PROTOCOLS["grpc" if config.get("protocol") == "grpc" else "http"],
        "tensors": SENT[str(config.get("shared_memory", "none")) if is_offline else "none"],
        "backend": ADAPTER if ADAPTER in row.backend else _backend(published),
        "format": row.model_format,
        "precision": row.precision,
        "accelerator": accelerator(row) or "none",
        "CUDA graphs": CAPTURED[row.cuda_graph],
        "instances": row.instances,
        "batch size": row.batch_size,
        "clients": row.concurrency,
        "samples sent": inputs if "of the data set" in inputs else "samples of a data set",
        "embedding lookup": (
            "this package's parameter server" if config.get("lookup") == "hps" else "in memory"
        ),
        "image size (pixels)": config.get("crop_size") or PIXELS,
        "sequence length": config.get("max_seq_length") or TOKENS,
        "precision of embedding tables": config.get("table_precision") or "fp32",
    }


def reasons(row: Row, config: Mapping[str, Field], published: PublishedRow) -> tuple[str, ...]:
    """Return every reason why a measurement and a published row may not be comparable."""
    setup, ours = published.setup, measured_settings(row, config, published)
    precision = served_as(published)[1]
    differences = [
        _difference(name, ours[name], values[0], NOTES.get(name) or setup.notes.get(name, ""))
        for name, values in published_settings(published).items()
        if name in ours and values and ours[name] != values[0]
    ]
    particular = {
        f"NVIDIA's row is labelled {published.precision}, but it is {precision.lower()}": (
            published.precision != precision
        ),
        "NVIDIA's fp32 presumably ran in TF32, its runtime's default": setup.tf32,
        "our checkpoint is trained on generated data": config.get("checkpoint") == "fitted",
        f"our measurement is {row.quality}": row.quality != "stable",
        f"NVIDIA's row contradicts Little's law (ratio {published.littles_law or 0:.2f})": (
            violates_littles_law(published)
        ),
    }
    return (*differences, *(text for text, holds in particular.items() if holds))


def _difference(name: str, ours: Field, theirs: Value, note: str) -> str:
    one, other = (f"{v:,}" if isinstance(v, int) else str(v or "none") for v in (ours, theirs))
    other = other.removeprefix("NVIDIA ")  # the sentence has it
    return f"{name}: ours {one}, NVIDIA's {other}{f' ({note})' if note else ''}"
