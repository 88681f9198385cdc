"""What a conversion changed: operators in the files and as executed, and the time of a call."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import median
from timeit import timeit

from helpers import formats
from helpers.config import ConvertConfig, Value
from helpers.errors import one_line
from helpers.formats import Arrays, Session
from helpers.inference import counted, ensemble, is_as_exported, physical_cores, require
from helpers.measure import background
from helpers.measure.interleave import interleave, paired_ratio
from helpers.measure.operators import graph_batch
from helpers.results import Profile
from helpers.store import Artifact

OPERATIONS = 2e9  # of a timed call at least, if so many samples are allowed
FEWEST, MOST, SECONDS = 3, 7, 0.3  # calls of each graph, and for how long they go on
LINES = 10  # of a column of operators
BLANK = "\N{NO-BREAK SPACE}"  # below the last line of a column
QUANTISED = ("QuantizeLinear", "DequantizeLinear", "FakeQuantize")  # in ONNX, in OpenVINO
Rows = list[dict[str, Value]]


@dataclass(frozen=True)
class Call:
    """A graph that was called, and how long each call took; or why it was not."""

    graph: str  # "exported" or "converted"
    runtime: str
    ms: tuple[float, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Changes:
    """What a conversion changed."""

    graphs: dict[str, Counter[str]]  # of each file and of the execution: its operators by kind
    calls: tuple[Call, ...]
    findings: tuple[str, ...]  # in sentences
    caption: str  # of the calls

    def operators(self) -> Rows:
        """Return one column for each graph, its most frequent operators below one another."""
        lines = zip_longest(*map(_column, self.graphs.values()), fillvalue=BLANK)
        return [dict(zip(self.graphs, line, strict=True)) for line in lines]

    def times(self) -> Rows:
        """Return one row for each graph, with the reason where it was not called."""
        is_lacking = any(call.reason for call in self.calls)
        return [
            {
                "graph": call.graph,
                "runtime": call.runtime,
                "median_ms": median(call.ms) if call.ms else None,
                "fastest_ms": min(call.ms, default=None),
                "slowest_ms": max(call.ms, default=None),
                **({"why not": call.reason} if is_lacking else {}),
            }
            for call in self.calls
        ]


def what_changed(config: ConvertConfig, artifact: Artifact, profile: Profile) -> Changes:
    """Compare the exported file with its conversion; `profile` has what is executed."""
    exported = require(config, "export")
    before, after = (formats.get(name) for name in (config.export_format, config.format))
    graphs = {f"exported: {before.DISPLAY_NAMES[1]}": counted(exported)}
    if not is_as_exported(config):
        graphs[f"converted: {after.DISPLAY_NAMES[1]}"] = counted(artifact)
    executed = Counter[str]()
    for operator in profile.operators:
        executed[operator.kind] += operator.calls
    graphs[f"executed: {after.DISPLAY_NAMES[0]}"] = executed
    graphs = {name: counts for name, counts in graphs.items() if counts}
    size, calls = _called(config, exported, artifact)
    findings = _summary(config, exported, artifact, executed), *_faster(calls)
    caption = "Not timed: there is only one graph"
    if calls:
        caption = f"Rough timing: batch size {size}, {physical_cores()} threads, alternating calls"
    return Changes(graphs, calls, findings, caption)


def _column(counts: Counter[str]) -> list[Value]:
    ordered = counts.most_common()
    lines: list[Value] = [
        f"{counts.total():,} operators of {len(counts)} kind{'s' * (len(counts) != 1)}"
    ]
    lines += [f"{count:,} × {kind}" for kind, count in ordered[:LINES]]
    if rest := ordered[LINES:]:
        lines.append(f"{sum(count for _, count in rest):,} of {len(rest)} other kinds")
    return lines


def _summary(
    config: ConvertConfig, exported: Artifact, artifact: Artifact, executed: Counter[str]
) -> str:
    """Return how the served file differs from the exported one, or that it does not."""
    before = formats.get(config.export_format).DISPLAY_NAMES[1]
    runtime, after = formats.get(config.format).DISPLAY_NAMES
    first, second = counted(exported).total(), counted(artifact).total()
    ran = f"{runtime} executes {executed.total():,} operators" if executed else ""
    if is_as_exported(config):
        text = f"The exported file is served unchanged: {after} in {config.precision}."
        return f"{text} {ran}; the file has {first:,}." if ran and first else text
    text = (
        f"{before} in {config.export_precision} ({exported.size_mb:,.1f} MB) was converted to "
        f"{after} in {config.precision} ({artifact.size_mb:,.1f} MB)."
    )
    if first and second:
        text += f" The file has {second:,} operators instead of {first:,}."
    if marks := sum(counted(artifact)[kind] for kind in QUANTISED):
        text += f" {marks:,} of them convert to or from 8-bit integers."
    return f"{text} {ran}." if ran else text


def _faster(calls: Sequence[Call]) -> list[str]:
    """Return how many times as fast the converted graph is, if both were called."""
    if len(calls) < 2 or not all(call.ms for call in calls):
        return []
    ratio = paired_ratio([call.ms for call in calls], 0, 1)
    doubt = "" if ratio.is_significant else ": inconclusive"
    return [f"The converted graph has {ratio.times} the speed of the exported one{doubt}."]


def _called(
    config: ConvertConfig, exported: Artifact, artifact: Artifact
) -> tuple[int, tuple[Call, ...]]:
    """Time both graphs unless they are one file; return the samples in a call too."""
    if is_as_exported(config):
        return 0, ()
    size, inputs = graph_batch(config, artifact, OPERATIONS)
    sides = (
        ("exported", exported, config.export_format, config.export_precision),
        ("converted", artifact, config.format, config.precision),
    )
    loaded = [_load(config, file, name, inputs) for _, file, name, _ in sides]
    times = iter(_alternate([session for session, _ in loaded if session], inputs))
    return size, tuple(
        Call(graph, _runtime(name, precision), tuple(next(times)) if session else (), reason)
        for (graph, _, name, precision), (session, reason) in zip(sides, loaded, strict=True)
    )


def _runtime(name: str, precision: str) -> str:
    fmt = formats.get(name)
    version = formats.installed_version(formats.distribution(fmt.RUNTIME[0]))
    return f"{fmt.DISPLAY_NAMES[0]} {version}, {fmt.DISPLAY_NAMES[1]} {precision}"


def _load(
    config: ConvertConfig, artifact: Artifact, name: str, inputs: Arrays
) -> tuple[Session | None, str]:
    """Load a graph and call it once; return its session, or why it cannot be timed."""
    fmt, reason = formats.get(name), why_unavailable(config, name)
    if reason:
        return None, reason
    try:
        session = fmt.load(artifact.folder / fmt.FILE, physical_cores(), config.device)
        session.run(inputs)
    except RuntimeError as error:  # of a GPU that is not there, or another kind of it
        return None, one_line(error, 200)
    return session, ""


def why_unavailable(config: ConvertConfig, name: str) -> str:
    """Return in one line why this process cannot run a format on the device; empty if it can."""
    if config.device not in formats.get(name).PRECISIONS:
        return f"not timed: {name} does not run on a {config.device.upper()}"
    if ensemble.needs_native_backend(config, name):
        return "not timed: only Triton's native backend runs it"
    missing = formats.missing(name, config.device)
    return f"not timed: {missing}" if missing else ""


def _alternate(sessions: Sequence[Session], inputs: Arrays) -> list[list[float]]:
    """Return the milliseconds of each session's calls."""

    def call(session: Session) -> float:
        return 1000 * timeit(lambda: session.run(inputs), number=1)

    calls = [partial(call, session) for session in sessions]
    with background.exclusive_lock():
        ends = time.monotonic() + SECONDS
        return interleave(
            calls, MOST, lambda runs: len(runs[0]) >= FEWEST and time.monotonic() > ends
        )
