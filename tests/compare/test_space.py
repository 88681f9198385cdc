"""What may be chosen: what passed the parity checks; and the winner as a parameter file."""

import pytest

from helpers.__main__ import main
from helpers.compare import candidates, choices, evaluation, tune, write_experiment
from helpers.compare.search import Trial, Winner
from helpers.compare.space import CHECK_STAGES, PREFIX, Space
from helpers.compare.winner import differing
from helpers.config import artifact_folder, changed, configure, read_file, resolve, results_folder
from helpers.errors import MeasurementError, ParameterError
from helpers.pipeline.tuning import _with, experiments
from helpers.results import Result, write
from helpers.store import ROOT, create_artifact, find_artifact, mark_failed


def config(model="resnet50", experiment="", **overrides):
    return resolve(model, "tune", experiment=experiment, overrides=overrides)


def make_checked(of):
    for stage in CHECK_STAGES:
        with create_artifact(artifact_folder(of, stage)) as (folder, _):
            (folder / "model").write_text(stage)


def test_each_format_that_the_framework_leads_to_is_a_candidate():
    found, reasons = candidates(config())
    of_keras, _ = candidates(config("dlrm", "openvino-bf16"))

    known = {"onnx-fp32", "openvino-fp32", "openvino-bf16", "ts-trace-fp32", "ts-script-fp32"}
    assert known <= set(found)
    assert next(iter(found)) == "onnx-fp32"
    assert found["openvino-bf16"] == {
        **{"export_format": "onnx", "export_precision": "fp32"},
        **{"format": "openvino", "precision": "bf16"},
        **{"accelerator": "none", "accelerator_precision": None},
    }
    assert next(iter(of_keras)) == "openvino-bf16"
    assert {"tf-savedmodel-fp32", "onnx-fp32", "openvino-fp32"} < set(of_keras)
    assert not {name for name in of_keras if name.startswith("ts-")}
    assert reasons == {}


@pytest.mark.parametrize("model", ["resnet50", "dlrm"])
def test_the_search_looks_for_each_format_that_was_checked(model):
    given = read_file(ROOT / "params/cpu.yaml")
    given.file.models[model].defaults["calibration_samples"] = 16
    chosen = configure(given, model, "", "tune")
    found = experiments(given, chosen)
    wider = _with(given, model, found)

    assert {"tune-onnx-int8", "tune-openvino-int8"} < set(found)
    for name, fields in candidates(chosen)[0].items():
        climbed = configure(wider, model, PREFIX + name, "deploy")
        sought = changed(chosen, {**fields, "experiment": PREFIX + name})
        assert artifact_folder(sought, "deploy") == artifact_folder(climbed, "deploy"), name


def test_a_failed_check_excludes_a_format_with_its_reason():
    chosen = config(tune_space={"format": ["openvino-fp32", "openvino-bf16", "ts-trace-fp32"]})
    found, _ = candidates(chosen)
    made = {name: changed(chosen, {**f, "experiment": PREFIX + name}) for name, f in found.items()}
    for name in ("onnx-fp32", "openvino-fp32", "openvino-bf16"):
        make_checked(made[name])
    failed = find_artifact(artifact_folder(made["openvino-bf16"], "deploy"))
    mark_failed(failed, "served bf16: OUTPUT__0 differs")
    export = made["ts-trace-fp32"].model_copy(update={"stage": "export"})
    head = export.model_dump(include={"model", "experiment", "gpu", "stage"})
    write(export, Result(**head, state="failed", reason="it cannot be traced"))

    space = choices(chosen)

    assert space.values["format"] == ("onnx-fp32", "openvino-fp32")
    assert space.excluded == {
        "openvino-bf16": "deploy failed: served bf16: OUTPUT__0 differs",
        "ts-trace-fp32": "export failed: it cannot be traced",
    }


def test_an_experiment_without_its_parity_checks_is_not_tuned():
    with pytest.raises(MeasurementError, match=r"Run triton-notebooks tune params/cpu.yaml"):
        choices(config())


