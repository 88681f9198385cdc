"""What is written of a stage: valid JSON of a published schema, which reads back as it was."""

import json
import math
from pathlib import Path
from typing import get_args

import jsonschema
import numpy as np
import pytest

from helpers.config import Experiment, resolve
from helpers.config.old_names import FIELDS, QUALITIES
from helpers.results import Measurement, Quality, Result, Row, read, read_requests
from helpers.store import ROOT, outputs

SCHEMA = ROOT / "helpers/results/schema.json"


def strictly(text):
    """Parse JSON as a program in another language would: NaN and Infinity are none."""

    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def a_result(**figures):
    row = Row(batch_size=1, concurrency=1, quality="imprecise").model_copy(update=figures)
    measurement = Measurement(rows=(row,), distinct_rows=1, background_before=math.nan)
    named = {"model": "m", "experiment": "e", "stage": "perf_offline", "gpu": "CPU"}
    return Result(**named, state="done", measurement=measurement)


def test_the_schema_in_the_package_is_that_of_the_type():
    """After a change: write `Result.model_json_schema(mode="serialization")` there, indent 1."""
    assert json.loads(SCHEMA.read_text()) == Result.model_json_schema(mode="serialization")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_written_as_null(value, tmp_path):
    path = tmp_path / "perf_offline.json"
    path.write_text(a_result(throughput=value, littles_law=1.5).model_dump_json())

    row = strictly(path.read_text())["measurement"]["rows"][0]
    assert (row["throughput"], row["littles_law"]) == (None, 1.5)
    assert read(path).measurement.rows[0].throughput is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": 1, "state": "done"}', '{"state": "done"}']
)
def test_what_is_no_result_of_this_release_counts_as_not_there(content, tmp_path):
    path = tmp_path / "deploy.json"
    assert read(path) is None
    path.write_text(content)
    assert read(path) is None


def test_a_result_of_the_older_schema_is_read_as_without_intervals():
    result = read(Path(__file__).parent / "data" / "schema_2.json")

    assert result.schema_version == 2
    stable, unstable = result.measurement.rows
    assert (stable.throughput, stable.relative_throughput, stable.quality) == (21.5, 0.96, "stable")
    assert (unstable.quality, unstable.reason) == ("unstable", "throughput varied by 18 %")
    ends = ("_low", "_high", "margin_of_error")
    bounds = [name for name in Row.model_fields if name.endswith(ends)]
    assert {getattr(row, name) for row in result.measurement.rows for name in bounds} == {None}


def test_a_result_with_the_names_of_before_is_read_by_those_of_today():
    result = read(Path(__file__).parent / "data" / "schema_3_old_names.json")

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


def test_every_new_name_is_one_of_today():
    known = {*Row.model_fields, *Result.model_fields, *Experiment.model_fields}

    assert set(FIELDS.values()) <= known
    assert not set(FIELDS) & known
    assert set(QUALITIES.values()) - {"too few pairs"} <= set(get_args(Quality))


def test_the_requests_of_a_row_are_read_run_by_run():
    config = resolve("resnet50", "report")
    file = outputs() / config.target / "resnet50/e/perf_offline_requests.npz"
    file.parent.mkdir(parents=True)
    source = {"scenario": "offline", "source": "e/perf_offline.json"}
    offline = Row(batch_size=8, concurrency=1, quality="stable", **source)
    runs = [np.arange(2 * length).reshape(-1, 2) for length in (3, 4, 5)]

    assert read_requests(config, offline) == []  # without a file
    file.write_bytes(b"PK no archive")
    assert read_requests(config, offline) == []
    names = ("batch_8_0", "batch_8_1", "batch_80_2", "batch_8_in_process_0")
    np.savez_compressed(file, **dict(zip(names, [*runs, runs[0]], strict=True)))
    found = read_requests(config, offline)

    assert [run.tolist() for run in found] == [run.tolist() for run in runs[:2]]
    online = offline.model_copy(update={"scenario": "online", "concurrency": 4})
    assert read_requests(config, online) == []


def test_every_result_of_a_run_is_valid_against_the_schema(finished):
    schema = json.loads(SCHEMA.read_text())
    paths = sorted(finished.target.glob("dummy/**/*.json"))

    for path in paths:
        jsonschema.validate(strictly(path.read_text()), schema)
        assert read(path), path
    assert len(paths) == 1 + 2 * 4 + 2  # the shared export, two experiments, compare, report


KNOWN = Row(batch_size=1, concurrency=1, throughput=40.0, quality="stable")
NOISY = Row(batch_size=4, concurrency=1, throughput=50.0, quality="noisy")
FASTEST = Row(batch_size=1, concurrency=8, throughput=1045.67, quality="imprecise")
RATE = Row(batch_size=1, concurrency=0, throughput=2000.0, rate=10.0, quality="stable")
FAILED = Row(batch_size=1, concurrency=1, quality="failed")


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        ((KNOWN, NOISY, FASTEST, RATE), "1,045.7 samples/s at batch size 1, 8 clients"),
        ((KNOWN, NOISY), "40.0 samples/s at batch size 1, 1 client"),
        ((NOISY,), "50.0 samples/s at batch size 4, 1 client (noisy)"),
        ((FAILED,), "no throughput was measured"),
    ],
)
def test_the_headline_of_a_measurement_is_a_throughput_that_is_known(rows, headline):
    assert Measurement(rows=rows, distinct_rows=1, background_before=None).headline == headline
