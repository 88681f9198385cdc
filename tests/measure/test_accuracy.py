"""A check's tolerances pass a faithful output and fail a wrong one; the metric keeps 99%."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import models
from helpers.config import artifact_folder, configure, read_file, resolve
from helpers.measure import checks
from helpers.measure.checks import SAMPLES, ParityCheck, Score, check, difference, match_rate
from helpers.models.resnet50 import MODEL as resnet50
from helpers.store import ROOT, Artifact, create_artifact, find_artifact

# 64 samples with a mean and a deviation of their own, as logits have
RIGHT = (np.random.default_rng(0).normal(size=(SAMPLES, 1000)) * 2.5 - 0.3).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=RIGHT.shape)


def with_values(place, value):
    found = RIGHT.copy()
    found[place] = value
    return found


WRONG = {
    "random": (RIGHT.mean() + RIGHT.std() * NOISE).astype(np.float32),
    "all zero": np.zeros_like(RIGHT),
    "two samples swapped": with_values([7, 8], RIGHT[[8, 7]]),
    "shifted by a sample": np.roll(RIGHT, 1, axis=0),
    "one NaN": with_values((3, 4), np.nan),
    "one infinity": with_values((3, 4), np.inf),
    "a sample short": RIGHT[:-1],
    "transposed": RIGHT.T,
    "nothing": np.empty(0, np.float32),
}


@pytest.fixture
def config():
    return resolve("resnet50", "deploy")


@pytest.fixture(params=resnet50.TOLERANCES, ids=str)
def tolerances(request):
    return resnet50.TOLERANCES[request.param]


@pytest.mark.parametrize("found", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_output_breaks_every_bound(found, tolerances):
    assert not difference("OUT", found, RIGHT, tolerances).ok


@pytest.mark.parametrize("name", ["one NaN", "one infinity", "a sample short"])
def test_what_cannot_be_compared_has_no_difference_and_breaks_any_bound(name):
    far = difference("OUT", WRONG[name], RIGHT, (1e9, 1e9))

    assert (far.max_difference, far.mean_difference, far.ok) == (None, None, False)


def test_a_little_noise_holds(tolerances):
    right = RIGHT.astype(np.float64)
    noise = np.random.default_rng(2).uniform(-1, 1, right.shape) * tolerances[1] * right.std()

    found = difference("OUT", right + noise, right, tolerances)

    assert found.ok
    assert found.mean_difference == pytest.approx(tolerances[1] / 2, rel=0.01)


def test_a_difference_is_in_deviations_of_the_reference():
    right = np.array([[0.0, 4.0], [4.0, 0.0]], np.float32)  # deviation 2

    found = difference("OUT", right + np.array([[1, 0], [0, 0]]), right, (1.0, 0.2))

    assert (found.max_difference, found.mean_difference, found.ok) == (0.5, 0.125, True)


def test_one_sample_far_off_fails_though_the_mean_holds():
    found = difference("OUT", with_values((3, 4), 100.0), RIGHT, (0.1, 0.1))

    assert found.mean_difference < 0.1
    assert not found.ok


def test_an_infinity_in_the_same_place_is_equal():
    right = np.array([[1.0, -np.inf], [3.0, np.inf]])
    one, other = difference("OUT", right, right, (0, 0)), right.copy()
    other[0, 1] = -1e30

    assert (one.ok, one.max_difference) == (True, 0)
    assert not difference("OUT", other, right, (1e9, 1e9)).ok
    assert not difference("OUT", -right, right, (1e9, 1e9)).ok
    assert match_rate(right, right).served == 1
    assert match_rate(right, other).served < 1


@pytest.mark.parametrize("dtype", [bool, np.int64])
def test_of_whole_numbers_at_most_two_percent_may_differ(dtype):
    right = np.tile(np.array([0, 1], dtype), 50)
    few, many = right.copy(), right.copy()
    few[:2], many[:3] = np.logical_not(few[:2]), np.logical_not(many[:3])

    assert difference("OUT", few, right, (0, 0)).mean_difference == pytest.approx(0.02)
    assert difference("OUT", few, right, (0, 0)).ok
    assert not difference("OUT", many, right, (9, 9)).ok
    assert match_rate(right, few).failure == ""
    assert match_rate(right, many).failure == (
        "match_rate is 0.9700 as served, at least 0.9800 is required (reference: 1.0000)"
    )
    assert match_rate(right, right[1:]).served == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all zero", r"\(tolerance 5.6e-05\) and .* on average \(tolerance 1.4e-05\); sample "),
        ("two samples swapped", "differs from the reference by up to 4.2 standard deviations "),
        ("one NaN", "is not finite; sample 3 of 64 is nan instead of "),
        ("one infinity", "is not finite; sample 3 of 64 is inf instead of "),
    ],
)
def test_a_failed_check_names_the_sample_that_differs_most_and_both_values(name, words, config):
    found = WRONG[name]
    right = {"good": RIGHT, "OUTPUT__0": RIGHT}
    failed = check("served", config, "fp32", {"good": RIGHT, "OUTPUT__0": found}, right)

    _, far = failed.differences
    worst = np.abs(found[far.sample] - RIGHT[far.sample]).argmax()  # the place of a NaN
    assert re.search(words, failed.failure)
    assert failed.failure.startswith("served fp32: output OUTPUT__0 ")
    assert failed.failure.endswith(
        f"; sample {far.sample} of 64 is {float(found[far.sample, worst])} "
        f"instead of {float(RIGHT[far.sample, worst])}"
    )
    assert [row["result"] for row in failed.rows()] == ["passed", "failed"]
    again = ParityCheck.model_validate_json(failed.model_dump_json())  # JSON has null for a NaN
    assert again.failure


def test_a_check_of_equal_outputs_passes_and_one_without_an_output_names_it(config):
    right = {"OUTPUT__0": RIGHT}

    passed = check("served", config, "fp32", right, right)
    lost = check("served", config, "fp32", {"OTHER": RIGHT}, right)

    assert (passed.failure, passed.samples) == ("", SAMPLES)
    assert lost.failure == "served fp32: output OUTPUT__0 has a different shape"


def test_a_16_bit_check_as_near_as_fp32_says_so_on_its_page(config):
    def note(precision, factor, bounds=None):
        found = {"OUTPUT__0": RIGHT * np.float32(factor)}
        done = check("served", config, precision, found, {"OUTPUT__0": RIGHT}, bounds)
        return done.rows()[0]["reason"]

    near, rounded = 1 + 1e-6, 1 + 1e-3
    # an accurate kernel of a lower precision is as near, so it is not certain
    said = "probably computed in fp32: it is within the tolerances of fp32"
    assert note("bf16", near) == note("fp16", near) == said
    assert note("fp32", near) == note("bf16", rounded) == ""
    assert note("bf16", near, (0.1, 0.1)) == ""  # its own converted model should be as near


@pytest.mark.parametrize("experiment", ["savedmodel-amp", "trt-fp16"])
def test_an_accelerator_is_held_to_the_bounds_of_its_own_precision(experiment, monkeypatch):
    """Automatic mixed precision computes an fp32 graph in fp16."""
    right, metrics = {"wide_deep_model": RIGHT}, {"map12": 0.6}
    monkeypatch.setattr(checks, "_reference", lambda *_: (right, metrics))
    dataset = SimpleNamespace(
        batches=lambda *_: iter(()),
        score=lambda _: metrics,
        decisions=lambda outputs: outputs["wide_deep_model"].argmax(axis=1),
    )
    monkeypatch.setattr(checks, "open_dataset", lambda _: dataset)
    chosen = configure(read_file(ROOT / "params/NVIDIA-T4.yaml"), "widedeep", experiment, "deploy")

    served = {"wide_deep_model": RIGHT + np.float32(2e-3)}
    found, (score, decided) = checks.evaluate(chosen, SimpleNamespace(infer_all=lambda *_: served))

    assert [(each.name, each.reference, each.precision, each.failure) for each in found] == [
        ("served", "reference", "fp16", ""),
        ("served under load", "reference", "fp16", ""),  # a native backend has its own runtime
    ]
    assert (score.failure, decided.metric, decided.failure) == ("", "match_rate", "")


@pytest.mark.parametrize(
    ("device", "is_same", "is_compared"),
    [("cpu", True, False), ("cpu", False, True), ("gpu", True, True)],
)
def test_the_exported_file_is_compared_again_only_on_another_device(
    device, is_same, is_compared, config, monkeypatch
):
    chosen = config.model_copy(update={"device": device})
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.onnx").write_text("graph")
    export = find_artifact(artifact_folder(chosen, "export"))
    facts = {"format": "onnx", "precision": "fp32"}
    artifact = Artifact(export.folder, export.files if is_same else {}, facts)
    monkeypatch.setattr(checks, "outputs_of", lambda *_: {"OUTPUT__0": RIGHT})
    monkeypatch.setattr(checks, "_reference", lambda *_: ({"OUTPUT__0": RIGHT}, {}))

    found = checks.compare(chosen, artifact)

    note = "" if is_compared else "same file as the export, not compared again"
    (row,) = found.rows()
    assert (found.headline == note, found.samples) == (not is_compared, SAMPLES * is_compared)
    assert (row["check"], row["result"], row["reason"]) == ("converted", "passed", note)


def test_the_metric_keeps_99_percent_in_both_directions(config, monkeypatch):
    model = SimpleNamespace(METRICS={"auc": "higher", "risk": "lower"})
    monkeypatch.setattr(models, "get", lambda _: model)

    def faults(auc, risk):
        found = checks.scores(config, {"auc": 0.8, "risk": 0.099}, {"auc": auc, "risk": risk})
        return [score.failure for score in found]

    assert faults(0.8, 0.099) == faults(0.7921, 0.0999) == faults(0.95, 0.01) == ["", ""]
    assert faults(0.7919, 0.1001) == [
        "auc is 0.7919 as served, at least 0.7920 is required (reference: 0.8000)",
        "risk is 0.1001 as served, at most 0.1000 is required (reference: 0.0990)",
    ]


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_metric_that_is_not_a_number_fails(better):
    assert Score(metric="top1", framework=0.9, served=np.nan, bound=0.89, better=better).failure
