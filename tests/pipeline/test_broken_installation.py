"""What a broken installation, or a framework that is not there, keeps from running."""

import pytest

from helpers import results
from helpers.__main__ import main
from helpers.errors import StageError
from helpers.machine import packages
from helpers.machine.probe import fault
from helpers.pipeline.kernels import KernelServer
from helpers.store import ROOT
from tests.machine.test_packages import knowing

TORN = fault("torch", "2.13.0", "lacks torch/nn.py")
LINE = (
    "the installation is broken: torch 2.13.0 lacks torch/nn.py. Run: "
    "pip install --force-reinstall --no-deps torch==2.13.0"
)
ABSENT = "torch is not installed. Run: pip install --no-deps -r docker/torch.lock"


def run(tmp_path, *models):
    chosen = [part for each in models for part in ("--model", each)]
    command = ["run", str(ROOT / "params/smoke.yaml"), *chosen, "--stage", "export"]
    return main([*command, "--outputs", str(tmp_path / "outputs")])


@pytest.mark.parametrize(
    ("known", "code", "reason", "end"),
    [(TORN, 1, LINE, " because of the broken installation"), (fault("torch"), 0, ABSENT, "")],
)
def test_what_lacks_its_framework_is_skipped_with_the_reason_and_all_else_runs(
    ran, tmp_path, monkeypatch, capsys, known, code, reason, end
):
    knowing(monkeypatch, torch=known)

    assert run(tmp_path, "bert", "dlrm") == code

    lines = capsys.readouterr().out.splitlines()
    assert ran == [("dlrm", "export")]
    assert f"[1/2] bert openvino-fp32 export: skipped: {reason}" in lines
    assert lines[-1].startswith(f"1 executed, 1 skipped{end}; pages: ")
    (path,) = (tmp_path / "outputs").glob("smoke/bert/*/export.json")
    skipped = results.read(path)
    assert (skipped.state, skipped.reason) == ("skipped", reason)


@pytest.mark.parametrize(
    ("name", "models"), [("torch", ["bert"]), (packages.COMMON[0], ["bert", "dlrm"])]
)
def test_where_nothing_chosen_can_run_it_is_one_line_and_nothing_starts(
    ran, tmp_path, monkeypatch, capsys, name, models
):
    knowing(monkeypatch, **{name: TORN})

    assert run(tmp_path, *models) == 1

    assert capsys.readouterr() == ("", f"error: {LINE}\n")
    assert ran == []
    assert not (tmp_path / "outputs").exists()


def test_a_model_whose_framework_is_not_there_is_no_failure(ran, tmp_path, monkeypatch):
    knowing(monkeypatch, torch=fault("torch"))

    assert run(tmp_path, "bert") == 0
    assert ran == []


@pytest.mark.slow
def test_kernels_that_cannot_start_say_why(capfd):
    """A package may break between the check and the kernel."""
    kernel_server = KernelServer()
    kernel_server.preload("nowhere")
    reason = "No kernel can be started: ModuleNotFoundError: No module named 'nowhere'"

    for _ in range(2):
        with pytest.raises(StageError, match=f"^{reason}. Run: triton-notebooks doctor$"):
            kernel_server.fork([], {}, "/")

    assert capfd.readouterr().err == ""
