"""What is written of a stage: valid JSON of a published schema, which reads back as it was."""

import json
import math
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest

from helpers.config import Experiment, resolve
from helpers.config.old_names import FIELDS, QUALITIES
from helpers.results import Measurement, Quality, Result, Row, read, read_requests
from helpers.store import OUTPUTS_VARIABLE, ROOT
from tests.conftest import Project

SCHEMA = ROOT / "helpers/results/schema.json"


def strictly(text: str) -> Any:
    """Parse JSON as a program in another language would: NaN and Infinity are none."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def a_result(**figures: float) -> Result:
    row = Row(batch_size=1, concurrency=1, quality="imprecise").model_copy(update=figures)
    measurement = Measurement(rows=(row,), distinct_rows=1, background_before=math.nan)
    return Result(
        model="m",
        experiment="e",
        stage="perf_offline",
        gpu="CPU",
        state="done",
        measurement=measurement,
    )


def test_the_schema_in_the_package_is_that_of_the_type() -> None:
    """After a change: write `Result.model_json_schema(mode="serialization")` there, indent 1."""
    assert json.loads(SCHEMA.read_text()) == Result.model_json_schema(mode="serialization")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_written_as_null(value: float, tmp_path: Path) -> None:
    path = tmp_path / "perf_offline.json"
    path.write_text(a_result(throughput=value, littles_law=1.5).model_dump_json())

    row = strictly(path.read_text())["measurement"]["rows"][0]
    back = read(path)

    assert (row["throughput"], row["littles_law"]) == (None, 1.5)
    assert back
    assert back.measurement
    assert back.measurement.rows[0].throughput is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": 1, "state": "done"}', '{"state": "done"}']
)
def test_what_is_no_result_of_this_release_counts_as_not_there(
    content: str, tmp_path: Path
) -> None:
    path = tmp_path / "deploy.json"
    assert read(path) is None
    path.write_text(content)
    assert read(path) is None


def test_a_result_of_the_older_schema_is_read_as_without_intervals() -> None:
    result = read(Path(__file__).parent / "data" / "schema_2.json")

    assert result
    assert result.schema_version == 2
    assert result.measurement
    stable, unstable = result.measurement.rows
    assert (stable.throughput, stable.relative_throughput, stable.quality) == (21.5, 0.96, "stable")
    assert (unstable.quality, unstable.reason) == ("unstable", "throughput varied by 18 %")
    bounds = [
        name for name in Row.model_fields if name.endswith(("_low", "_high", "margin_of_error"))
    ]
    assert {getattr(row, name) for row in result.measurement.rows for name in bounds} == {None}


def test_a_result_with_the_names_of_before_is_read_by_those_of_today() -> None:
    result = read(Path(__file__).parent / "data" / "schema_3_old_names.json")

    assert result
    assert result.fingerprint
    assert result.measurement
    asked = [result.fingerprint.config[name] for name in ("margin_of_error", "measurement_seconds")]
    offline, online, rate = result.measurement.rows
    assert asked == [0.5, 1.0]
    assert [row.quality for row in (offline, online, rate)] == ["imprecise", "noisy", "stable"]
    assert (offline.relative_quality, offline.roofline_bound) == ("too few pairs", "memory")
    assert (online.scenario, rate.scenario) == ("online", "request rate")
    measured = {name for name, value in offline.model_dump().items() if value is not None}
    assert {new for new in FIELDS.values() if new in Row.model_fields} - measured == {
        *("margin_of_error", "relative_throughput_low", "relative_throughput_high"),
        *("residual_overhead_low_ms", "residual_overhead_high_ms"),  # two pairs bound nothing
    }


def test_every_new_name_is_one_of_today() -> None:
    known = {*Row.model_fields, *Result.model_fields, *Experiment.model_fields}

    assert set(FIELDS.values()) <= known
    assert not set(FIELDS) & known
    assert set(QUALITIES.values()) - {"too few pairs"} <= set(get_args(Quality))


def test_the_requests_of_a_row_are_read_run_by_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    config = resolve("resnet50", "report")
    folder = tmp_path / config.target / "resnet50" / "e"
    folder.mkdir(parents=True)
    file = folder / "perf_offline_requests.npz"
    offline = Row(batch_size=8, concurrency=1, quality="stable").model_copy(
        update={"scenario": "offline", "source": "e/perf_offline.json"}
    )
    runs = [np.arange(2 * length).reshape(-1, 2) for length in (3, 4, 5)]

    assert read_requests(config, offline) == []  # without a file
    file.write_bytes(b"PK no archive")
    assert read_requests(config, offline) == []
    names = ("batch_8_0", "batch_8_1", "batch_80_2", "batch_8_in_process_0")
    np.savez_compressed(file, **dict(zip(names, [*runs, runs[0]], strict=True)))
    found = read_requests(config, offline)

    assert [run.tolist() for run in found] == [run.tolist() for run in runs[:2]]
    other = {"scenario": "online", "concurrency": 4}
    assert read_requests(config, offline.model_copy(update=other)) == []


@pytest.mark.slow
def test_every_result_of_a_run_is_valid_against_the_schema(finished: Project) -> None:
    schema = json.loads(SCHEMA.read_text())
    paths = sorted(finished.target.glob("dummy/**/*.json"))

    for path in paths:
        jsonschema.validate(strictly(path.read_text()), schema)
        assert read(path), path

    assert len(paths) == 1 + 2 * 4 + 1  # the shared export, two experiments, the report


def test_the_headline_of_a_measurement_is_a_throughput_that_is_known() -> None:
    rows = [
        Row(batch_size=1, concurrency=1, throughput=40.0, quality="stable"),
        Row(batch_size=4, concurrency=1, throughput=50.0, quality="noisy"),
        Row(batch_size=1, concurrency=8, throughput=1045.67, quality="imprecise"),
        Row(batch_size=1, concurrency=0, throughput=2000.0, rate=10.0, quality="stable"),
    ]

    def headline(*chosen: Row) -> str:
        return Measurement(rows=chosen, distinct_rows=1, background_before=None).headline

    assert headline(*rows) == "1,045.7 samples/s at batch size 1, 8 clients"
    assert headline(*rows[:2]) == "40.0 samples/s at batch size 1, 1 client"
    assert headline(rows[1]) == "50.0 samples/s at batch size 4, 1 client (noisy)"
    assert headline(Row(batch_size=1, concurrency=1, quality="failed")) == (
        "no throughput was measured"
    )
