"""The roofline and its captions: each experiment's share of the machine's rates, and why."""

import pytest
from pandas import DataFrame

from helpers.report import analysis, describe, figures, text
from helpers.results import Operator, Peaks, Profile, Result, Results, Row
from helpers.results.types import ArtifactFacts, Fingerprint
from tests.report.test_answer import report, results_of, row

PEAKS = Peaks(
    threads=2,
    gflops={"fp32": 300, "bf16": 1800, "int8": 3200},
    memory_gb_s=20,
    library="x",
    seconds=1,
)


def near(share: float, experiment: str, precision: str, **fields: object) -> Row:
    """A row at a share of the compute bound."""
    columns = {
        "gflops": share * PEAKS.gflops[precision.lower()],
        "intensity": 500.0,
        "roofline_bound": "compute",
        "roofline_share": share,
        "precision": precision,
        "experiment": experiment,
        "scenario": "offline",
    }
    return row(100, **(columns | fields))


@pytest.fixture
def rows() -> list[Row]:
    return [
        near(0.45, "onnx-fp32", "FP32", batch_size=1),
        near(0.5, "onnx-fp32", "FP32"),
        near(0.25, "openvino-bf16", "BF16", intensity=10.0, roofline_bound="memory"),
        near(0.9, "onnx-fp32", "FP32", quality="noisy"),
        row(90, experiment="ts", scenario="offline", precision="FP32"),
    ]


def frame(rows: list[Row]) -> DataFrame:
    return analysis.frame(report(), results_of(rows))


def test_each_experiment_has_its_share_of_the_roofline(rows: list[Row]) -> None:
    assert describe.roofline(frame(rows), PEAKS) == (
        "Highest share of the roofline (measured rates of matrix multiplication and memory): "
        "onnx-fp32 50% (compute bound, fp32, batch size 8, offline); openvino-bf16 25% (memory "
        "bound, bf16, batch size 8, offline); unknown for ts."
    )
    assert describe.roofline(frame(rows[4:]), PEAKS).endswith("and memory): unknown for ts.")
    assert describe.roofline(frame(rows), None) == "The roofline was not measured."


def test_the_roofline_has_a_roof_for_each_precision_that_was_measured(rows: list[Row]) -> None:
    figure = figures.roofline(frame(rows), PEAKS)

    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "FLOP/byte, log scale"
    assert axes.get_ylabel() == "GFLOP/s, log scale"
    notes = [note.get_text() for note in axes.texts]
    assert notes == ["FP32 300 GFLOP/s", "BF16 1,800 GFLOP/s", "20 GB/s"]
    roofs = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 3]
    corners = [tuple(roof[1]) for roof in roofs]
    assert corners[:2] == [(300 / 20, 300), (1800 / 20, 1800)]
    assert all(roof[0][1] == pytest.approx(20 * roof[0][0]) for roof in roofs[:2])
    labels = [each.get_text() for each in figure.legends[0].get_texts()]
    assert labels[:2] == ["onnx-fp32", "openvino-bf16"]


def test_without_peaks_the_roofline_says_that_nothing_was_measured(rows: list[Row]) -> None:
    assert (
        "Nothing was measured." in figures.roofline(frame(rows), None).axes[0].texts[0].get_text()
    )


def stage(name: str, **fields: object) -> Result:
    head = {"model": "tft", "experiment": "e", "stage": name, "gpu": "CPU", "state": "done"}
    return Result.model_validate(head | fields)


def of_threads(threads: int, offline: int, cores: int) -> Result:
    config = {"threads": threads, "instances": {"offline": offline, "online": 1}}
    fingerprint = Fingerprint(config=config, notebook="", versions={}, inputs={})
    machine = {"host_processor_core_count": cores // 2, "host_processors_per_node": 2}
    return stage("perf_offline", fingerprint=fingerprint, machine=machine)


def test_a_thread_count_above_the_physical_cores_is_said() -> None:
    found: Results = {
        "many": {"perf_offline": of_threads(2, offline=2, cores=2)},
        "right": {"perf_offline": of_threads(1, offline=2, cores=2)},
        "shared": {"perf_offline": of_threads(0, offline=2, cores=2)},
    }

    assert text.reasons(found) == [
        "many: perf_offline used 4 threads on 2 physical cores. More than one thread per core does "
        "not compute faster."
    ]


def test_what_the_profile_shows_and_what_could_not_be_counted_is_said() -> None:
    operators = (Operator(kind="Conv", kernel="k", precision="fp32", calls=1, ms=1),)
    profile = Profile(batch_size=8, threads=2, operators=operators, findings=("One.", "Two."))
    facts = ArtifactFacts(
        folder="", sha256="", size_mb=1, files={}, facts={"work": "not counted: a loop"}
    )
    found: Results = {
        "e": {"convert": stage("convert", profile=profile)},
        "f": {"export": stage("export", artifact=facts)},
        "g": {"convert": stage("convert", profile=Profile(reason="not profiled: why"))},
    }

    assert text.reasons(found) == [
        "e: One. Two.",
        "f: operations not counted: a loop",
        "g: not profiled: why",
    ]


def test_the_peaks_of_a_report_are_the_highest_of_all_stages(rows: list[Row]) -> None:
    found = {name: dict(stages) for name, stages in results_of(rows).items()}
    for name, fp32 in (("onnx-fp32", 290.0), ("ts", 310.0)):
        result = found[name]["perf_offline"]
        assert result.measurement
        own = PEAKS.model_copy(update={"gflops": PEAKS.gflops | {"fp32": fp32}})
        measured = result.measurement.model_copy(update={"peaks": own})
        found[name]["perf_offline"] = result.model_copy(update={"measurement": measured})

    highest = analysis.peaks(found)

    assert highest
    assert highest.gflops == {"fp32": 310, "bf16": 1800, "int8": 3200}
    assert analysis.peaks(results_of(rows)) is None
