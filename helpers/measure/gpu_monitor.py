"""Observe the GPU while it is measured: its state before and after, and its load in each point.

The load is utilisation, memory and power. It comes from Triton's own metrics, and from NVML where a
server has none: the embedded server may lack the parts of DCGM that they need. Triton renews its
GPU metrics every two seconds by default, so that a shorter point has the last values.
"""

import math
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from os import getpid
from threading import Event, Thread

import numpy as np
from numpy.typing import NDArray

from helpers.machine import gpu
from helpers.results import GpuState
from helpers.triton import Server

INTERVAL_SECONDS = 0.5
# A driver returns the utilisation and the power of up to a second before the query (NVML API
# Reference, on utilisation rates and on power usage), and Triton's figure may be half a
# second old: earlier in a run they may be of the pause before it. Memory is of the moment.
AVERAGED_NS = 1_500_000_000
OF_THE_MOMENT = "gpu_memory_mb"
METRICS = {  # Triton's name -> our columns of the mean and the maximum, the factor to their unit
    "nv_gpu_utilization": ("gpu_utilisation", "gpu_utilisation_max", 1.0),
    "nv_gpu_memory_used_bytes": ("gpu_memory_mb", "gpu_memory_max_mb", 1e-6),
    "nv_gpu_power_usage": ("gpu_power_w", "gpu_power_max_w", 1.0),
}
SETTINGS = (  # what should not change meanwhile
    *("name", "driver", "cuda", "memory_total_mb", "sm_clock_max_mhz", "memory_clock_max_mhz"),
    *("power_limit_w", "mig", "ecc", "persistence"),
)
HARMLESS = {"idle", "display clocks"}


def read_metrics(text: str, uuid: str = "") -> dict[str, float]:
    """Read the load out of Triton's metrics: of the GPU `uuid`, or without one of the busiest."""
    from prometheus_client.parser import text_string_to_metric_families

    load: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            ours = sample.name in METRICS and (not uuid or sample.labels.get("gpu_uuid") == uuid)
            if ours and math.isfinite(sample.value):
                column, _, factor = METRICS[sample.name]
                load[column] = max(load.get(column, 0.0), sample.value * factor)
    return load


@dataclass
class GpuObservation:
    """The GPU's load and disturbances during one point."""

    samples: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # ns (epoch), load
    held_by: set[str] = field(default_factory=set)  # what held the clocks down
    others: int = 0  # other processes at most
    others_mb: float = 0.0  # and their memory at most

    def figures(self, runs: Collection[NDArray[np.int64]]) -> dict[str, float]:
        """Return mean and largest load by column, while requests of `runs` ([n, 2], ns) were in
        flight. What a driver averages over time counts once they had been for longer than that.
        """
        spans = [(run[:, 0].min(), run[:, 1].max()) for run in runs]
        row: dict[str, float] = {}
        for column, largest, _ in METRICS.values():
            lag = 0 if column == OF_THE_MOMENT else AVERAGED_NS
            values = [
                load[column]
                for at, load in self.samples
                if column in load and any(a + lag <= at <= b for a, b in spans)
            ]
            if values:
                row |= {column: float(np.mean(values)), largest: max(values)}
        return row

    def disturbance(self) -> str:
        """Return in one line what disturbed the GPU, and what to do; empty if nothing did."""
        if slowed := sorted(self.held_by & gpu.THROTTLED):
            return f"The GPU was slowed by {', '.join(slowed)}. Check its cooling and power supply."
        if self.others:
            held = f" with {self.others_mb:,.0f} MB" if self.others_mb else ""
            many, them = ("process", "it") if self.others == 1 else ("processes", "them")
            return f"{self.others} other {many} used the GPU{held}. Stop {them} and run again."
        return ""


@dataclass
class Observer:
    """Watches the GPU of one measurement; on a CPU (`device` is None) it does nothing."""

    server: Server
    device: gpu.Device | None = None
    uuid: str = ""
    record: GpuState | None = None
    held_by: set[str] = field(default_factory=set)
    sources: set[str] = field(default_factory=set)

    @contextmanager
    def watching(self, observation: GpuObservation) -> Iterator[None]:
        """Sample into `observation` for as long as the block lasts."""
        if self.device is None:
            yield
            return
        ended = Event()

        def sample() -> None:
            while not ended.wait(INTERVAL_SECONDS):
                self.look(observation)

        thread = Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def look(self, observation: GpuObservation) -> None:
        """Read one sample."""
        assert self.device
        try:
            metrics = read_metrics(self.server.metrics(), self.uuid)
        except (OSError, ValueError, HTTPException):  # the load generator says if it is gone
            metrics = {}
        nvml = self.device.load()
        self.sources |= {"Triton's metrics"} if metrics else set()
        self.sources |= {"NVML"} if nvml.keys() - metrics.keys() else set()
        observation.samples.append((time.time_ns(), nvml | metrics))
        observation.held_by |= (held := self.device.throttle_reasons())
        self.held_by |= held
        others = self.device.others()
        if isinstance(others["other_processes"], int):
            observation.others = max(observation.others, others["other_processes"])
        if not isinstance(others["other_memory_mb"], str):
            observation.others_mb = max(observation.others_mb, others["other_memory_mb"])


@contextmanager
def observed(device: str, server: Server) -> Iterator[Observer]:
    """Read the GPU's record at the start and at the end of the block, and what changed between."""
    if device != "gpu":
        yield Observer(server)
        return
    pids = (getpid(), *server.processes) if server.processes else None
    with gpu.opened(pids) as opened:
        uuid = opened.ask(lambda n, handle: n.nvmlDeviceGetUUID(handle))
        observer = Observer(server, opened, uuid if uuid.startswith("GPU-") else "")
        start = opened.record()
        yield observer
        end, sources = opened.record(), tuple(sorted(observer.sources))
        changed = tuple(changes(start, end, observer.held_by))
        observer.record = GpuState(start=start, end=end, changes=changed, load_from=sources)


def changes(
    start: Mapping[str, object], end: Mapping[str, object], held_by: Collection[str]
) -> list[str]:
    """Return what of two records, and of what held the clocks down between, affects results."""
    differences = [
        f"{name} changed from {start.get(name)} to {end.get(name)}"
        for name in SETTINGS
        if start.get(name) != end.get(name)
    ]
    if limits := sorted(set(held_by) - HARMLESS):
        differences.append(f"clocks were limited by {', '.join(limits)}")
    before, after = start.get("other_processes"), end.get("other_processes")
    if isinstance(before, int) and isinstance(after, int) and before != after:
        differences.append(f"other processes on the GPU: {before} before, {after} after")
    return differences
