"""Figures, findings and tables say what was measured, what is not stable and what is missing."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, concat, read_csv

from helpers.display import COLOURS, canvas, show, table
from helpers.report import analysis, describe, figures, latency_parts, tables, text
from helpers.results import (
    LATENCY_COMPONENTS,
    Difference,
    Measurement,
    ParityCheck,
    Result,
    Results,
    Row,
    State,
)
from helpers.results.types import ArtifactFacts, Fingerprint

PUBLISHED = Path(__file__).parents[2] / "params" / "published" / "resnet50.csv"


@pytest.fixture
def rows() -> DataFrame:
    """NVIDIA's rows of ResNet50, each GPU as an experiment; one is imprecise and one failed."""
    rows = read_csv(PUBLISHED)
    rows["experiment"] = rows["gpu"]
    rows["quality"], rows["reason"], rows["variant"], rows["dataset"] = "stable", "", "", "sent"
    for name in ("throughput", "p99"):
        figure, unit = ("p99_latency_ms", "_ms") if name == "p99" else (name, "")
        rows[f"{name}_low{unit}"] = 0.98 * rows[figure]
        rows[f"{name}_high{unit}"] = 1.02 * rows[figure]
    rows["relative_throughput"], rows["relative_quality"], rows["serving_overhead_ms"] = (
        0.9,
        "stable",
        1.5,
    )
    rows["relative_throughput_low"], rows["relative_throughput_high"] = 0.85, 0.95
    rows["budget"], rows["budget_needs"] = "unconfirmed", 368
    rows.loc[rows["p99_latency_ms"] <= 20, "budget"] = "met"
    rows["machine_gflops"], rows["requests"] = 50.0, 20
    offline = rows.index[(rows["scenario"] == "offline") & (rows["gpu"] == "NVIDIA T4")]
    rows.loc[offline[3], ["quality", "reason"]] = "imprecise", "known to ±18%"
    figures = [
        name for name in map(str, rows) if name.endswith("_ms") or "relative_throughput" in name
    ]
    figures += [name for name in map(str, rows) if name.startswith("throughput")]
    rows.loc[offline[7], figures] = float("nan")
    rows.loc[offline[7], ["quality", "reason"]] = "failed", "no memory for <script>"
    return rows


def of(rows: DataFrame, gpu: str) -> DataFrame:
    return rows[rows["gpu"] == gpu]


def markers(axes: Axes, face: str) -> int:
    """Count the drawn points of a face colour."""
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    filled = [line for line in lines if to_hex(line.get_markerfacecolor()) == to_hex(face)]
    return sum(int(np.isfinite(np.asarray(line.get_ydata(), float)).sum()) for line in filled)


def entries(figure: Figure) -> list[Line2D]:
    """Return the legend's entries."""
    return [key for key in figure.legends[0].legend_handles if isinstance(key, Line2D)]


def words(figure: Figure) -> str:
    legend = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return " | ".join(legend + [text.get_text() for axes in figure.axes for text in axes.texts])


@pytest.mark.parametrize("draw", [figures.throughput_over_batch, figures.latency_over_batch])
def test_a_point_that_is_not_stable_is_hollow_and_a_failed_one_is_counted(
    rows: DataFrame, draw: Callable[[DataFrame], Figure]
) -> None:
    figure = draw(of(rows, "NVIDIA T4"))
    assert markers(figure.axes[0], "white") == 1
    assert markers(figure.axes[0], COLOURS[0]) == 6
    assert "hollow: not stable" in words(figure)
    assert "not measured: 1" in words(figure)


def test_a_figure_of_stable_points_mentions_neither_hollow_nor_missing_ones(
    rows: DataFrame,
) -> None:
    text = words(figures.throughput_over_batch(of(rows, "NVIDIA A40")))
    assert "hollow" not in text
    assert "not measured" not in text


def test_every_axis_names_its_unit_and_experiments_differ_in_colour_and_marker(
    rows: DataFrame,
) -> None:
    figure = figures.throughput_over_batch(rows)
    assert figure.axes[0].get_ylabel() == "throughput (samples/s)"
    assert figure.axes[0].get_xlabel() == "batch size"
    assert figure.axes[0].get_title(loc="left")
    assert figures.latency_over_batch(rows).axes[0].get_ylabel() == "p99 latency (ms), log scale"
    keys = entries(figure)[:4]
    assert len({key.get_marker() for key in keys}) == 4
    assert len({str(key.get_markeredgecolor()) for key in keys}) == 4


