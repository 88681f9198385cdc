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
    started. The shares of one before 23.05 are unknown: it takes no counters from Python backends.
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
        shares = cache_rates(first, before)
        found = LookupPass(
            name=name,
            batch_size=size,
            **shares,
            scores=dataset.score(joined),
            p50_latency_ms=float(np.median([took for *_, took in course])),
            course=tuple(course),
        )
        passes.append(found)
        if shares:
            hits = f"{name}: {found.hit_rate:.1%} of the different keys in the cache"
            print(f"{hits}, {found.default_share:.1%} default vectors")
        if found.default_share != 0:
            time.sleep(INSERT_SECONDS)
    return tuple(passes)
