"""A check's tolerances pass a faithful output and fail a wrong one; the metric keeps 99%."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers import models
from helpers.config.loading import configure, read_file, resolve
from helpers.config.schema import StageConfig as Config
from helpers.config.schema import artifact_folder
from helpers.measure import checks as accuracy
from helpers.measure.checks import (
    KEPT_SHARE,
    SAMPLES,
    Difference,
    ParityCheck,
    Score,
    check,
    difference,
    scores,
)
from helpers.models.resnet50 import MODEL as resnet50
from helpers.store.artifacts import Artifact, create_artifact, find_artifact
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT

Floats = NDArray[np.float32]


@pytest.fixture
def config() -> Config:
    return resolve("resnet50", "deploy")


@pytest.fixture(params=resnet50.TOLERANCES, ids=str)
def tolerances(request: pytest.FixtureRequest) -> tuple[float, float]:
    return resnet50.TOLERANCES[request.param]


def reference() -> Floats:
    """Outputs of 64 samples with a mean and a deviation of their own, as logits have."""
    random = np.random.default_rng(0)
    found: Floats = (random.normal(size=(SAMPLES, 1000)) * 2.5 - 0.3).astype(np.float32)
    return found


def made_up() -> Floats:
    """An output with the reference's own mean and deviation that says nothing."""
    right = reference()
    noise = np.random.default_rng(1).normal(size=right.shape)
    return (right.mean() + right.std() * noise).astype(np.float32)


def swapped() -> Floats:
    found = reference()
    found[[7, 8]] = found[[8, 7]]
    return found


def with_value(value: float) -> Floats:
    found = reference()
    found[3, 4] = value
    return found


WRONG = {
    "random": made_up(),
    "all zero": np.zeros_like(reference()),
    "two samples swapped": swapped(),
    "shifted by a sample": np.roll(reference(), 1, axis=0),
    "one NaN": with_value(np.nan),
    "one infinity": with_value(np.inf),
    "a sample short": reference()[:-1],
    "transposed": reference().T,
    "nothing": np.empty(0, np.float32),
}


@pytest.mark.parametrize("found", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_output_breaks_every_bound(found: Floats, tolerances: tuple[float, float]) -> None:
    assert not difference("OUT", found, reference(), tolerances).ok


@pytest.mark.parametrize("found", [with_value(np.nan), with_value(-np.inf), reference()[:-1]])
def test_what_cannot_be_compared_has_no_difference_and_breaks_its_bound(found: Floats) -> None:
    far = difference("OUT", found, reference(), (1e9, 1e9))

    assert (far.max_difference, far.mean_difference, far.ok) == (None, None, False)


def test_a_little_noise_holds(tolerances: tuple[float, float]) -> None:
    right = reference().astype(np.float64)
    noise = np.random.default_rng(2).uniform(-1, 1, right.shape) * tolerances[1] * right.std()

    found = difference("OUT", right + noise, right, tolerances)

    assert found.ok
    assert found.mean_difference == pytest.approx(tolerances[1] / 2, rel=0.01)


def test_a_difference_is_in_deviations_of_the_reference() -> None:
    right = np.array([[0.0, 4.0], [4.0, 0.0]], np.float32)  # deviation 2

    found = difference("OUT", right + np.array([[1, 0], [0, 0]]), right, (1.0, 0.2))

    assert (found.max_difference, found.mean_difference) == (0.5, 0.125)
    assert found.ok


def test_one_sample_far_off_fails_though_the_mean_holds() -> None:
    found = difference("OUT", with_value(100.0), reference(), (0.1, 0.1))

    assert found.mean_difference < 0.1
    assert not found.ok


def test_a_check_names_the_output_that_is_wrong_and_its_tolerances(config: Config) -> None:
    right = {"OUTPUT__0": reference()}

    passed = check("served", config, "fp32", right, right)
    failed = check("served", config, "fp32", {"OUTPUT__0": np.zeros_like(reference())}, right)
    lost = check("served", config, "fp32", {"OTHER": reference()}, right)

    assert (passed.failure, passed.samples) == ("", SAMPLES)
    assert failed.failure.startswith(
        "served fp32: output OUTPUT__0 differs from the reference by up to "
    )
    assert " standard deviations (tolerance 5.6e-05) and " in failed.failure
    assert " on average (tolerance 1.4e-05); sample " in failed.failure
    assert failed.rows()[0]["result"] == "failed"
    assert lost.failure == "served fp32: output OUTPUT__0 has a different shape"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("two samples swapped", ": output OUTPUT__0 differs from the reference by up to 4.2 stand"),
        ("one NaN", ": output OUTPUT__0 is not finite; sample 3 of 64 is nan instead of "),
        ("one infinity", ": output OUTPUT__0 is not finite; sample 3 of 64 is inf instead of "),
    ],
)
def test_a_failed_check_names_the_sample_that_differs_most_and_both_values(
    name: str, words: str, config: Config
) -> None:
    right, found = reference(), WRONG[name]
    failed = check("served", config, "fp32", {"OUTPUT__0": found}, {"OUTPUT__0": right})

    (only,) = failed.differences
    assert only.sample is not None
    worst = np.abs(found[only.sample] - right[only.sample]).argmax()  # the place of a NaN
    assert words in failed.failure
    assert failed.failure.endswith(
        f"; sample {only.sample} of 64 is {float(found[only.sample, worst])} "
        f"instead of {float(right[only.sample, worst])}"
    )
    assert ParityCheck.model_validate_json(
        failed.model_dump_json()
    ).failure  # JSON has null for a NaN