def test_an_experiment_keeps_its_look_from_figure_to_figure(rows: DataFrame) -> None:
    def look(figure: Figure) -> dict[str, tuple[str, str]]:
        keys = [key for key in entries(figure) if "NVIDIA" in str(key.get_label())]
        return {
            str(key.get_label()): (str(key.get_marker()), str(key.get_markeredgecolor()))
            for key in keys
        }

    assert look(figures.throughput_over_batch(rows)) == look(figures.frontier(rows))


def test_the_components_stack_up_to_the_average_latency(rows: DataFrame) -> None:
    online = of(rows, "NVIDIA A40")
    axes = latency_parts.draw_loads(online).axes[0]
    tops = [axes.containers[-1].patches[i] for i in range(16)]  # type: ignore[attr-defined]
    average = analysis.measured(online, "online")["avg_latency_ms"]
    assert [bar.get_y() + bar.get_height() for bar in tops] == pytest.approx(
        list(average), rel=0.01
    )
    assert axes.get_ylabel() == "average latency (ms)"


def test_a_negative_rest_hangs_below_zero_and_the_rest_of_the_bar_is_higher(
    rows: DataFrame,
) -> None:
    one = analysis.measured(of(rows, "NVIDIA A40"), "online").head(1)
    parts = dict.fromkeys(LATENCY_COMPONENTS, 1.0) | {"network_server_send_recv_ms": -2.0}
    figure = latency_parts.draw_loads(one.assign(**parts, avg_latency_ms=4.0))
    axes, right = figure.axes
    spans = [bars.patches[0].get_y() for bars in axes.containers[:7]]  # type: ignore[attr-defined]
    assert spans == [0, 0, 1, 2, 3, 4, 5]
    assert axes.containers[1].patches[0].get_height() == -2  # type: ignore[attr-defined]
    bottom, top = axes.get_ylim()
    assert bottom < -2
    assert right.get_ylim()[0] / right.get_ylim()[1] == pytest.approx(bottom / top)


def test_components_that_were_not_measured_are_no_zeros(rows: DataFrame) -> None:
    empty = of(rows, "NVIDIA A40").assign(**dict.fromkeys(LATENCY_COMPONENTS, np.nan))
    assert latency_parts.draw_loads(empty).axes[0].get_ylim()[1] > 0
    assert "average latency is 59.4 ms. Throughput is highest" in describe.latency_parts(empty)


@pytest.mark.parametrize(
    ("draw", "column"),
    [
        (figures.throughput_over_batch, "throughput"),
        (figures.latency_over_batch, "p99_latency_ms"),
    ],
)
def test_error_bars_are_the_95_percent_intervals(
    rows: DataFrame, draw: Callable[[DataFrame], Figure], column: str
) -> None:
    (axes,) = (figure := draw(of(rows, "NVIDIA A40"))).axes
    (bars,) = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    values = analysis.measured(of(rows, "NVIDIA A40"), "offline")[column]
    assert ends == [pytest.approx([0.98 * value, 1.02 * value]) for value in values]
    assert "95% CI" in words(figure)


def test_a_figure_without_intervals_explains_no_bars(rows: DataFrame) -> None:
    few = rows.assign(p99_low_ms=np.nan, p99_high_ms=np.nan)
    assert "95%" not in words(figures.latency_over_batch(few))


def test_a_ratio_is_hollow_by_its_own_quality(rows: DataFrame) -> None:
    one = of(rows, "NVIDIA A40")
    wide = one["batch_size"].isin((1, 2)) & (one["scenario"] == "offline")
    one.loc[wide, "relative_quality"] = "imprecise"
    assert markers(figures.relative_throughput(one).axes[0], "white") == 2
    assert markers(figures.throughput_over_batch(one).axes[0], "white") == 0


def test_components_of_several_experiments_are_refused(rows: DataFrame) -> None:
    with pytest.raises(ValueError, match="one experiment per chart, not 4"):
        latency_parts.draw_loads(rows)


def test_the_frontier_labels_the_budget_and_the_best_point_within_it(rows: DataFrame) -> None:
    top = analysis.leaders(rows, 20).iloc[0]
    inside = rows[(rows["p99_latency_ms"] <= 20) & (rows["quality"] == "stable")]
    assert top["throughput"] == inside["throughput"].max()
    text = words(figures.frontier(rows, 20))
    assert "budget 20 ms" in text
    assert f"{top['throughput']:,.0f} samples/s" in text
    assert "budget" not in words(figures.frontier(rows))


def test_no_row_beats_a_pareto_point_and_no_noisy_row_is_one(rows: DataFrame) -> None:
    fastest = rows["throughput"].idxmax()
    rows.loc[fastest, "quality"] = "noisy"
    front = analysis.pareto(rows)
    assert fastest not in front.index
    stable = rows[rows["quality"] == "stable"]
    for _, point in front.iterrows():
        beats = (stable["throughput"] > point["throughput"]) & (
            stable["p99_latency_ms"] <= point["p99_latency_ms"]
        )
        assert not beats.any()


