"""The configurations that a lesson compares: each differs from the experiment in one respect."""

from collections.abc import Sequence
from itertools import product

from helpers import formats
from helpers.config import PROTOCOLS, LessonConfig, Value, changed
from helpers.errors import ParameterError
from helpers.inference import physical_cores, threads
from helpers.machine import why_unavailable
from helpers.measure import Variant

DELAYS_US = (0, 1000, 10_000)
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
CALIBRATION_SAMPLES = 32  # int8: enough for a lesson, and a small set has no more
MOST_CLIENTS = 16  # more would take the CPU from the server


def clients(config: LessonConfig) -> tuple[int, int]:
    """Return one client, and as many as fill the largest batch, but 2 at least."""
    filling = config.max_batch_size // config.online_batch_size
    return 1, max(2, min(filling, MOST_CLIENTS))


def batchers(config: LessonConfig) -> list[Variant]:
    """Return no batcher, then each delay, then the longer delays with preferred sizes."""
    same = {"instances": config.instances.online, "threads": threads(config, "online")}
    base = changed(config, same)  # offline too, where there is no batcher
    variants = [Variant("no batcher", base, "offline")]
    preferred = config.preferred_batch_sizes or [config.max_batch_size]
    preference = f"prefers {' and '.join(map(str, preferred))}"
    for sizes, delays in (([], DELAYS_US), (preferred, DELAYS_US[1:])):
        for delay in delays:
            name = f"delay {delay / 1000:g} ms{f', {preference}' if sizes else ''}"
            fields: dict[str, Value] = {"max_queue_delay_us": delay}
            fields["preferred_batch_sizes"] = [*sizes]
            variants.append(Variant(name, changed(base, fields)))
    return variants


def sharings(config: LessonConfig) -> list[Variant]:
    """Return one and two instances, named by instances × threads: with one thread, a share of the
    cores, or all of them.
    """
    cores = physical_cores()
    pairs = dict.fromkeys([(1, 1), (1, cores), (2, max(1, cores // 2)), (2, cores)])
    variants = []
    for instances, count in pairs:
        name = f"{instances} instance{'s' * (instances > 1)} × {count} thread{'s' * (count > 1)}"
        variants.append(Variant(name, changed(config, {"instances": instances, "threads": count})))
    return variants


def precisions(config: LessonConfig) -> tuple[list[Variant], dict[str, str]]:
    """Return the precisions of one format, the format with most precisions for the experiment's
    export; and why the others cannot run here.
    """
    name = formats.most_precisions(config.export_format, config.device)
    base: dict[str, Value] = {"format": name, "accelerator": "none", "accelerator_precision": None}
    variants, left = list[Variant](), dict[str, str]()
    for precision in PRECISIONS:
        fields = base | {"precision": precision}
        if precision == "int8":
            fields["calibration_samples"] = CALIBRATION_SAMPLES
        try:
            chosen = changed(config, fields)
            reason = why_unavailable(chosen)
        except ParameterError as error:
            reason = str(error)
        if reason:
            left[precision] = reason
        else:
            variants.append(Variant(precision, chosen))
    return variants, left


def protocols(config: LessonConfig) -> list[Variant]:
    """Return both protocols, each without and with shared memory."""
    shared = "system" if config.shared_memory == "none" else config.shared_memory
    variants = []
    for (protocol, name), memory in product(PROTOCOLS.items(), ("none", shared)):
        fields: dict[str, Value] = {"protocol": protocol, "shared_memory": memory}
        title = f"{name} with shared memory" if memory == shared else name
        variants.append(Variant(title, changed(config, fields)))
    return variants


def described(variants: Sequence[Variant], *fields: str) -> list[dict[str, Value]]:
    """Return one row for each configuration, with the fields that differ."""
    rows = []
    for variant in variants:
        values = variant.config.model_dump(include=set(fields))
        if "instances" in values:
            values["instances"] = variant.config.instances.online
        if variant.scenario == "offline":  # without a batcher, and so without its fields
            values = dict.fromkeys(values)
        rows.append({"configuration": variant.name, **values})
    return rows