def test_a_16_bit_check_as_near_as_fp32_says_so_on_its_page(config: Config) -> None:
    right = {"OUTPUT__0": reference()}
    near = {"OUTPUT__0": reference() * np.float32(1 + 1e-6)}
    rounded = {"OUTPUT__0": reference() * np.float32(1 + 1e-3)}

    def note(precision: str, found: dict[str, Floats], tolerances: Any = None) -> object:
        return check("served", config, precision, found, right, tolerances).rows()[0]["reason"]

    # an accurate kernel of a lower precision is as near, so it is not certain
    said = "probably computed in fp32: it is within the tolerances of fp32"
    assert note("bf16", near) == note("fp16", near) == said
    assert note("fp32", near) == note("bf16", rounded) == ""
    assert note("bf16", near, (0.1, 0.1)) == ""  # its own converted model should be as near


def test_a_check_fails_when_any_of_its_outputs_does() -> None:
    right, tolerances = reference(), (0.1, 0.1)
    good = difference("good", right, right, tolerances)
    bad = difference("bad", np.zeros_like(right), right, tolerances)

    def fault(*differences: Difference) -> str:
        name, precision = "converted", "fp32"
        return ParityCheck(
            name=name, precision=precision, samples=1, differences=differences
        ).failure

    assert fault(good, bad).startswith("converted fp32: output bad ")
    assert fault(good, good) == ""


@pytest.mark.parametrize(
    ("experiment", "precision"), [("savedmodel-amp", "fp16"), ("trt-fp16", "fp16")]
)
def test_an_accelerator_is_held_to_the_bounds_of_its_own_precision(
    experiment: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Automatic mixed precision computes an fp32 graph in fp16."""
    right = {"wide_deep_model": reference()}
    served = {"wide_deep_model": reference() + np.float32(2e-3)}
    monkeypatch.setattr(accuracy, "_reference", lambda *_: (right, {"map12": 0.6}))
    dataset = SimpleNamespace(
        batches=lambda *_: iter(()),
        score=lambda _: {"map12": 0.6},
        decisions=lambda outputs: outputs["wide_deep_model"].argmax(axis=1),
    )
    monkeypatch.setattr(accuracy, "open_dataset", lambda _: dataset)
    parameters = read_file(ROOT / "params/NVIDIA-T4.yaml")
    chosen: Any = configure(parameters, "widedeep", experiment, "deploy")

    server: Any = SimpleNamespace(infer_all=lambda *_: served)
    checks, (score, decided) = accuracy.evaluate(chosen, server)

    found = [(each.name, each.reference, each.precision, each.failure) for each in checks]
    assert found == [
        ("served", "reference", precision, ""),
        ("served under load", "reference", precision, ""),  # a native backend has its own runtime
    ]
    assert (score.failure, decided.metric, decided.failure) == ("", "match_rate", "")


def test_decisions_that_differ_in_more_than_two_of_a_hundred_are_a_fault() -> None:
    right = np.arange(100)

    assert accuracy.match_rate(right, np.where(right < 2, -1, right)).failure == ""
    assert accuracy.match_rate(right, np.where(right < 3, -1, right)).failure == (
        "match_rate is 0.9700 as served, at least 0.9800 is required (reference: 1.0000)"
    )
    assert accuracy.match_rate(right, right[1:]).served == 0


@pytest.mark.parametrize(
    ("device", "same", "again"), [("cpu", True, False), ("cpu", False, True), ("gpu", True, True)]
)
def test_the_exported_file_is_compared_again_only_on_another_device(
    device: str,
    same: bool,
    again: bool,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    chosen: Any = config.model_copy(update={"device": device})
    with create_artifact(artifact_folder(chosen, "export")) as (folder, _):
        (folder / "model.onnx").write_text("graph")
    export = find_artifact(artifact_folder(chosen, "export"))
    assert export
    facts = {"format": "onnx", "precision": "fp32"}
    artifact = Artifact(export.folder, export.files if same else {}, facts)
    monkeypatch.setattr(accuracy.ensemble, "load", lambda *_: pytest.fail("it is compared"))

    if again:
        with pytest.raises(pytest.fail.Exception, match="it is compared"):
            accuracy.compare(chosen, artifact)
        return
    found = accuracy.compare(chosen, artifact)
    note = "same file as the export, not compared again"
    assert (found.headline, found.failure) == (note, "")
    assert found.rows() == [
        {
            "check": "converted",
            "precision": "fp32",
            "compared with": "reference",
            "samples": 0,
            "result": "passed",
            "reason": note,
        }
    ]


@pytest.fixture
def graded(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """A model with a metric that should be high and one that should be low."""
    package = tmp_path / "graded"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from types import SimpleNamespace\n"
        'MODEL = SimpleNamespace(METRICS={"auc": "higher", "risk": "lower"})\n'
    )
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    models.names.cache_clear()
    yield config.model_copy(update={"model": "graded"})
    models.names.cache_clear()
    sys.modules.pop("helpers.models.graded", None)


def test_the_metric_keeps_99_percent_in_both_directions(graded: Config) -> None:
    framework = {"auc": 0.8, "risk": 0.099}

    def faults(auc: float, risk: float) -> list[str]:
        return [score.failure for score in scores(graded, framework, {"auc": auc, "risk": risk})]

    assert KEPT_SHARE == 0.99
    assert faults(0.8, 0.099) == ["", ""]
    assert faults(0.7921, 0.0999) == ["", ""]
    assert faults(0.95, 0.01) == ["", ""]
    assert faults(0.7919, 0.1001) == [
        "auc is 0.7919 as served, at least 0.7920 is required (reference: 0.8000)",
        "risk is 0.1001 as served, at most 0.1000 is required (reference: 0.0990)",
    ]


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_metric_that_is_not_a_number_fails(better: Literal["higher", "lower"]) -> None:
    assert Score(
        metric="top1", framework=0.9, served=float("nan"), bound=0.89, better=better
    ).failure
