"""Measure the machine's rates: matrix multiplications in a precision, and copies in memory.

A rate is the highest of many short calls before and after the rows, because a disturbance makes a
call slower and never faster. It is no theoretical limit: a model can exceed it. OpenVINO computes
the matrix multiplications, because no other library of a stage was faster in any precision.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import numpy as np

from helpers.formats import block_telemetry, installed_version
from helpers.inference import GraphCost
from helpers.results import Peaks, Row

SECONDS = 0.02  # for the matrix multiplications, and for the copy
LAYERS = 4  # matrix multiplications in a call, so that the call itself takes no time
WIDTHS = {"fp32": 512, "bf16": 512, "int8": 1024}  # of the square factor: 1 MB, as in an L2 cache
ROWS = 512  # of the other factor, for each thread
# Of each of two arrays: as large as a model's weights and much larger than an L2 cache. A large L3
# cache may hold both, as it may hold the weights.
COPIED_BYTES = 64 * 2**20
GPU_WIDTH, GPU_COPIED_BYTES = 8192, 2**30
PRECISIONS = ("fp32", "fp16", "bf16", "int8")  # in the order of the report
Call = Callable[[], object]


def measure(device: str, threads: int, precision: str) -> Peaks | None:
    """Measure the rates of a device, of a CPU in one precision; None without access to a GPU."""
    started = time.perf_counter()
    rates = _of_gpu() if device == "gpu" else _of_processor(threads, precision)
    if rates is None:
        return None
    gflops, memory = rates
    library = f"OpenVINO {installed_version('openvino')}, copies by numpy"
    if device == "gpu":
        threads, library = 0, f"torch {installed_version('torch')}"
    return Peaks(
        threads=threads,
        gflops={name: round(rate, 1) for name, rate in gflops.items()},
        memory_gb_s=round(memory, 1),
        library=library,
        seconds=round(time.perf_counter() - started, 2),
    )


def highest_peaks(before: Peaks | None, after: Peaks | None) -> Peaks | None:
    """Return the higher of two measurements of each rate."""
    if before is None or after is None:
        return before or after
    both = before, after
    names = sorted(before.gflops | after.gflops, key=PRECISIONS.index)
    gflops = {name: max(side.gflops.get(name, 0.0) for side in both) for name in names}
    memory, seconds = max(side.memory_gb_s for side in both), sum(side.seconds for side in both)
    higher = {"gflops": gflops, "memory_gb_s": memory, "seconds": round(seconds, 2)}
    return before.model_copy(update=higher)


def limited(row: Row, work: GraphCost, peaks: Peaks, precision: str) -> Row:
    """Add to a row which roofline bound is the nearer one, and its share of it.

    At the measured rates a sample takes at least the time of its operations in the precision, and
    at least that of its bytes. Source: Williams, Waterman and Patterson, "Roofline: an insightful
    visual performance model for multicore architectures", 2009.
    """
    peak = peaks.gflops.get(precision)
    if not row.throughput or not peak or not work.flop:  # a graph may have no matrix multiplication
        return row
    moved = work.bytes(precision, row.average_batch_size or row.batch_size)
    intensity, gflops = work.flop / moved, row.throughput * work.flop / 1e9
    by_memory = intensity * peaks.memory_gb_s
    columns: dict[str, object] = {"gflops": gflops, "intensity": intensity}
    columns["roofline_bound"] = "memory" if by_memory < peak else "compute"
    columns["roofline_share"] = gflops / min(peak, by_memory)
    return row.model_copy(update=columns)


def _fastest(call: Call) -> float:
    """Return the seconds of the fastest call, of three at least."""
    call()
    seconds: list[float] = []
    ends = time.perf_counter() + SECONDS
    while len(seconds) < 3 or time.perf_counter() < ends:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _of_processor(threads: int, precision: str) -> tuple[dict[str, float], float]:
    """Measure GFLOP/s in a precision, and GB/s."""
    count, call = _product(precision, threads)
    gflops = {precision: 2e-9 * count / _fastest(call)}
    source = np.ones(COPIED_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        seconds = _fastest(lambda: [*pool.map(lambda part: np.copyto(*part), parts)])
    return gflops, 2e-9 * source.nbytes / seconds


@cache
def _product(precision: str, threads: int) -> tuple[int, Call]:
    """Compile a chain of matrix multiplications; return its multiply-adds, and how to run it."""
    block_telemetry()
    import openvino
    from openvino import opset13 as ops

    rows, width = ROWS * threads, WIDTHS[precision]
    low, high = np.float32(-1.28), np.float32(1.27)
    random = np.random.default_rng(0)
    weights = random.integers(-127, 128, (width, width)).astype(np.int8)
    first = result = ops.parameter([rows, width], np.float32)
    for _ in range(LAYERS):
        if precision == "int8":
            result = ops.fake_quantize(result, low, high, low, high, 256)
            factor = ops.convert(ops.constant(weights), np.float32)
            factor = ops.multiply(factor, np.float32(0.01))
        else:
            factor = ops.constant(weights.astype(np.float32) / 100)
        result = ops.matmul(result, factor, False, True)
    result = ops.reduce_max(result, np.array([0, 1]))  # nothing to copy out
    properties: dict[str, object] = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    properties["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bf16" else "f32"
    model = openvino.Model([result], [first])
    request = openvino.Core().compile_model(model, "CPU", properties).create_infer_request()
    batch = random.standard_normal((rows, width), np.float32)
    return LAYERS * rows * width**2, lambda: request.infer([batch], share_inputs=True)


def _of_gpu() -> tuple[dict[str, float], float] | None:
    """Measure GFLOP/s by precision, and GB/s of the device's memory. Not yet run on a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None

    def timed(call: Call) -> float:
        return _fastest(lambda: (call(), torch.cuda.synchronize()))

    size, count, gflops = (GPU_WIDTH, GPU_WIDTH), 2e-9 * GPU_WIDTH**3, {}
    types = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    for name, dtype in types.items():
        factor = torch.randn(size, device="cuda").to(dtype)
        gflops[name] = count / timed(partial(torch.mm, factor, factor))
    matrix = torch.randint(-127, 128, size, dtype=torch.int8, device="cuda")
    gflops["int8"] = count / timed(lambda: torch._int_mm(matrix, matrix.t()))
    source = torch.ones(GPU_COPIED_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return gflops, 2e-9 * GPU_COPIED_BYTES / timed(lambda: target.copy_(source))
