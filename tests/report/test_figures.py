"""Figures say what was measured, what is not stable and what is missing."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.lines import Line2D
from pandas import DataFrame, read_csv

from helpers.display import COLOURS, canvas, show
from helpers.report import analysis, describe, figures, latency_parts
from helpers.results import LATENCY_COMPONENTS
from helpers.store import ROOT
from tests.report.builders import words

T4, A40 = "NVIDIA T4", "NVIDIA A40"


@pytest.fixture
def rows():
    """NVIDIA's rows of ResNet50, each GPU as an experiment; one is imprecise and one failed."""
    usual = {"quality": "stable", "reason": "", "variant": "", "dataset": "sent", "budget": None}
    usual |= {"relative_throughput": 0.9, "relative_quality": "stable", "rate": 5.0}
    usual |= {"relative_throughput_low": 0.85, "relative_throughput_high": 0.95}
    rows = read_csv(ROOT / "params/published/resnet50.csv").assign(**usual)
    rows["experiment"] = rows["gpu"]
    for column, end in (("throughput", ""), ("p99_latency_ms", "_ms")):
        for name, factor in (("low", 0.98), ("high", 1.02)):
            rows[f"{column.removesuffix('_latency_ms')}_{name}{end}"] = factor * rows[column]
    offline = rows.index[(rows["scenario"] == "offline") & (rows["gpu"] == T4)]
    rows.loc[offline[3], ["quality", "reason"]] = "imprecise", "known to ±18%"
    measured = [name for name in rows if name.endswith("_ms") or "throughput" in name]
    rows.loc[offline[7], measured] = float("nan")
    rows.loc[offline[7], ["quality", "reason"]] = "failed", "no memory for <script>"
    return rows


def of(rows, gpu):
    return rows[rows["gpu"] == gpu]


def of_one_batch(rows):
    return rows[(rows["scenario"] == "offline") & (rows["batch_size"] == 8)]


def markers(axes, face):
    lines = [line for line in axes.lines if line.get_linestyle() == "None"]
    filled = [line for line in lines if to_hex(line.get_markerfacecolor()) == to_hex(face)]
    return sum(int(np.isfinite(np.asarray(line.get_ydata(), float)).sum()) for line in filled)


def looks(figure):
    keys = [key for key in figure.legends[0].legend_handles if isinstance(key, Line2D)]
    named = [key for key in keys if "NVIDIA" in str(key.get_label())]
    return {key.get_label(): (key.get_marker(), key.get_markeredgecolor()) for key in named}


def containers(axes, kind):
    return [each for each in axes.containers if isinstance(each, kind)]


@pytest.mark.parametrize("column", ["throughput", "p99_latency_ms"])
def test_points_that_are_not_stable_are_hollow_failed_ones_counted_and_bars_are_cis(rows, column):
    is_rate = column == "throughput"
    draw = figures.throughput_over_batch if is_rate else figures.latency_over_batch
    figure, stable = draw(of(rows, T4)), draw(of(rows, A40))

    axes = figure.axes[0]
    assert (markers(axes, "white"), markers(axes, COLOURS[0])) == (1, 6)
    assert {"hollow: not stable", "not measured: 1"} <= {*words(figure).split(" | ")}
    assert not any(text in words(stable) for text in ("hollow", "not measured"))
    (bars,) = containers(stable.axes[0], ErrorbarContainer)
    ends = [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()]
    values = analysis.measured(of(rows, A40), "offline")[column]
    assert ends == [pytest.approx([0.98 * value, 1.02 * value]) for value in values]
    assert "95% CI" in words(stable)


def test_every_axis_names_its_unit_and_experiments_differ_and_keep_their_look(rows):
    figure = figures.throughput_over_batch(rows)
    few = figures.latency_over_batch(rows.assign(p99_low_ms=np.nan, p99_high_ms=np.nan))

    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch size", "throughput (samples/s)")
    assert axes.get_title(loc="left")
    assert not containers(axes, BarContainer)
    assert few.axes[0].get_ylabel() == "p99 latency (ms), log scale"
    assert "95%" not in words(few)
    shapes, colours = zip(*looks(figure).values(), strict=True)
    assert (len({*shapes}), len({*colours})) == (4, 4)
    frontier = figures.frontier(rows, 20)
    assert looks(figure) == looks(frontier)
    assert "budget 20 ms" in words(frontier)
    assert "budget" not in words(figures.frontier(rows))


def test_the_components_stack_up_to_the_average_latency(rows):
    online = of(rows, A40)
    axes = latency_parts.draw_loads(online).axes[0]

    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1].patches[:16]]
    average = analysis.measured(online, "online")["avg_latency_ms"]
    assert tops == pytest.approx(list(average), rel=0.01)
    assert axes.get_ylabel() == "average latency (ms)"


def test_a_negative_rest_hangs_below_zero_and_the_rest_of_the_bar_is_higher(rows):
    one = analysis.measured(of(rows, A40), "online").head(1)
    parts = dict.fromkeys(LATENCY_COMPONENTS, 1.0) | {"network_server_send_recv_ms": -2.0}
    axes, right = latency_parts.draw_loads(one.assign(**parts, avg_latency_ms=4.0)).axes

    assert [bars.patches[0].get_y() for bars in axes.containers[:7]] == [0, 0, 1, 2, 3, 4, 5]
    assert axes.containers[1].patches[0].get_height() == -2
    bottom, top = axes.get_ylim()
    assert bottom < -2
    assert right.get_ylim()[0] / right.get_ylim()[1] == pytest.approx(bottom / top)


