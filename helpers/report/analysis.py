"""The measurements of a report as one table, and how they are compared: by quality, workload and
throughput, and on the Pareto front.

A comparison uses stable and imprecise measurements with the 95% CIs of their throughputs. It uses
those of one workload only: one variant of the network and one data set. Where 95% CIs overlap there
is no clear winner: that is a convention, not a test.
"""

from collections.abc import Iterator
from functools import reduce
from math import exp, hypot, log
from typing import TYPE_CHECKING

import numpy as np

from helpers import results
from helpers.config import STAGE, ReportConfig, Value
from helpers.measure import Window, check_budget, highest_peaks
from helpers.results import Estimate, Peaks, Result, Results, Row

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TRUSTED = ("stable", "imprecise")  # the qualities of measurements that are compared


def stages(by_experiment: Results, *names: str) -> Iterator[tuple[str, Result]]:
    """Yield each result with its experiment, in the order of its stages; only `names`, if any."""
    for experiment, by_stage in by_experiment.items():
        for stage in names or STAGE:
            if stage in by_stage:
                yield experiment, by_stage[stage]


def frame(config: ReportConfig, by_experiment: Results, open_loop: bool = False) -> "DataFrame":
    """Return the measurements of all experiments as one table, with the result of `check_budget`:
    those of request-rate mode (`open_loop`), or all others without repeated batches.
    """
    from pandas import DataFrame

    everything = results.rows(result for _, result in stages(by_experiment))
    everything = [row for row in everything if bool(row.rate) == open_loop and not row.repeated]
    rows = [row.model_dump(exclude_none=True) | _within_budget(config, row) for row in everything]
    return DataFrame(rows, columns=[*Row.model_fields, "budget"]).infer_objects()


def _within_budget(config: ReportConfig, row: Row) -> dict[str, Value]:
    """Judge a row by all its requests but each client's first; return nothing without a budget."""
    if not config.latency_budget_ms:
        return {}
    runs = [Window(run, 1, row.concurrency) for run in results.read_requests(config, row)]
    latencies = np.concatenate([np.empty(0), *(run.steady.latencies_ms for run in runs)])
    return {"budget": check_budget(latencies, config.latency_budget_ms)[0]}


def peaks(by_experiment: Results) -> Peaks | None:
    """Return the highest of each of the machine's rates that any stage measured."""
    measurements = [result.measurement for _, result in stages(by_experiment)]
    return reduce(highest_peaks, [run.peaks for run in measurements if run], None)


def stable(rows: "DataFrame") -> "Series[bool]":
    """Return which rows are stable."""
    return rows["quality"] == "stable"


def known(rows: "DataFrame") -> "DataFrame":
    """Return the rows that findings use: stable or imprecise, with a 95% CI."""
    return rows[rows["quality"].isin(TRUSTED) & rows["throughput_low"].notna()]


def workloads(rows: "DataFrame") -> "list[tuple[str, DataFrame]]":
    """Return the rows of each workload with its name, "" if there is only one."""
    different = [name for name in ("variant", "dataset") if rows[name].nunique() > 1]
    parts = rows.groupby(different, sort=False) if different else [((), rows)]
    return [(", ".join(filter(None, key)), one) for key, one in parts]


def leaders(rows: "DataFrame") -> "DataFrame":
    """Return the row of the highest throughput, then all whose 95% CIs overlap with its own."""
    rows = known(rows).sort_values("throughput", ascending=False)
    return rows[rows["throughput_high"] >= rows["throughput_low"].head(1).max()]


def pareto(rows: "DataFrame") -> "DataFrame":
    """Return the rows of one workload that no other beats in throughput and p99 latency."""
    points = known(rows).dropna(subset=["throughput", "p99_latency_ms"])
    points = points.sort_values(["p99_latency_ms", "throughput"], ascending=[True, False])
    return points[points["throughput"] > points["throughput"].cummax().shift(fill_value=-1)]


def ratio(row: Row, other: Row) -> Estimate | None:
    """Divide a throughput by another that was measured apart; None if one was not measured. Their
    95% CIs give one of the ratio, on logarithms (Zou and Donner 2008). A drift of the machine
    between both is not in it.
    """
    if not row.throughput or not other.throughput:
        return None
    value, margins = row.throughput / other.throughput, []
    for side in (row, other):
        if not side.throughput_low or not side.throughput_high:
            return Estimate(value=value)
        margins.append(log(side.throughput_high / side.throughput_low) / 2)
    reach = exp(hypot(*margins))
    return Estimate(value=value, low=value / reach, high=value * reach)


def measured(rows: "DataFrame", scenario: str, column: str = "throughput") -> "DataFrame":
    """Return a scenario's rows in the order of an axis; none if no row has a value in `column`."""
    chosen = rows[rows["scenario"] == scenario].sort_values(["batch_size", "concurrency"])
    return chosen if chosen[column].notna().any() else chosen.head(0)
