"""The report shows what two load generators measured of what is deployed now."""

import json
from pathlib import Path

import pytest

from helpers.config import ReportConfig, configure, read_file
from helpers.report.tables import load_generators
from helpers.results import Result
from helpers.results.types import ArtifactFacts
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT

ROW = {"scenario": "SingleStream", "LoadGen": "1.5", "perf_analyzer": "1.4"}


def deployed(experiment: str, sha256: str) -> dict[str, Result]:
    artifact = ArtifactFacts(folder="a", sha256=sha256, size_mb=1, files={})
    names = {"model": "resnet50", "experiment": experiment, "stage": "deploy", "gpu": "CPU"}
    return {"deploy": Result(**names, state="done", artifact=artifact)}


def test_an_earlier_deployments_meters_are_not_shown_and_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    config = configure(read_file(ROOT / "params/smoke.yaml"), "resnet50", "", "report")
    assert isinstance(config, ReportConfig)
    for name in ("now", "before"):
        path = tmp_path / f"smoke/resnet50/{name}/crosscheck.json"
        path.parent.mkdir(parents=True)
        row = {**ROW, "quality": "consistent"}
        path.write_text(json.dumps({"deployed": "12", "rows": [row]}))

    found = {
        "now": deployed("now", "12"),
        "before": deployed("before", "34"),
        "never": deployed("never", "12"),
        "nothing": {},
    }
    command = "run triton-notebooks crosscheck params/smoke.yaml --model resnet50 --experiment"
    assert load_generators(config, found) == [
        {"experiment": "now", **ROW, "result": "consistent"},
        *(
            {"experiment": name, "result": "not measured", "reason": f"{command} {name}"}
            for name in ("before", "never", "nothing")
        ),
    ]
