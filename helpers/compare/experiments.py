"""Compare a model's experiments next to each other: their throughput in interleaved rounds, whether
the fastest meet the latency budget, and the latency of single requests.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import hypot, isnan, log
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers import results
from helpers.compare.space import fault
from helpers.config import CompareConfig, changed
from helpers.errors import DeploymentError, MeasurementError
from helpers.inference import require
from helpers.measure import (
    Candidate,
    Interval,
    LoadSession,
    Race,
    Window,
    check_budget,
    cost_per_million,
    exclusive_lock,
    geometric_mean,
    load_race,
    log_interval,
    over_memory,
    percentile_interval,
    prepared_requests,
    served,
    wait_until_quiet,
    watch_bounded,
    watch_energy,
)
from helpers.results import BudgetCheck, ComparedExperiment, Comparison, Estimate
from helpers.store import digest, free_memory
from helpers.triton import Server

BLOCKS = (3, 3, 6, 12)  # rounds, after each of which the slower experiments are dropped
RACE_SHARE = 0.5  # of `compare_seconds`, at most; the rest settles the budget
RUN_SECONDS = 0.6  # of load per run
LOOKS_APART = 3  # the load before a look at a budget, in terms of that before the last look
SINGLE_ROUNDS = 3
MEMORY_SHARE = 0.8  # of the free memory, that the servers of a group may take
UNKNOWN_MEMORY_MB = 1500.0  # of a server that was not measured before, besides its artifact
NO_CANDIDATES = "no experiment can be compared: {}"


def candidates(config: CompareConfig) -> tuple[dict[str, CompareConfig], dict[str, str]]:
    """Return the experiments whose parity checks and metrics passed, and why others are left out.

    Raises `MeasurementError` if none is left.
    """
    chosen = {one.experiment: one for one in config.candidates if one.compare}
    reasons = {name: why for name, one in chosen.items() if (why := fault(one))}
    passed = {name: one for name, one in chosen.items() if name not in reasons}
    if not passed:
        cause = next(iter(reasons.values()), "every experiment has compare: false")
        raise MeasurementError(NO_CANDIDATES.format(cause))
    return passed, reasons


def described_experiments(config: CompareConfig) -> list[dict[str, str]]:
    """Return one row for each experiment: whether it is compared, and why not."""
    passed, reasons = candidates(config)
    rows = [(name, "compared", "") for name in passed]
    rows += [(name, "left out", why) for name, why in reasons.items()]
    return [dict(zip(("experiment", "state", "reason"), row, strict=True)) for row in rows]


def workloads(passed: Mapping[str, CompareConfig]) -> dict[str, list[CompareConfig]]:
    """Group experiments by samples and request size, named by the fields in which they differ."""
    size, groups = "online_batch_size", dict[str, list[CompareConfig]]()
    read = [one.cache_fields("data") | one.model_dump(include={size}) for one in passed.values()]
    different = [name for name, value in read[0].items() if any(r[name] != value for r in read)]
    for one, fields in zip(passed.values(), read, strict=True):
        workload = ", ".join(f"{fields[name]}" for name in different)
        groups.setdefault(workload, []).append(one)
    return groups


def memory_groups(needs_mb: Mapping[str, float], free_mb: float, baseline: str) -> list[list[str]]:
    """Return groups of experiments whose servers fit in the free memory together; each begins with
    the baseline, to which ratios of different groups are related.
    """
    groups = [[baseline]]
    for name in (name for name in needs_mb if name != baseline):
        total = sum(needs_mb[one] for one in groups[-1]) + needs_mb[name]
        if len(groups[-1]) > 1 and total > free_mb:
            groups.append([baseline])
        groups[-1].append(name)
    return groups


def _memory_needs(config: CompareConfig, group: Iterable[CompareConfig]) -> dict[str, float]:
    """Return the megabytes of each server: the peak of its earlier measurements, or an estimate."""
    known = results.of_model(config)
    needs = {}
    for one in group:
        rows = results.rows(known.get(one.experiment, {}).values())
        peaks = [row.server_peak_memory_mb for row in rows if row.server_peak_memory_mb]
        unknown = UNKNOWN_MEMORY_MB + 2 * require(one, "deploy").size_mb
        needs[one.experiment] = max(peaks, default=unknown)
    return needs


def _repository_key(config: CompareConfig) -> str:
    """Return a name of what is served: equal for experiments with the same model repository."""
    return digest(config.cache_fields("deploy") | {"protocol": "", "cold_starts": 0})


def compare_experiments(
    config: CompareConfig, say: Callable[[str], None] = print
) -> tuple[Comparison, ...]:
    """Compare the experiments of each workload for `compare_seconds`.

    Raises `MeasurementError` if no experiment can be compared or measured.
    """
    passed, reasons = candidates(config)
    comparisons = []
    with exclusive_lock():
        for name, group in workloads(passed).items():
            comparison = _compare(config, group, say)
            comparisons.append(comparison.model_copy(update={"workload": name}))
    first, *others = comparisons
    if not any(comparison.ranked for comparison in comparisons):
        why = next(one.reason for one in first.experiments if one.reason)
        raise MeasurementError(NO_CANDIDATES.format(why))
    left = tuple(ComparedExperiment(experiment=name, reason=why) for name, why in reasons.items())
    return first.model_copy(update={"experiments": first.experiments + left}), *others


def _compare(
    config: CompareConfig, group: Sequence[CompareConfig], say: Callable[[str], None]
) -> Comparison:
    """Compare the experiments of one workload, in groups that fit in memory."""
    baseline = next((one for one in group if one.precision == "fp32"), group[0])
    by_name = {one.experiment: one for one in group}
    needs, free_mb = _memory_needs(config, group), MEMORY_SHARE * free_memory() / 1e6
    parts = memory_groups(needs, free_mb, baseline.experiment)
    clients = max((count for one in group for count in one.concurrency), default=1)
    started, seconds = time.monotonic(), config.compare_seconds / len(parts)
    found: dict[str, ComparedExperiment] = {}
    for number, names in enumerate(parts):
        configs = {name: by_name[name] for name in names}
        served = ExperimentGroup(configs, baseline.experiment, clients, seconds, say)
        for one in served.measure():
            if one.experiment not in found or not found[one.experiment].throughput:
                found[one.experiment] = one.model_copy(update={"group": number})
    ordered = tuple(found[one.experiment] for one in group)
    return Comparison(
        baseline=_measured_baseline(ordered) or baseline.experiment,
        clients=clients,
        batch_size=baseline.online_batch_size,
        latency_budget_ms=config.latency_budget_ms,
        seconds=round(time.monotonic() - started, 1),
        groups=len(parts),
        experiments=_related(ordered) if len(parts) > 1 else ordered,
    )


def _measured_baseline(experiments: Iterable[ComparedExperiment]) -> str:
    """Return the experiment that the ratios are relative to: another if the baseline failed."""
    ratios = ((one.experiment, one.ratio_to_baseline) for one in experiments)
    return next((name for name, ratio in ratios if ratio == Estimate(value=1.0)), "")


def _related(experiments: Sequence[ComparedExperiment]) -> tuple[ComparedExperiment, ...]:
    """Relate all experiments to the fastest of all groups, by their ratios to the baseline."""
    ratios = [one.ratio_to_baseline for one in experiments]
    best = max(filter(None, ratios), key=lambda ratio: ratio.value, default=None)
    related = [ratio and best and _divided(ratio, best) for ratio in ratios]
    return tuple(
        one.model_copy(update={"ratio_to_fastest": ratio})
        for one, ratio in zip(experiments, related, strict=True)
    )


def _divided(ratio: Estimate, other: Estimate) -> Estimate:
    """Divide two independent ratios; the variances of their logarithms add up."""
    value = ratio.value / other.value
    if ratio is other:
        return Estimate(value=1.0)
    if not (ratio.low and ratio.high and other.low and other.high):
        return Estimate(value=value)
    reach = np.exp(hypot(log(ratio.high / ratio.low), log(other.high / other.low)) / 2)
    return Estimate(value=value, low=value / reach, high=value * reach)


@dataclass
class ExperimentGroup:
    """Experiments of one workload that are served at the same time."""

    configs: Mapping[str, CompareConfig]
    baseline: str
    clients: int
    seconds: float
    say: Callable[[str], None]
    failures: dict[str, str] = field(default_factory=dict)
    running: dict[str, Candidate] = field(default_factory=dict)
    sessions: dict[tuple[bool, int], LoadSession] = field(default_factory=dict)
    peaks: dict[str, Callable[[], float | None]] = field(default_factory=dict)  # memory in MB
    energy: dict[str, list[float]] = field(default_factory=dict)  # J/inference, of each run

    def measure(self) -> list[ComparedExperiment]:
        """Serve and measure all experiments. One that fails has the reason; the others go on."""
        with ExitStack() as opened:
            self.serve(opened)
            wait_until_quiet()
            for name, one in self.running.items():
                self.peaks[name] = watch_bounded(one.config.device, one.server.processes)
            self.deadline = time.monotonic() + self.seconds
            race = self._race()
            ranked = sorted(race.runs, key=lambda name: -self._ratio(race, name).value)
            for name in ranked:
                if over := over_memory(self.configs[name], self.peaks[name]()):
                    self.failures[name] = over
            budgets = self._settle(ranked)
            latencies = self._time_single(ranked)
            memory = {name: peak() for name, peak in self.peaks.items()}
        return [
            ComparedExperiment(
                experiment=name,
                reason=self.failures.get(name, "" if name in race.runs else "not measured"),
                server_peak_memory_mb=memory.get(name),
                budgets=tuple(budgets.get(name, ())),
                **self._figures(name, race),
                **latencies.get(name, {}),
            )
            for name in self.configs
        ]

    def serve(self, opened: ExitStack) -> None:
        """Start all servers at the same time, then warm each up. Experiments that differ in nothing
        but the protocol of requests have one server.
        """
        names = {name: _repository_key(config) for name, config in self.configs.items()}
        over_grpc = {names[name] for name, one in self.configs.items() if one.protocol == "grpc"}
        servers: dict[str, Server] = {}
        started = {}
        for name, config in self.configs.items():
            with self._blamed(name):
                if (served_as := names[name]) not in servers:
                    protocol = "grpc" if served_as in over_grpc else "http"
                    one = changed(config, {"protocol": protocol})
                    servers[served_as] = opened.enter_context(served(one))
                is_http, server = config.protocol == "http", servers[served_as]
                started[name] = replace(server, grpc_address="") if is_http else server
        for name, server in started.items():
            with self._blamed(name):
                server.ready()
                config = self.configs[name]
                for size in (1, config.online_batch_size):
                    key = server.codec is not None, size
                    if key not in self.sessions:
                        one = changed(config, {"online_batch_size": size})
                        requests = opened.enter_context(prepared_requests(one, server))
                        self.sessions[key] = requests
                self.running[name] = self.sessions[key].warm(server, config, self.clients)

    @contextmanager
    def _blamed(self, name: str) -> Iterator[None]:
        """Keep an error of the block as the reason why the experiment has no figures."""
        try:
            yield
        except DeploymentError as error:
            self.failures[name] = str(error)

    def load(self, candidate: Candidate, seconds: float) -> Window:
        """Load a candidate; raise `MeasurementError` if the run has too few requests."""
        key = candidate.server.codec is not None, candidate.config.online_batch_size
        run = self.sessions[key].load(candidate, seconds).steady
        if isnan(run.throughput):
            raise MeasurementError("a run has too few requests: increase measurement_seconds")
        return run

    def _race(self) -> Race[Window]:
        """Find the fastest experiments, in at most `RACE_SHARE` of the time."""
        race = load_race(len(BLOCKS))
        ends = time.monotonic() + RACE_SHARE * self.seconds
        margin = next(iter(self.configs.values())).margin_of_error

        def run(name: str) -> Window:
            joules = watch_energy(self.running[name].config.device)
            window = self.load(self.running[name], RUN_SECONDS)
            if (used := joules()) is not None:
                per_inference = used / window.batch_size / len(window.requests)
                self.energy.setdefault(name, []).append(per_inference)
            spent = window.batch_size / window.throughput  # seconds per request
            self.running[name] = replace(self.running[name], request_seconds=spent)
            return window

        def is_known() -> bool:
            ratio, is_base = self._ratio(race, race.fastest), race.fastest == self._base(race)
            ends = ratio.low and ratio.high and Interval(ratio.low, ratio.high)
            return is_base or bool(ends and ends.margin_of_error <= margin)

        calls = {name: partial(run, name) for name in self.running}
        race.run(calls, BLOCKS, {self.baseline}, is_known, lambda: time.monotonic() > ends)
        self.failures |= {name: str(error) for name, error in race.failures.items()}
        for name in race.runs:
            times = self._ratio(race, name).times
            self.say(f"{name}: {len(race.runs[name])} rounds, {times} {self._base(race)}")
        return race

    def _base(self, race: Race[Window]) -> str:
        """Return the baseline, or the first experiment if the baseline could not be measured."""
        return self.baseline if self.baseline in race.runs else next(iter(race.runs), "")

    def _ratio(self, race: Race[Window], name: str) -> Estimate:
        return race.ratio(name, self._base(race))

    def _settle(self, ranked: Sequence[str]) -> dict[str, list[BudgetCheck]]:
        """Check the budget of the fastest with most clients, then with fewer, then of the next,
        until one meets it.
        """
        checks: dict[str, list[BudgetCheck]] = {}
        counts = {1, *(count for one in self.configs.values() for count in one.concurrency)}
        for name, count in product(ranked, sorted(counts, reverse=True)):
            budget_ms = self.configs[name].latency_budget_ms
            left = self.deadline - time.monotonic()
            if not budget_ms or left <= 0 or name in self.failures:
                continue
            with self._blamed(name):
                check = self._check(replace(self.running[name], clients=count), budget_ms, left)
                checks.setdefault(name, []).append(check)
                self.say(f"{name}: {check.in_words(budget_ms)}")
                if check.state == "met":
                    return checks
        return checks

    def _check(self, candidate: Candidate, budget_ms: float, left: float) -> BudgetCheck:
        """Load a candidate until the budget is decided: for all the time that is `left` if that
        decides it, else for a quarter of it.
        """
        started, latencies, seconds = time.monotonic(), np.empty(0), RUN_SECONDS
        while True:
            window = self.load(candidate, seconds)
            latencies = np.concatenate([latencies, window.latencies_ms])
            state, needed = check_budget(latencies, budget_ms)
            spent = time.monotonic() - started
            projected = spent * needed / len(latencies)
            most = left if projected <= left else left / 4
            # few looks: each one may decide wrongly
            seconds = max(RUN_SECONDS, min(1.1 * projected, most, LOOKS_APART * spent) - spent)
            if state != "unconfirmed" or spent >= most:
                return BudgetCheck(
                    state=state,
                    clients=candidate.clients,
                    p99_latency_ms=float(np.percentile(latencies, 99)),
                    requests=len(latencies),
                    needed=needed,
                )

    def _time_single(self, ranked: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Measure p50 and p90 of one client with one sample per request, interleaved."""
        race, calls = load_race(1), {}
        for name in (name for name in ranked if name not in self.failures):
            one = self.running[name]
            alone = replace(one, clients=1, config=changed(one.config, {"online_batch_size": 1}))
            calls[name] = partial(self.load, alone, RUN_SECONDS)
        race.run(calls, (SINGLE_ROUNDS,))
        for name, error in race.failures.items():
            self.say(f"{name}: no latency of single requests: {error}")
        found: dict[str, dict[str, Any]] = {}
        for name, windows in race.runs.items():
            times = np.concatenate([window.latencies_ms for window in windows])
            p50, p90 = _percentile(times, 0.5), _percentile(times, 0.9)
            found[name] = {"p50_latency_ms": p50, "p90_latency_ms": p90}
        return found

    def _figures(self, name: str, race: Race[Window]) -> dict[str, Any]:
        """Return the throughput of an experiment, and what follows from it."""
        if name not in race.runs:
            return {}
        throughputs, price = race.figures(name), self.configs[name].price_per_hour
        throughput, bounds = geometric_mean(throughputs), log_interval(throughputs)
        return {
            "rounds": len(throughputs),
            "throughput": Estimate.of(throughput, bounds),
            "ratio_to_baseline": self._ratio(race, name),
            "ratio_to_fastest": race.ratio(name, race.fastest),
            "cost_per_million": cost_per_million(price, throughput, bounds),
            "background_cpu_cores": fmean(run.others_cores for run in race.runs[name]),
            "joules_per_inference": fmean(self.energy[name]) if name in self.energy else None,
        }


def _percentile(latencies_ms: NDArray[np.float64], quantile: float) -> Estimate:
    value = float(np.quantile(latencies_ms, quantile))
    return Estimate.of(value, percentile_interval(latencies_ms, quantile))
