"""What is written of a stage: valid JSON of a published schema, which reads back as it was."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from helpers.results import Measurement, Result, Row, read
from helpers.store import ROOT
from tests.conftest import Project

SCHEMA = ROOT / "helpers/results/schema.json"


def strictly(text: str) -> Any:
    """Parse JSON as a program in another language would: NaN and Infinity are none."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def a_result(**figures: float) -> Result:
    row = Row(batch_size=1, concurrency=1, verdict="unstable").model_copy(update=figures)
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


@pytest.mark.slow
def test_every_result_of_a_run_is_valid_against_the_schema(finished: Project) -> None:
    schema = json.loads(SCHEMA.read_text())
    paths = sorted(finished.target.glob("dummy/**/*.json"))

    for path in paths:
        jsonschema.validate(strictly(path.read_text()), schema)
        assert read(path), path

    assert len(paths) == 1 + 2 * 4 + 1  # the shared export, two experiments, the report
