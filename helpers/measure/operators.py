"""Profile a converted model by its runtime's own profiler, and find where its time goes."""

import re
from collections import defaultdict
from collections.abc import Sequence
from math import ceil, log2

from helpers import formats, models
from helpers.config import ConvertConfig
from helpers.formats import Arrays, OperatorTime, instructions
from helpers.inference import ensemble, exported_work, open_dataset, physical_cores, some
from helpers.measure import background, peaks
from helpers.results import Operator, Profile
from helpers.store import Artifact

# A run computes so many operations at least: enough to be timed, and a batch that a user would send
OPERATIONS, MOST_SAMPLES, SAMPLES = 2e10, 2048, 8
NOTICED = 0.1  # of the time, that conversions may take without a word
KEPT = 0.9  # of the time of HEAVY operators, in the requested precision, or it is reported
HEAVY = "Matrix multiplications and convolutions"
# Names of operators, in ONNX Runtime's and in OpenVINO's words
PRODUCTS = re.compile(r"Conv(?!ert)|Gemm|MatMul|FullyConnected|Attention|Attn|LSTM|RNN")
CONVERSIONS = re.compile(r"[Qq]uantize|Reorder|Convert|^Cast")


def profile_operators(config: ConvertConfig, artifact: Artifact) -> Profile:
    """Profile a converted model on this CPU, one thread per physical core; or return why not."""
    fmt, threads = formats.get(config.format), physical_cores()
    if config.device == "gpu" or ensemble.needs_native_backend(config, config.format):
        return Profile(reason="not profiled: this process does not run the model on a CPU")
    if fmt.profile is None:
        name = fmt.DISPLAY_NAMES[0]
        return Profile(reason=f"not profiled: {name} does not report the time of operators")
    precision, work = config.precision, exported_work(config)
    size, inputs = graph_batch(config, artifact, OPERATIONS)
    with background.exclusive_lock():
        before = peaks.measure(config.device, threads, precision)
        operators = grouped(fmt.profile(artifact.folder / fmt.FILE, threads, inputs))
        peak = peaks.highest_peaks(before, peaks.measure(config.device, threads, precision))
    operations = work.flop * size if work else 0
    rate = peak.gflops.get(precision, 0) if peak else 0
    findings = explain(operators, precision, instructions(precision), operations, rate)
    return Profile(batch_size=size, threads=threads, operators=operators, findings=findings)


def graph_batch(config: ConvertConfig, artifact: Artifact, operations: float) -> tuple[int, Arrays]:
    """Return a batch size with at least `operations`, if a user would send it, and its inputs."""
    work = exported_work(config)
    samples = 2 ** ceil(log2(operations / work.flop)) if work and work.flop else SAMPLES
    size = models.at_once(config.model, max(1, min(samples, MOST_SAMPLES)))
    batch = some(config, open_dataset(config), size)
    return size, ensemble.graph_inputs(config, artifact.folder, batch)


def grouped(calls: Sequence[OperatorTime]) -> tuple[Operator, ...]:
    """Group calls of one kind, kernel and precision, the longest first."""
    groups: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for call in calls:
        groups[call["kind"], call["kernel"], call["precision"]].append(call["ms"])
    named = [
        Operator(kind=kind, kernel=kernel, precision=precision, calls=len(times), ms=sum(times))
        for (kind, kernel, precision), times in groups.items()
    ]
    return tuple(sorted(named, key=lambda operator: operator.ms, reverse=True))


def explain(
    operators: Sequence[Operator],
    precision: str,
    cpu_instructions: Sequence[str],
    operations: float = 0,
    peak: float = 0,
) -> tuple[str, ...]:
    """Return the findings: where the time goes, and whether matrix multiplications compute in the
    requested `precision`. `cpu_instructions` and `peak`, the machine's GEMM rate (GFLOP/s), are for
    that precision. `operations` are those of the profiled batch. What is not known is 0.
    """
    products = [operator for operator in operators if PRODUCTS.search(operator.kind)]
    rest = [operator for operator in operators if operator not in products]
    total, taken = _ms(operators), _ms(products)
    if not total or not products:
        return ()
    rate = operations / (taken or 1) / 1e6  # GFLOP/s
    speed = f", at {rate:,.0f} GFLOP/s" if rate else ""
    speed += f" ({rate / peak:.0%} of the measured {precision} GEMM rate)" if rate and peak else ""
    others = _shares(rest, total, "kind")
    others = f"The rest: {others}." if others else "No other operator takes 1% or more."
    lines = [f"{HEAVY} take {taken / total:.0%} of the time{speed}. {others}"]
    kept = _ms([operator for operator in products if operator.precision == precision])
    if kept < KEPT * taken:
        kinds = _shares(products, taken, "precision")
        lines.append(f"The requested precision is {precision}, but they compute in {kinds}.")
        if not cpu_instructions:
            lines[-1] += f" This CPU has no instructions for {precision}: it gains no speed."
    converting = [operator for operator in rest if CONVERSIONS.search(operator.kind)]
    if (share := _ms(converting) / total) > NOTICED:
        kinds = _shares(converting, total, "kind")
        lines.append(
            f"Conversions between precisions and layouts take {share:.0%} of the time: {kinds}. "
            "Keep the operators between two matrix multiplications in one precision."
        )
    return tuple(lines)


def _ms(operators: Sequence[Operator]) -> float:
    return sum(operator.ms for operator in operators)


def _shares(operators: Sequence[Operator], total: float, column: str) -> str:
    """Return the three largest groups with their shares of a time, those of 1% or more."""
    times: defaultdict[str, float] = defaultdict(float)
    for operator in operators:
        times[getattr(operator, column)] += operator.ms
    largest = sorted(times, key=times.__getitem__, reverse=True)[:3]
    named = [f"{name} {times[name] / total:.0%}" for name in largest if times[name] >= total / 100]
    return ", ".join(named)
