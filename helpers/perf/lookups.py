"""What a store of embeddings meets from its first request on: with an empty cache, then a warm one.

With asynchronous insertion the answers of a cold cache hold default vectors: what that costs in
accuracy stands beside what it saves in time.
"""

import time
from typing import TYPE_CHECKING

import numpy as np

from helpers.config import DeployConfig
from helpers.display import COLOURS, INK, number, picture, subplots, table
from helpers.inference import open_dataset, requests
from helpers.perf.sweep import LOOKUPS, count, lookup_shares
from helpers.results import LookupPass, Measurement
from helpers.triton import Server

if TYPE_CHECKING:
    from IPython.display import Image

REQUESTS = 32  # of a pass, about
INSERT_SECONDS = 1.0  # that what a pass missed is given to reach the cache


def measure(config: DeployConfig, server: Server) -> tuple[LookupPass, ...]:
    """Send the whole evaluation set twice, request after request, to a server that has just been
    started. One before 23.05 takes no counters from a Python backend, and shares are unknown.
    """
    dataset = open_dataset(config)
    size = min(config.max_batch_size, -(-len(dataset) // REQUESTS))
    found = []
    for name in ("cold", "warm"):
        first = before = server.counters(LOOKUPS)
        answers, course, done = [], [], 0
        for batch in requests(config, dataset, size):
            start = time.perf_counter()
            answers.append(server.infer(config.model, batch))
            took_ms = 1000 * (time.perf_counter() - start)
            done += count(batch)
            after = server.counters(LOOKUPS)
            shares = lookup_shares(before, after)
            course.append((done, shares.get("hit_rate"), shares.get("default_share"), took_ms))
            before = after
        joined = {each: np.concatenate([a[each] for a in answers]) for each in answers[0]}
        found.append(
            LookupPass(
                name=name,
                batch_size=size,
                **lookup_shares(first, before),
                scores=dataset.score(joined),
                p50_latency_ms=float(np.median([took for *_, took in course])),
                course=tuple(course),
            )
        )
        if found[-1].hit_rate is not None:
            print(
                f"{name}: {found[-1].hit_rate:.1%} of the different keys in the cache, "
                f"{found[-1].default_share:.1%} default vectors"
            )
        if found[-1].default_share != 0:
            time.sleep(INSERT_SECONDS)
    return tuple(found)


def show_passes(measurement: Measurement) -> None:
    """Display how a store warms up, request by request: hit rate, default vectors, latency, and
    what its answers were worth. Nothing, where there is no store.
    """
    if not measurement.passes:
        return
    from IPython.display import display

    rows = [{"samples per request": each.batch_size, **each.row} for each in measurement.passes]
    display(table(rows, "All requests of the evaluation set, from the first"))  # type: ignore[no-untyped-call]
    display(_course(measurement))  # type: ignore[no-untyped-call]


def _course(measurement: Measurement) -> "Image":
    figure, (shares, times) = subplots("Cache warm-up", 2, 3.3)
    start = 0
    for each in measurement.passes:
        samples, hits, defaults, took = np.array(each.course, float).T
        places = (start + samples) / 1000
        first = each is measurement.passes[0]
        label = "in the cache (of different keys)" if first else None
        shares.plot(places, 100 * hits, color=COLOURS[0], lw=1.3, label=label)
        label = "default vectors (of all)" if first else None
        shares.plot(places, 100 * defaults, color=COLOURS[1], lw=1.3, ls="--", label=label)
        times.plot(places, took, color=COLOURS[0], lw=1.3)
        start += samples[-1]
        for axes in (shares, times):
            axes.axvline(start / 1000, color=INK, lw=0.6, ls=":")
    shares.set(xlabel="samples sent (thousands)", ylabel="share (%)", ylim=(-3, 103))
    shares.legend(frameon=False, fontsize=8)
    times.set(xlabel="samples sent (thousands)", ylabel="request latency (ms)")
    times.set_ylim(bottom=0)
    for axes in (shares, times):
        axes.yaxis.set_major_formatter(number)
    cold, *_, warm = measurement.passes
    text = "The server reports no hit rate. "
    if cold.hit_rate is not None:
        text = (
            f"First pass over the evaluation set: hit rate {cold.hit_rate:.1%}, default vectors "
            f"{cold.default_share:.2%}. Last pass: {warm.hit_rate:.1%} and "
            f"{warm.default_share:.2%}. "
        )
    took_ms = f"{cold.p50_latency_ms:.1f} ms, then {warm.p50_latency_ms:.1f} ms"
    return picture(figure, f"{text}Median request latency: {took_ms}.")