def test_the_experiments_own_values_come_first_and_only_a_recommender_has_a_composition():
    chosen = config(threads=1, max_queue_delay_us=250, concurrency=[1, 4, 16])
    for each in (chosen, config("dlrm")):
        make_checked(each)

    values, of_dlrm = choices(chosen).values, choices(config("dlrm")).values

    assert values["threads"][0] == 1
    assert values["max_queue_delay_us"] == (250, 0, 1000, 5000)
    assert values["preferred_batch_sizes"] == ([4, 8], [], [4], [8])
    assert values["concurrency"] == (16, 4, 1)
    assert "composition" not in values
    assert of_dlrm["composition"] == ("ensemble", "fused")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"batch_sizes": [1]}, "batch_sizes is not tuned. Use one of format, thr"),
        ({"threads": [1, "two"]}, r"tune_space\.threads is 'two'. It should be a valid integer"),
        ({"preferred_batch_sizes": [[16]]}, r"preferred_batch_sizes is \[16\]. 16 is above max_"),
        ({"concurrency": [0]}, r"concurrency\.0 is 0. It should be greater than or equal to 1"),
    ],
)
def test_a_value_that_the_field_cannot_have_is_one_line(space, words):
    with pytest.raises(ParameterError, match=words):
        choices(config(tune_space=space))


def test_an_unknown_model_is_one_line(capsys):
    path = str(ROOT / "params/smoke.yaml")

    assert main(["tune", path, "--model", "resnet", "--minutes", "1"]) == 2

    said = "resnet50, bert, tft, widedeep, dlrm, dcnv2"
    error = f"error: params/smoke.yaml has no model 'resnet'. Use one of {said}.\n"
    assert capsys.readouterr() == ("", error)


def test_without_optuna_a_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)

    with pytest.raises(MeasurementError, match=r"pip install 'optuna>=5,<6'"):
        tune(config(), Space({}, {}, {}))


def test_the_winner_is_a_parameter_file_that_says_what_each_field_is_worth():
    chosen = config(tune_minutes=2)
    make_checked(chosen)
    making_fields, _ = candidates(chosen)
    space = choices(chosen)
    space = Space(space.values, making_fields, {})
    choice = {**space.start, "format": "openvino-int8", "instances": 2, "threads": 1}
    told = {"p99_latency_ms": 90.0, "throughput": 71.5, "budget": "met"}
    told |= {"number": 3, "choice": choice, "state": "faster", "against": 0}

    def measured(ratio):
        return Trial(**told, ratio=ratio, low=ratio - 0.1, high=ratio + 0.1)

    why = {"format": measured(1.5), "instances": measured(1.12), "threads": measured(1.05)}
    winner = Winner(choice=choice, final=measured(1.9), why=why, passed_over={})

    path = write_experiment(chosen, space, winner)

    assert path == results_folder(chosen) / "cpu-resnet50-tuned.yaml"  # it has overrides
    tuned = read_file(path).experiment("resnet50", "tuned").model_dump()
    own = read_file(ROOT / "params/cpu.yaml").experiment("resnet50", "onnx-fp32").model_dump()
    changes = {name: value for name, value in tuned.items() if value != own[name]}
    assert changes == {
        **{"format": "openvino", "precision": "int8"},
        **{"calibration_samples": 128, "calibration_seed": 0},
        **{"instances": {"offline": 2, "online": 2}, "threads": 1},
    }
    text = path.read_text()
    for said in (
        '\n        format: "openvino"  # 1.50× (95% CI 1.40 to 1.60)\n',
        "\n        calibration_samples: 128  # 1.50× (95% CI 1.40 to 1.60)\n",
        "\n        max_batch_size: 8\n",
        "\n        instances: 2  # 1.12× (95% CI 1.02 to 1.22)\n",
        "71.5 samples/s, 1.90× (95% CI 1.80 to 2.00)\n# the throughput of",
        "p99 90 ms (budget 200 ms: met)",
    ):
        assert said in text
    assert set(differing(space, winner)) == set(changes)

    plain = chosen.model_copy(update={"experiment": "onnx-fp32", "overrides": {}})
    assert write_experiment(plain, space, winner) == path.parents[1] / path.name


def test_a_search_without_clients_is_one_line_unless_its_space_names_some():
    line = "^resnet50 openvino-fp32: concurrency is empty. Set the clients in tune_space.$"
    with pytest.raises(ParameterError, match=line):
        choices(config(experiment="openvino-fp32"))

    named = config(experiment="openvino-fp32", tune_space={"concurrency": [2, 4]})
    make_checked(named)
    assert choices(named).values["concurrency"] == (4, 2)