@pytest.mark.parametrize(
    "draw",
    [
        figures.throughput_over_batch,
        figures.latency_over_batch,
        latency_parts.draw_loads,
        figures.frontier,
        figures.relative_throughput,
    ],
)
def test_without_data_a_figure_says_that_nothing_was_measured_and_why(
    rows: DataFrame, draw: Callable[[DataFrame], Figure]
) -> None:
    failed = rows[rows["quality"] == "failed"]
    figure = draw(failed)
    assert "Nothing was measured.\nFirst reason: no memory" in words(figure)
    assert figure.get_figheight() < canvas("measured")[0].get_figheight() / 2
    assert words(draw(rows.head(0))) == "Nothing was measured."


def test_a_wide_range_of_batch_sizes_is_readable() -> None:
    rows = read_csv(PUBLISHED.with_name("widedeep.csv")).query("gpu == 'NVIDIA A30'")
    rows["experiment"] = (
        rows["backend"] + rows["precision"] + rows["backend_accelerator"].fillna("")
    )
    rows["quality"] = "stable"
    rows["throughput_low"] = rows["throughput_high"] = rows["throughput"]
    axes = figures.throughput_over_batch(rows).axes[0]
    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "131,072"


def test_findings_name_the_best_point_and_count_what_is_not_reliable(rows: DataFrame) -> None:
    t4 = of(rows, "NVIDIA T4")
    assert describe.throughput(t4) == (
        "Highest offline throughput: 1,203 samples/s (95% CI 1,179 to 1,227), p99 55.3 ms: NVIDIA "
        "T4, batch size 64, 1 client, offline."
    )
    offline = t4[t4["scenario"] == "offline"]
    assert describe.qualities(offline).startswith(
        "8 measurements: 6 stable, 1 imprecise, 1 failed."
    )
    assert "55.3 ms at batch size 64" in describe.latency(t4)
    assert ". Throughput is highest with " in describe.latency_parts(t4)
    said = describe.frontier(rows, 20)
    assert said.startswith("Fastest within 20 ms (p99): 4,630 samples/s (95% CI 4,537 to 4,723)")
    assert ": NVIDIA DGX A100 (1x A100 80GB), batch size " in said
    assert "reaches 90% of the in-process" in describe.relative_throughput(rows)


def test_findings_of_no_data_say_so(rows: DataFrame) -> None:
    failed = rows[rows["quality"] == "failed"]
    assert describe.throughput(failed) == "No offline throughput is known."
    assert describe.latency(failed) == "No offline p99 is known."
    assert describe.latency_parts(failed) == "No online latency is known."
    assert describe.frontier(failed, 5) == (
        "No configuration is confirmed to meet the p99 budget of 5 ms."
    )
    assert describe.relative_throughput(failed) == "No relative throughput is known."


