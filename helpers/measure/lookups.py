"""Measure a parameter server from its first request on: with an empty cache, then a warm one.

With asynchronous insertion the responses of a cold cache hold default vectors, which cost accuracy.
"""

import time

import numpy as np

from helpers.config import DeployConfig
from helpers.inference import open_dataset, requests
from helpers.measure.sweep import LOOKUPS, cache_rates, count
from helpers.results import LookupPass
from helpers.triton import Server

REQUESTS = 32  # of a pass, about
INSERT_SECONDS = 1.0  # for missed keys to reach the cache


def measure(config: DeployConfig, server: Server) -> tuple[LookupPass, ...]:
    """Send the whole evaluation set twice, request after request, to a server that has just been
    started. A server before 23.05 takes no counters from a Python backend, so its shares are
    unknown.
    """
    dataset = open_dataset(config)
    size = min(config.max_batch_size, -(-len(dataset) // REQUESTS))
    passes = []
    for name in ("cold", "warm"):
        first = before = server.counters(LOOKUPS)
        answers, course, done = [], [], 0
        for batch in requests(config, dataset, size):
            start = time.perf_counter()
            answers.append(server.infer(config.model, batch))
            took_ms = 1000 * (time.perf_counter() - start)
            done += count(batch)
            after = server.counters(LOOKUPS)
            shares = cache_rates(before, after)
            course.append((done, shares.get("hit_rate"), shares.get("default_share"), took_ms))
            before = after
        joined = {key: np.concatenate([a[key] for a in answers]) for key in answers[0]}
        passes.append(
            LookupPass(
                name=name,
                batch_size=size,
                **cache_rates(first, before),
                scores=dataset.score(joined),
                p50_latency_ms=float(np.median([took for *_, took in course])),
                course=tuple(course),
            )
        )
        if passes[-1].hit_rate is not None:
            print(
                f"{name}: {passes[-1].hit_rate:.1%} of the different keys in the cache, "
                f"{passes[-1].default_share:.1%} default vectors"
            )
        if passes[-1].default_share != 0:
            time.sleep(INSERT_SECONDS)
    return tuple(passes)
