"""How fast lookups are beside a plain array's and beside other libraries', in one run:

    python -m tests.hps.benchmark

Each line is a ratio of medians of runs that alternate, with one thread; 1.0 is `numpy.take` on one
array that holds all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from helpers.hps.cache import Cache
from helpers.hps.hash_map import HashMap
from helpers.hps.table import Table

ROWS, WIDTH, KEYS, RUNS = 200_000, 128, 4096 * 26, 21
Keys = NDArray[np.int64]
Way = Callable[[Keys], object]  # looks keys up
ALPHA = 1.45  # of NVIDIA's generator
MISSING = 0.01  # share of the different keys of a request


def power_law(draws: np.random.Generator, count: int) -> Keys:
    """Draw keys whose frequency falls as key^-ALPHA."""
    power = 1 - ALPHA
    real = (1 - draws.random(count) * (1 - (ROWS + 1.0) ** power)) ** (1 / power)
    keys: Keys = np.minimum(real.astype(np.int64) - 1, ROWS - 1)
    return keys


def others(rows: NDArray[np.float32]) -> dict[str, Way]:
    """Give other libraries' lookups, as far as they are installed."""
    found: dict[str, Way] = {}
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    table = torch.from_numpy(rows)
    found["torch.nn.functional.embedding"] = lambda keys: torch.nn.functional.embedding(
        torch.from_numpy(keys), table
    )
    try:
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )
    except (ImportError, OSError, RuntimeError) as error:
        print(f"FBGEMM is not installed: {' '.join(str(error).split())[:100]}")
        return found
    spec = ("", len(rows), rows.shape[1], SparseType.FP32, EmbeddingLocation.HOST)
    bags = IntNBitTableBatchedEmbeddingBagsCodegen(
        [spec], pooling_mode=PoolingMode.NONE, device="cpu", output_dtype=SparseType.FP32
    )
    bags.initialize_weights()
    bags.split_embedding_weights()[0][0].copy_(table.view(torch.uint8).view(len(rows), -1))
    offsets = torch.arange(KEYS + 1)
    found["FBGEMM's table-batched embeddings"] = lambda keys: bags(torch.from_numpy(keys), offsets)
    return found


def compare(ways: dict[str, Way], keys: list[Keys]) -> None:
    """Time all ways in turn, on different keys, and print the ratio of each to the first."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(RUNS):
        for name, look in ways.items():
            start = time.perf_counter()
            look(keys[run % len(keys)])
            taken[name].append(time.perf_counter() - start)
    first, *_ = taken.values()
    for name, times in taken.items():
        ratios = np.array(first) / np.array(times)
        low, high = np.quantile(ratios, [0.25, 0.75])
        middle = 1000 * np.median(times)
        print(f"  {name:36} {middle:7.2f} ms  {np.median(ratios):.2f} ({low:.2f} to {high:.2f})")


def beside_insertion(databases: HashMap, draws: np.random.Generator) -> None:
    """Time lookups of which half the keys are missing, answered by defaults, with nobody who
    inserts them and with a thread that does so all the time.
    """
    keys, out = draws.integers(0, ROWS, (5 * RUNS, KEYS)), np.empty((KEYS, WIDTH), np.float32)
    print("Half of the keys of each request are missing and inserted asynchronously:")
    for name in ("no insertion", "insertion"):
        table = Table(name, WIDTH, [databases], Cache(ROWS // 2, WIDTH), threshold=0.0)
        table.insert(np.arange(0, ROWS, 2))
        if name != "no insertion":
            Thread(target=table.run_insert_worker, daemon=True).start()
        taken = []
        for some in keys:
            start = time.perf_counter()
            table.lookup(some, out)
            taken.append(1000 * (time.perf_counter() - start))
        middle, slow = np.quantile(taken, [0.5, 0.99])
        print(f"  {name:18} median {middle:.2f} ms, p99 {slow:.2f}, slowest {max(taken):.2f}")


def main() -> None:
    """Print all figures."""
    draws = np.random.default_rng(0)
    rows = draws.standard_normal((ROWS, WIDTH), dtype=np.float32)
    everything = np.arange(ROWS)
    out = np.empty((KEYS, WIDTH), np.float32)
    databases = HashMap(WIDTH)
    databases.insert(everything, rows)
    full = Cache(ROWS, WIDTH)
    full.insert(everything, rows)
    table = Table("warm", WIDTH, [databases], full, threshold=1.1)
    plain: dict[str, Way] = {
        "numpy.take": lambda keys: np.take(rows, keys, axis=0, out=out, mode="clip"),
    }
    for name, keys in (
        ("uniform", [draws.integers(0, ROWS, KEYS) for _ in range(5)]),
        (f"power law {ALPHA}", [power_law(draws, KEYS) for _ in range(5)]),
    ):
        print(f"{KEYS:,} keys of {ROWS:,} rows of {WIDTH}, all cached, {name}:")
        compare({**plain, "parameter server": lambda k: table.lookup(k, out), **others(rows)}, keys)
    keys = [power_law(draws, KEYS) for _ in range(RUNS)]
    different = np.unique(np.concatenate(keys))
    gone = draws.permutation(different)[: int(MISSING * len(different))]
    known = np.setdiff1d(everything, gone)
    mostly = Table("mostly", WIDTH, [databases], threshold=1.1)
    print(f"{1 - MISSING:.0%} of the different keys in the cache, the others in the hash map:")
    taken, first = [], []
    for some in keys:
        mostly.cache = Cache(ROWS, WIDTH)
        mostly.cache.insert(known, rows[known])
        start = time.perf_counter()
        plain["numpy.take"](some)
        middle = time.perf_counter()
        mostly.lookup(some, out)
        first.append(middle - start)
        taken.append(time.perf_counter() - middle)
    ratios = np.array(first) / np.array(taken)
    print(f"  parameter server {1000 * np.median(taken):.2f} ms  {np.median(ratios):.2f}")
    print(f"  hit rate {mostly.counts.hit_rate:.4f}")
    beside_insertion(databases, draws)
    print(f"memory of the hash map: {databases.nbytes / rows.nbytes:.2f} times its vectors'")


if __name__ == "__main__":
    main()