def test_a_shown_figure_has_its_sentence_and_its_data_below_it(
    rows: DataFrame,
    tmp_path: Path,
    shown: list[Any],
) -> None:
    show(figures.frontier(rows), "the best is 5", rows, tmp_path / "a figure.csv")
    picture, below = shown
    assert picture.data.startswith(b"\x89PNG")
    assert (picture.alt, picture.width) == ("the best is 5", 984)
    assert 'href="a%20figure.csv"' in below.data
    assert ">the best is 5<" in below.data
    assert len(read_csv(tmp_path / "a figure.csv")) == len(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["a figure.csv"]


def test_a_table_shows_failed_rows_with_their_reason_and_escapes_it(rows: DataFrame) -> None:
    columns = ["experiment", "batch_size", "throughput", "p99_latency_ms", "quality", "reason"]
    html = table(of(rows, "NVIDIA T4")[columns], "T4 & others").html
    assert "T4 &amp; others" in html
    assert "p99 latency (ms)" in html
    assert "throughput (samples/s)" in html
    assert 'class="quality quality-failed"' in html
    assert "no memory for &lt;script&gt;" in html
    assert "<script" not in html
    assert ">1,203</td>" in html
    assert "nan" not in html


def test_a_configuration_is_a_table_of_keys_and_values() -> None:
    config = {"max_batch_size": 65536, "batch_sizes": [1, 2], "max_queue_delay_us": 0.5}
    html = table({**config, "checkpoint": None, "graph": True, "note": "<b>"}).html
    for words in (
        "max batch size",
        "65,536",
        "1, 2",
        "max queue delay (µs)",
        "–",
        "yes",
        "&lt;b&gt;",
    ):
        assert f">{words}<" in html


def test_small_numbers_keep_their_digits() -> None:
    html = table([{"largest_difference": 1.234e-6}, {"largest_difference": 2e-7}]).html
    assert ">1.23e-06<" in html
    html = table(concat([DataFrame({"p99_latency_ms": [2.126, 69.79]})])).html
    assert ">2.13<" in html
    assert ">69.79<" in html
    assert ">1.2e-06<" in table([{"d": 1.234e-6}], formats={"d": ".1e"}).html


def test_a_metric_that_is_almost_the_reference_s_is_not_shown_as_equal() -> None:
    html = table([{"framework": 1.0, "served": 0.9997}, {"served": 0.5}]).html

    assert ">1.0000<" in html
    assert ">reference<" in html
    assert ">0.9997<" in html
    assert ">ONNX, FP32<" in table([{"served": "ONNX, FP32"}]).html


def test_stages_that_were_not_done_for_one_reason_say_it_once() -> None:
    def ended(stage: str, state: State, reason: str = "") -> Result:
        return Result(
            model="bert", experiment="mine", stage=stage, gpu="CPU", state=state, reason=reason
        )

    results = [
        ended("deploy", "skipped", "no driver"),
        ended("convert", "failed", "a bad weight"),
        ended("export", "done"),
        ended("perf_offline", "skipped", "no driver"),
    ]
    found = {"mine": {result.stage: result for result in results}, "other": {}}
    config: Any = SimpleNamespace(experiments=tuple(found))

    rows = tables.configurations(config, found)

    assert [row["not done"] for row in rows] == [
        "convert failed: a bad weight; deploy, perf_offline skipped: no driver",
        "nothing has run yet",
    ]


def test_experiments_show_the_precision_of_their_tables_their_size_and_the_peak_memory() -> None:
    def stages(precision: str, size_mb: float, *peaks_mb: float | None) -> dict[str, Result]:
        settings: Any = {"lookup": "mapped", "table_precision": precision}
        fingerprint = Fingerprint(config=settings, notebook="", versions={}, inputs={})
        artifact = ArtifactFacts(folder="", sha256="", size_mb=size_mb, files={})
        rows = [
            Row(batch_size=1, concurrency=1, quality="stable", server_peak_memory_mb=each)
            for each in peaks_mb
        ]
        measured = Measurement(rows=tuple(rows), distinct_rows=1, background_before=None)
        own: Any = {"model": "dlrm", "experiment": precision, "gpu": "CPU", "state": "done"}
        return {
            "convert": Result(stage="convert", artifact=artifact, **own),
            "perf_offline": Result(
                stage="perf_offline", fingerprint=fingerprint, measurement=measured, **own
            ),
        }

    found = {"fp32": stages("fp32", 86, 450, 500, None), "int8": stages("int8", 29, None)}
    config: Any = SimpleNamespace(experiments=tuple(found))

    assert tables.configurations(config, found) == [
        {
            "experiment": name,
            "lookup": "mapped",
            "table_precision": name,
            "size_mb": size_mb,
            "server_peak_memory_mb": peak_mb,
        }
        for name, size_mb, peak_mb in (("fp32", 86, 500), ("int8", 29, None))
    ]


def test_the_answer_says_whether_checks_failed_passed_or_did_not_run() -> None:
    def stages(state: State, *differences: float, reason: str = "") -> Results:
        checks = [
            ParityCheck(
                name="export",
                precision="FP32",
                samples=64,
                differences=(
                    Difference(
                        output="y",
                        max_difference=difference,
                        mean_difference=0.0,
                        max_bound=0.1,
                        mean_bound=0.1,
                    ),
                ),
            )
            for difference in differences
        ]
        return {
            "mine": {
                stage: Result(
                    model="bert",
                    experiment="mine",
                    stage=stage,
                    gpu="CPU",
                    state=state,
                    reason=reason,
                    checks=tuple(checks) if stage == "export" else (),
                )
                for stage in ("export", "deploy")
            }
        }

    def said(found: Results) -> str:
        return text.accuracy(found).removeprefix("Nothing was served. ")

    assert said(stages("done", 0.05)) == "All parity checks that ran passed."
    assert said({"mine": {}}) == "No parity check has run."
    assert said(stages("skipped", reason="no GPU")) == "No parity check has run."
    assert said(stages("blocked", 0.05, 0.5)) == (
        "Failed: mine (export FP32: output y differs from the reference by up to 0.5 standard "
        "deviations (tolerance 0.1) and 0 on average (tolerance 0.1))."
    )
    assert said(stages("failed", reason="the server stopped")) == (
        "Failed: mine (the server stopped)."
    )
