"""Files that were written by the names of before: what is read by them, and what says the new."""

import json

import pytest
import yaml

from helpers.config import parse, renamed_result
from helpers.errors import ParameterError
from helpers.pipeline.publishing import last_parameters
from helpers.store.lock import clear_leftovers
from tests.conftest import ONNX

EXPERIMENT = ONNX | {"point_seconds": 3.0}
CONTENT = {
    "gpu": "CPU",
    "device": "cpu",
    "defaults": {"half_width": 0.2},
    "models": {"resnet50": {"experiments": {"mine": EXPERIMENT}}},
}


def test_a_parameter_file_with_an_old_name_is_refused_with_the_new_one():
    with pytest.raises(ParameterError, match="'half_width'. Its new name is margin_of_error"):
        parse(CONTENT, "mine", "mine.yaml").experiment("resnet50", "mine")


def test_the_parameters_of_an_earlier_run_are_read_by_their_old_names(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/parameters.yaml").write_text(yaml.safe_dump(CONTENT))

    experiment = last_parameters(tmp_path, "mine").experiment("resnet50", "mine")

    assert (experiment.margin_of_error, experiment.measurement_seconds) == (0.2, 3.0)


def test_the_artifacts_of_an_earlier_run_are_found_again(tmp_path):
    (tmp_path / "mine/artefacts/key").mkdir(parents=True)
    (tmp_path / "both/artefacts/key").mkdir(parents=True)
    (tmp_path / "both/artifacts").mkdir()

    clear_leftovers(tmp_path)

    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("art*"))
    assert found == ["both/artefacts", "both/artifacts", "mine/artifacts"]
    assert (tmp_path / "mine/artifacts/key").is_dir()


def test_values_are_renamed_in_the_fields_that_have_them_and_only_in_old_results():
    score = {"metric": "agreement", "headline": "agreement 1.0"}
    check = {"name": "served", "reference": "framework", "wide": 2}
    old = {"artefact": None, "scores": [score], "rungs": [check]}

    assert json.loads(renamed_result(json.dumps(old).encode())) == {
        "artifact": None,
        "scores": [{"metric": "match_rate", "headline": "agreement 1.0"}],
        "checks": [{"name": "served", "reference": "reference", "wide": 2}],
    }
    new = json.dumps({"artifact": None, "facts": {"limit": 3}}).encode()
    assert renamed_result(new) == new
