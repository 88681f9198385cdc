"""Overrides make an experiment of another name, whose results never touch the experiment's own."""

import pytest

from helpers.config import LESSONS, STAGES, command, resolve, results_folder, save_overrides
from helpers.config.overrides import LONGEST, name_of
from helpers.errors import ParameterError
from helpers.store import outputs


@pytest.mark.parametrize("stage", STAGES)
def test_results_with_overrides_lie_apart(stage):
    first = "openvino-bf16" if stage == "convert" else "onnx-fp32"  # which has one to convert
    plain = results_folder(resolve("resnet50", stage))
    found = resolve("resnet50", stage, overrides={"latency_budget_ms": 50})

    assert results_folder(found) == outputs() / f"cpu/resnet50/{first}~latency_budget_ms=50"
    assert plain in (outputs() / "cpu/resnet50", outputs() / f"cpu/resnet50/{first}")
    assert found.summary()["explored with"] == {"latency_budget_ms": 50}
    assert "explored with" not in resolve("resnet50", stage).summary()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_about_another_experiment_or_with_overrides_lies_apart(lesson):
    base = outputs() / "cpu/resnet50"

    assert results_folder(resolve("resnet50", lesson)) == base / "lessons"
    other = resolve("resnet50", lesson, experiment="openvino-fp32")
    assert results_folder(other) == base / "openvino-fp32"
    explored = resolve("resnet50", lesson, overrides={"threads": 1})
    assert results_folder(explored) == base / "onnx-fp32~threads=1"


def test_a_later_stage_knows_the_overrides_by_the_name():
    export = resolve("resnet50", "export", overrides={"threads": 1, "batch_sizes": [1, 2]})
    save_overrides(export.target, export.model, export.experiment, export.overrides)

    deploy = resolve("resnet50", "deploy", experiment="onnx-fp32~batch_sizes=1-2,threads=1")

    assert deploy.model_dump()["threads"] == 1
    assert deploy.overrides == export.overrides
    assert deploy == resolve("resnet50", "deploy", overrides=export.overrides)
    more = resolve("resnet50", "deploy", experiment=deploy.experiment, overrides={"threads": 2})
    assert more.experiment == "onnx-fp32~batch_sizes=1-2,threads=2"


def test_an_override_that_changes_nothing_is_none_and_one_of_later_stages_shares_the_artifact():
    plain = resolve("resnet50", "export")

    assert resolve("resnet50", "export", overrides={"threads": 0}) == plain
    explored = resolve("resnet50", "export", overrides={"threads": 1})
    assert (explored == plain, explored.key("export")) == (False, plain.key("export"))


@pytest.mark.parametrize("name", ["onnx-fp32~threads=9", "onnx-fp32~/../../x", "onnx-fp32~", "x~a"])
def test_a_name_that_no_stage_left_says_what_to_give(name):
    is_missing = r"is missing\. Set experiment to 'onnx-fp32', and set overrides\.$"
    with pytest.raises(ParameterError, match=f"{is_missing}|resnet50 has no experiment 'x'"):
        resolve("resnet50", "deploy", experiment=name)


def test_names_are_those_of_folders():
    assert name_of("a", {"dataset": "../x y"}).startswith("a~dataset=")
    assert "/" not in name_of("a", {"dataset": "../x y", "instances": {"offline": 1, "online": 2}})
    many = {f"field_{place}": place for place in range(40)}
    assert len(name_of("a", many)) <= LONGEST
    assert name_of("a", many) != name_of("a", many | {"field_1": 2})


def test_an_error_names_the_notebook_and_the_overrides():
    """The batch command knows no overrides."""
    config = resolve("resnet50", "deploy", overrides={"threads": 1})

    expected = "notebooks/resnet50/export.ipynb with overrides = {'threads': 1}"
    assert command(config, "export") == expected


@pytest.mark.parametrize(("model", "is_told"), [("resnet50", False), ("dlrm", True)])
def test_a_reader_is_told_of_embedding_tables_where_there_are_some(model, is_told):
    assert ("table_precision" in resolve(model, "export").summary()) == is_told
    assert ("composition" in resolve(model, "deploy").summary()) == is_told
