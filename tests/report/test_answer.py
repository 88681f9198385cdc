"""The answer compares what is comparable, and says what the measurements cannot show."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from pandas import DataFrame
from scipy.stats import binom

from helpers.config import ReportConfig, resolve
from helpers.measure import Window, check_budget, interval, with_intervals
from helpers.measure.rows import measure_row
from helpers.report import analysis, describe, figures, tables, text
from helpers.results import Difference, Measurement, ParityCheck, Result, Results, Row, Score, read
from helpers.store import OUTPUTS_VARIABLE

OLD = Path(__file__).parents[1] / "results" / "data" / "schema_2.json"


def row(throughput: float, relative: float = 0.02, **fields: object) -> Row:
    """A row known to about ±2%, or as `relative` says."""
    return Row(
        batch_size=8,
        concurrency=1,
        quality="stable",
        throughput=throughput,
        throughput_low=throughput / (1 + relative),
        throughput_high=throughput * (1 + relative),
        p99_latency_ms=20.0,
        requests=100,
    ).model_copy(update={"scenario": "online", "dataset": "generated", **fields})


def results_of(rows: Iterable[Row], model: str = "tft", file: str = "") -> Results:
    """The results of the experiments whose rows these are."""
    found: dict[str, dict[str, Result]] = {}
    for each in rows:
        stage = "perf_offline" if each.scenario == "offline" else "perf_online"
        stages = found.setdefault(each.experiment, {})
        before = stages[stage].measurement if stage in stages else None
        stages[stage] = Result(
            model=model,
            experiment=each.experiment,
            stage=stage,
            gpu="CPU",
            state="done",
            measurement=Measurement(
                rows=(*(before.rows if before else ()), each),
                distinct_rows=1,
                background_before=0.0,
            ),
        )
    return found


def report(model: str = "tft", budget: float | None = None) -> ReportConfig:
    config = resolve(model, "report")
    assert isinstance(config, ReportConfig)
    return config.model_copy(update={"latency_budget_ms": budget})


def frame(*rows: Row) -> DataFrame:
    return analysis.frame(report(), results_of(rows))


def answer(rows: Iterable[Row], model: str = "tft", budget: float | None = None) -> str:
    config, found = report(model, budget), results_of(rows, model)
    return str(text.answer(config, found, analysis.frame(config, found)).data)  # type: ignore[attr-defined]


def test_tfts_answer_names_electricity_and_traffic_apart() -> None:
    rows = [
        row(100, experiment="electricity-onnx", variant="electricity"),
        row(150, experiment="electricity-openvino", variant="electricity"),
        row(90, experiment="traffic-openvino", variant="traffic"),
    ]

    fastest = answer(rows).split("\n\n")[0]

    assert fastest == (
        "**Fastest.** electricity: 150 samples/s (95% CI 147.1 to 153), p99 20 ms: "
        "electricity-openvino, batch size 8, 1 client, online. traffic: 90 samples/s (95% CI 88.24 "
        "to 91.8), p99 20 ms: traffic-openvino, batch size 8, 1 client, online."
    )
    assert describe.frontier(frame(*rows)) == fastest.replace("**Fastest.**", "Fastest:")
    assert describe.headline(frame(*rows)) == (
        "electricity 150.0 samples/s: electricity-openvino; "
        "traffic 90.0 samples/s: traffic-openvino"
    )


def test_data_sets_are_workloads_of_their_own_and_each_has_its_front() -> None:
    rows = frame(
        row(100, experiment="one", dataset="generated"),
        row(150, experiment="two", dataset="squad", p99_latency_ms=10.0),
    )

    fronts = {name: list(analysis.pareto(one).index) for name, one in analysis.workloads(rows)}

    assert fronts == {"generated": [0], "squad": [1]}
    notes = [note.get_text() for note in figures.frontier(rows).axes[0].texts]
    assert notes == ["100 samples/s", "150 samples/s"]


def test_where_intervals_overlap_both_are_named_and_none_is_the_winner() -> None:
    near = [row(100, experiment="onnx"), row(98, experiment="openvino")]
    far = [row(100, experiment="onnx"), row(95, experiment="openvino")]

    assert (
        "onnx, batch size 8, 1 client, online. No clear winner (95% CIs overlap): openvino, batch "
        "size 8, 1 client, online." in answer(near)
    )
    offline = [each.model_copy(update={"scenario": "offline"}) for each in near]
    assert describe.throughput(frame(*offline)) == (
        "Highest offline throughput: 100 samples/s (95% CI 98.04 to 102), p99 20 ms: onnx, batch "
        "size 8, 1 client, offline. No clear winner (95% CIs overlap): openvino, batch size 8, 1 "
        "client, offline."
    )
    assert describe.headline(frame(*near)) == "100.0 samples/s: onnx or openvino (no clear winner)"
    assert "openvino" not in answer(far)
    assert "clear winner" not in answer(far)


def test_an_imprecise_row_takes_part_with_its_interval_and_no_other_does() -> None:
    wide = row(120, relative=0.3, experiment="imprecise", quality="imprecise")
    others = [
        row(500, experiment=word, quality=word)
        for word in ("noisy", "too few requests", "client-bound", "failed")
    ]
    unbounded = row(900, experiment="two runs", quality="imprecise", throughput_low=None)

    found = analysis.leaders(frame(row(100, experiment="stable"), wide, *others, unbounded))

    assert list(found["experiment"]) == ["imprecise", "stable"]


def test_many_points_without_a_clear_winner_are_named_by_experiment() -> None:
    rows = [row(100 - i, experiment="ab"[i % 2], concurrency=i) for i in range(4)]

    said = describe.fastest(frame(*rows))

    assert said.endswith(
        "a, batch size 8, 0 clients, online. No clear winner (95% CIs overlap): b, batch size 8, 1 "
        "client, online; 2 more measurements."
    )
    assert describe.qualities(frame(*rows)).startswith("4 measurements: 4 stable.")


@pytest.mark.slow
def test_one_artifact_under_two_names_is_told_apart_in_three_of_twenty_runs_at_most() -> None:
    def run(random: np.random.Generator, mean_ms: float) -> Window:
        """A closed loop of one client, whose every run has a center_ms of its own (±2%)."""
        center_ms = mean_ms * random.lognormal(0, 0.02)
        ends = np.cumsum(random.lognormal(np.log(center_ms * 1e6), 0.1, 40)).astype(np.int64)
        return Window(np.stack([np.r_[0, ends[:-1]], ends], axis=1), 8, 1)

    def said(seed: int, slower: float) -> str:
        random = np.random.default_rng(seed)
        rows = [
            measure_row([run(random, mean) for _ in range(5)], 100, 0.05, 2).model_copy(
                update={"experiment": name, "scenario": "offline"}
            )
            for name, mean in (("one", 10.0), ("other", 10.0 * slower))
        ]
        return describe.headline(frame(*rows))

    apart = ["no clear winner" not in said(seed, 1.0) for seed in range(20)]
    different = ["no clear winner" not in said(seed, 1.2) for seed in range(20)]

    assert sum(apart) <= 3
    assert sum(different) >= 17


# The budget


@pytest.mark.parametrize(
    ("late", "requests", "word"),
    [
        (0, 0, "unconfirmed"),
        (0, 367, "unconfirmed"),
        (0, 368, "met"),
        (1, 368, "unconfirmed"),
        (4, 1022, "met"),
        (8, 400, "unconfirmed"),
        (12, 400, "not met"),
    ],
)
def test_the_share_above_the_budget_is_met_not_met_or_not_known(
    late: int, requests: int, word: str
) -> None:
    latencies = np.ones(requests)
    latencies[np.linspace(0, requests - 1, late).astype(int)] = 9.0

    found, needed = check_budget(latencies, 5.0)

    assert found == word
    if found != "met":  # the binomial distribution's own tail says when it would be
        assert binom.cdf(late, needed, 0.01) <= 0.025 < binom.cdf(late, needed - 1, 0.01)


def test_correlated_requests_tell_less_of_the_budget() -> None:
    random = np.random.default_rng(0)
    latencies = np.repeat(random.lognormal(0, 0.1, 100), 4)  # answered four at a time

    word, needed = check_budget(latencies, 5.0)

    assert word == "unconfirmed"
    assert needed > 4 * 368


def with_clients(*counts: int) -> list[Row]:
    """Rows of one experiment online: 100 samples/s for each client."""
    same = {"experiment": "onnx", "source": "onnx/perf_online.json"}
    return [row(100 * clients, **same, concurrency=clients) for clients in counts]


def kept(folder: Path, rows: list[Row], latencies: dict[int, list[float]]) -> None:
    """Keep the requests of each number of clients where the report looks for them."""
    config = report()
    path = (
        folder / config.target / "tft" / Path(rows[0].source).with_name("perf_online_requests.npz")
    )
    path.parent.mkdir(parents=True)
    arrays = {}
    for clients, each in latencies.items():
        ends = np.cumsum(np.array(each) * 1e6).astype(np.int64)
        arrays[f"clients_{clients}_0"] = np.stack(
            [ends - (np.array(each) * 1e6).astype(int), ends], 1
        )
    np.savez(path, **arrays)  # type: ignore[arg-type]


def test_the_answer_within_the_budget_is_known_from_the_requests_but_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    rows = with_clients(1, 2, 4, 8)
    slow = [9.0 if i % 20 == 0 else 1.0 for i in range(400)]
    enough, few = [9.0, *[1.0] * 368], [9.0, *[1.0] * 100]
    kept(tmp_path, rows, {1: enough, 2: few, 4: slow})
    found = results_of(rows)

    table = analysis.frame(report(budget=5.0), found)
    with monkeypatch.context() as patched:
        patched.setattr("helpers.results.read_requests", None)  # without a budget they are not read
        unlimited = analysis.frame(report(), found)

    assert list(table["budget"]) == ["met", "unconfirmed", "not met", "unconfirmed"]
    assert list(table["budget_needs"])[:2] == [368, 368]
    assert unlimited["budget"].isna().all()
    said = describe.fastest(table, 5.0)
    assert said.startswith(
        "100 samples/s (95% CI 98.04 to 102), p99 20 ms: onnx, batch size 8, 1 cl"
    )
    assert (
        "Not confirmed: onnx, batch size 8, 8 clients, online, 800 samples/s (95% CI 784.3 to "
        "816). It has 100 requests and needs at least 368." in said
    )
    said = describe.fastest(table[1:3], 5.0)
    assert said.startswith(
        "No configuration is confirmed to meet the p99 budget of 5 ms. Not confirmed: onnx, batch "
        "size 8, 2 clients, online, 200 samples/s"
    )
    assert "Not confirmed" not in describe.fastest(table[2:3], 5.0)
    caption = describe.frontier(table, 5.0)
    assert caption.startswith("Fastest within 5 ms (p99): 100 samples/s (95% CI 98.04 to 102)")
    assert describe.frontier(table[1:3], 5.0) == said


# Intervals in words


def test_tables_show_intervals_and_how_many_requests_a_percentile_needs() -> None:
    known = row(1000, p99_low_ms=19.5, p99_high_ms=21.25)
    few = row(10)
    alike = row(10, requests=400)
    failed = Row(batch_size=1, concurrency=1, quality="failed")

    columns = ["throughput", "p50_latency_ms", "p99_latency_ms", "relative_throughput", "quality"]
    rows = DataFrame([each.model_dump() for each in (known, few, alike, failed)])

    shown = with_intervals(rows, columns)

    assert list(shown) == [
        "throughput",
        "throughput, 95% CI",
        "p50_latency_ms",
        "p99_latency_ms",
        "p99, 95% CI",
        "relative_throughput",
        "relative throughput, 95% CI",
        "quality",
    ]
    rates = ["980.4 to 1,020", "9.804 to 10.2", "9.804 to 10.2", "–"]
    assert list(shown["throughput, 95% CI"]) == rates
    found = ["19.5 to 21.25", "needs 299 requests", "needs 401 requests", "–"]
    assert list(shown["p99, 95% CI"]) == found
    assert list(shown["relative throughput, 95% CI"]) == ["–"] * 4
    assert list(with_intervals(rows, ["quality"])) == ["quality"]


def test_relative_throughput_has_its_interval() -> None:
    ratio = {
        "relative_throughput": 0.9,
        "relative_throughput_low": 0.88,
        "relative_throughput_high": 0.92,
    }
    offline = {"scenario": "offline", "serving_overhead_ms": 1.25, "experiment": "onnx"}
    rows = frame(
        row(100, **ratio, **offline, relative_quality="stable"),
        row(100, **{**ratio, "relative_throughput": 0.95}, **offline, relative_quality="imprecise"),
        row(100, **offline, relative_quality="too few pairs", relative_throughput=0.5),
    )

    assert describe.relative_throughput(rows) == (
        "Triton reaches 92% of the in-process throughput (median of 2 measurements); the lowest is "
        "90% (95% CI 88% to 92%), onnx at batch size 8."
    )


def test_a_relative_throughput_whose_interval_contains_1_is_no_difference() -> None:
    ends = {"relative_throughput_low": 0.9, "relative_throughput_high": 1.02}
    rows = frame(row(100, scenario="offline", experiment="e", relative_throughput=0.96, **ends))

    assert describe.relative_throughput(rows) == (
        "Triton reaches 96% of the in-process throughput (median of 1 measurement); the lowest is "
        "96% (95% CI 90% to 102%, no measurable difference), e at batch size 8."
    )


def test_the_no_op_model_is_told_for_the_smallest_and_the_largest_batch() -> None:
    offline = {"scenario": "offline", "experiment": "onnx"}
    rows = frame(
        row(100, **offline, batch_size=1, noop_latency_ms=0.3, residual_overhead_ms=0.05),
        row(100, **offline, batch_size=8, noop_latency_ms=0.5, residual_overhead_ms=-0.1),
        row(
            100,
            **{**offline, "experiment": "openvino"},
            batch_size=64,
            noop_latency_ms=2.5,
            residual_overhead_ms=0.25,
            residual_overhead_low_ms=0.125,
            residual_overhead_high_ms=0.375,
        ),
    )

    assert describe.overhead(rows) == (
        "A no-op model with the same tensors takes 0.3 ms at batch size 1 to 2.5 ms at batch size "
        "64: the fixed overhead of Triton, transport and adapter. The residual overhead is largest "
        "for openvino at batch size 64: 0.25 ms (95% CI 0.125 to 0.375)."
    )
    unbounded = rows.assign(residual_overhead_low_ms=None)
    assert "residual" not in describe.overhead(unbounded)
    around_zero = rows.assign(residual_overhead_low_ms=[None, None, -0.1])
    said = describe.overhead(around_zero)
    assert said.endswith("There is no measurable residual overhead.")


def test_where_there_is_no_no_op_model_the_report_says_why() -> None:
    rows = frame(row(100, scenario="offline", noop_reason="no identity model"))

    assert describe.overhead(rows) == ("The no-op model was not measured: no identity model.")
    assert describe.overhead(frame(row(100))) == "The no-op model was not measured."
    noisy = frame(row(100, scenario="offline", noop_latency_ms=1.0, quality="noisy"))
    said = "The no-op model has no stable or imprecise measurement."
    assert describe.overhead(noisy) == said
    shown = with_intervals(rows, ["throughput", "noop_latency_ms", "noop_reason"])
    assert "noop_reason" in shown
    assert "noop_reason" not in with_intervals(frame(row(100)), ["noop_reason"])


def test_run_to_run_variation_is_the_95_percent_range_of_the_machines_speed() -> None:
    rows = [row(100, experiment="e", machine_gflops=100.0 + i) for i in range(-20, 21)]

    assert describe.machine_speed(frame(*rows)) == (
        "The speed of the machine (a reference kernel) was 81.0% to 119.0% of its median in 95% of "
        "41 measurements. Smaller differences may come from the machine."
    )
    assert "was not measured" in describe.machine_speed(frame(row(100, experiment="e")))


def test_results_of_the_older_schema_are_shown_without_intervals() -> None:
    old = read(OLD)
    assert old
    rows = analysis.frame(report("resnet50"), {"onnx-fp32": {"perf_offline": old}})

    assert describe.frontier(rows) == "No throughput is known."
    assert describe.qualities(rows).startswith("2 measurements: 1 stable, 1 unstable.")
    assert describe.relative_throughput(rows) == "No relative throughput is known."
    assert describe.headline(rows) == "no throughput is known"
    (found,) = set(with_intervals(rows, ["p99_latency_ms"])["p99, 95% CI"])
    assert found == "needs 299 requests"
    for draw in (figures.throughput_over_batch, figures.relative_throughput, figures.frontier):
        figure = draw(rows)
        assert "95% CI" not in [t.get_text() for t in figure.legends[0].get_texts()]
    assert interval(None, None) == "–"


def test_a_latency_of_one_batch_size_is_said_once_and_never_as_a_power_of_ten() -> None:
    only = row(100, experiment="onnx", scenario="offline", p99_latency_ms=1010.4)
    rows = analysis.frame(report(), results_of([only]))

    said = describe.latency(rows)

    assert said == "Offline p99 latency: onnx 1,010 ms at batch size 8."


def test_what_is_fastest_and_keeps_the_budget_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    rows = with_clients(1, 2)
    kept(tmp_path, rows, {1: [1.0] * 400, 2: [1.0] * 400})
    offline = row(500, experiment="onnx", scenario="offline")

    once, twice = answer(rows, budget=5.0), answer([*rows, offline], budget=5.0)

    assert once.startswith("**Fastest, and within 5 ms (p99).** 200 samples/s")
    assert once.count("200 samples/s") == 1
    assert twice.startswith("**Fastest.** 500 samples/s")
    assert "**Within 5 ms (p99).** 200 samples/s" in twice


def test_equal_checks_and_metrics_share_a_row_that_names_them_all() -> None:
    def check(name: str, difference: float) -> ParityCheck:
        one = Difference(
            output="logits",
            max_difference=difference,
            mean_difference=0.0,
            max_bound=1.0,
            mean_bound=1.0,
            sample=0,
        )
        return ParityCheck(name=name, precision="fp32", samples=64, differences=(one,))

    def stages(served: float) -> dict[str, Result]:
        score = Score(metric="top-1", framework=0.9, served=0.9, bound=0.8, better="higher")
        each = {"model": "tft", "experiment": "", "gpu": "", "state": "done"}
        return {
            "export": Result(stage="export", checks=(check("exported", 0.1),), **each),
            "deploy": Result(
                stage="deploy", checks=(check("served", served),), scores=(score,), **each
            ),
        }

    found = {"one": stages(0.1), "two": stages(0.1), "three": stages(0.2)}

    shown = [
        (row["experiment"], row["check"], row["max_difference"]) for row in tables.parity(found)
    ]
    assert shown == [
        ("one, two", "exported, served", 0.1),
        ("three", "exported", 0.1),
        ("three", "served", 0.2),
    ]
    assert [row["experiment"] for row in tables.metrics(found)] == ["one, two, three"]


def test_where_nothing_was_profiled_the_report_says_so() -> None:
    assert "Nothing was profiled" in str(text.where_time_goes({}).data)  # type: ignore[attr-defined]