def test_components_that_were_not_measured_are_no_zeros(rows):
    empty = of(rows, A40).assign(**dict.fromkeys(LATENCY_COMPONENTS, np.nan))

    assert latency_parts.draw_loads(empty).axes[0].get_ylim()[1] > 0
    assert "average latency is 59.4 ms. Throughput is highest" in describe.latency_parts(empty)


def test_a_ratio_is_hollow_by_its_own_quality(rows):
    one = of(rows, A40)
    wide = one["batch_size"].isin((1, 2)) & (one["scenario"] == "offline")
    one.loc[wide, "relative_quality"] = "imprecise"

    assert markers(figures.relative_throughput(one).axes[0], "white") == 2


def test_one_point_per_experiment_is_a_bar_with_its_interval_and_load(rows):
    single = of_one_batch(rows)
    figure = figures.throughput_over_batch(single)

    (axes,) = figure.axes
    (bars,), (ends,) = containers(axes, BarContainer), containers(axes, ErrorbarContainer)
    assert [bar.get_width() for bar in bars.patches] == pytest.approx(list(single["throughput"]))
    is_hollow = [to_hex(bar.get_facecolor()) == "#ffffff" for bar in bars.patches]
    assert is_hollow == [*(single["quality"] != "stable")] == [*[False] * 3, True]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == [f"{name}\nbatch size 8" for name in single["experiment"]]
    lows = [segment[0, 0] for segment in ends.lines[2][0].get_segments()]
    assert lows == pytest.approx(list(single["throughput_low"]))
    assert (axes.get_xlabel(), axes.get_xlim()[0]) == ("throughput (samples/s)", 0)
    assert "95% CI" in words(figure)


def test_a_single_bar_without_an_interval_needs_no_legend(rows):
    unknown = {"throughput_low": np.nan, "throughput_high": np.nan}
    figure = figures.throughput_over_batch(of_one_batch(of(rows, A40)).assign(**unknown))

    (bar,) = figure.axes[0].patches
    assert not figure.legends
    assert bar.get_height() < abs(np.subtract(*figure.axes[0].get_ylim())) / 4


@pytest.mark.parametrize(("limit", "is_drawn"), [(40.0, True), (4000.0, False)])
def test_bars_of_two_latencies_are_side_by_side_and_not_dwarfed_by_the_budget(
    rows, limit, is_drawn
):
    single = of_one_batch(rows).assign(p50_latency_ms=8.0, p99_latency_ms=20.0)

    figure = figures.latency_over_rate(single, limit)

    bars = containers(figure.axes[0], BarContainer)
    assert [{bar.get_width() for bar in each.patches} for each in bars] == [{20.0}, {8.0}]
    first, second = ([bar.get_y() for bar in each.patches] for each in bars)
    assert all(one < other for one, other in zip(first, second, strict=True))
    assert ("budget" in words(figure)) == is_drawn
    assert words(figure).startswith("p99 | p50")
    assert figure.axes[0].get_yticklabels()[0].get_text().endswith("\n40 samples/s")


def test_no_row_beats_a_pareto_point_and_no_noisy_row_is_one(rows):
    fastest = rows["throughput"].idxmax()
    rows.loc[fastest, "quality"] = "noisy"

    front, stable = analysis.pareto(rows), rows[rows["quality"] == "stable"]

    assert (fastest in front.index, len(front) > 9) == (False, True)
    for _, point in front.iterrows():
        is_faster = stable["throughput"] > point["throughput"]
        assert not (is_faster & (stable["p99_latency_ms"] <= point["p99_latency_ms"])).any()


@pytest.mark.parametrize(
    "draw", [figures.relative_throughput, latency_parts.draw_loads, figures.frontier]
)
def test_without_data_a_figure_says_that_nothing_was_measured_and_why(rows, draw):
    figure = draw(rows[rows["quality"] == "failed"])

    assert "Nothing was measured.\nFirst reason: no memory" in words(figure)
    assert figure.get_figheight() < canvas("measured")[0].get_figheight() / 2
    assert words(draw(rows.head(0))) == "Nothing was measured."


def test_a_wide_range_of_batch_sizes_is_readable(rows):
    wide = of(rows, A40).query("scenario == 'offline'")
    wide = wide.assign(batch_size=16 ** np.arange(len(wide)), throughput=10.0**wide.index)
    axes = figures.throughput_over_batch(wide).axes[0]

    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "268,435,456"


def test_a_shown_figure_has_its_sentence_and_its_data_below_it(tmp_path, shown):
    data = DataFrame({"a": [1, 2]})
    show(canvas("title")[0], "the best is 5", data, tmp_path / "a figure.csv")

    picture, below = shown
    assert (picture.data[:4], picture.alt, picture.width) == (b"\x89PNG", "the best is 5", 984)
    assert 'href="a%20figure.csv"' in below.data
    assert ">the best is 5<" in below.data
    (path,) = tmp_path.iterdir()
    assert (path.name, path.read_text()) == ("a figure.csv", data.to_csv(index=False))
