"""What a broken installation, or a framework that is not there, keeps from running."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import results
from helpers.__main__ import main
from helpers.errors import StageError
from helpers.machine import packages
from helpers.machine.probe import Fault, fault
from helpers.pipeline import kernels, running
from helpers.pipeline.kernels import KernelServer
from helpers.results import Result
from helpers.store import OUTPUTS_VARIABLE, ROOT
from tests.machine.test_packages import knowing

TORN = fault("torch", "2.13.0", "lacks torch/nn.py")
LINE = (
    "the installation is broken: torch 2.13.0 lacks torch/nn.py. Run: "
    "pip install --force-reinstall --no-deps torch==2.13.0"
)
ABSENT = "torch is not installed. Run: pip install --no-deps -r docker/torch.lock"

KERNELS = SimpleNamespace(preload=lambda *_: None)  # that nobody starts


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models of the notebooks that would be run."""
    found: list[str] = []

    def execute(source: Path, *_: object) -> Result:
        found.append(source.parent.name)
        fields = {"model": source.parent.name, "experiment": "", "stage": source.stem, "gpu": ""}
        return Result(**fields, state="done")

    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    monkeypatch.setattr(running, "execute", execute)
    monkeypatch.setattr(running, "missing_prerequisite", lambda _: "")
    monkeypatch.setattr(kernels, "kernel_server_context", lambda: nullcontext(KERNELS))
    return found


def run(tmp_path: Path, *models: str) -> int:
    chosen = [part for each in models for part in ("--model", each)]
    command = ["run", str(ROOT / "params/smoke.yaml"), *chosen, "--stage", "export"]
    return main([*command, "--outputs", str(tmp_path / "outputs")])


@pytest.mark.parametrize(
    ("known", "code", "reason", "end"),
    [
        (TORN, 1, LINE, "1 executed, 1 skipped because of the broken installation"),
        (fault("torch"), 0, ABSENT, "1 executed, 1 skipped"),
    ],
)
def test_what_lacks_its_framework_is_skipped_with_the_reason_and_all_else_runs(
    ran: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    known: Fault,
    code: int,
    reason: str,
    end: str,
) -> None:
    knowing(monkeypatch, torch=known)

    assert run(tmp_path, "bert", "dlrm") == code

    lines = capsys.readouterr().out.splitlines()
    assert ran == ["dlrm"]
    assert f"[1/2] bert openvino-fp32 export: skipped: {reason}" in lines
    assert lines[-1].startswith(f"{end}; pages: ")
    (path,) = (tmp_path / "outputs").glob("smoke/bert/*/export.json")
    skipped = results.read(path)
    assert skipped
    assert (skipped.state, skipped.reason) == ("skipped", reason)


@pytest.mark.parametrize("name", ["torch", packages.COMMON[0]])
def test_where_nothing_chosen_can_run_it_is_one_line_and_nothing_starts(
    ran: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    knowing(monkeypatch, **{name: TORN})

    assert run(tmp_path, *(["bert"] if name == "torch" else ["bert", "dlrm"])) == 1

    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"error: {LINE}\n")
    assert ran == []
    assert not (tmp_path / "outputs").exists()


def test_a_model_whose_framework_is_not_there_is_no_failure(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knowing(monkeypatch, torch=fault("torch"))

    assert run(tmp_path, "bert") == 0
    assert ran == []


@pytest.mark.slow
def test_kernels_that_cannot_start_say_why(capfd: pytest.CaptureFixture[str]) -> None:
    """A package may break between the check and the kernel."""
    kernel_server = KernelServer()
    kernel_server.preload("nowhere")
    reason = "No kernel can be started: ModuleNotFoundError: No module named 'nowhere'"

    for _ in range(2):
        with pytest.raises(StageError, match=f"^{reason}. Run: triton-notebooks doctor$"):
            kernel_server.fork([], {}, "/")

    assert kernel_server._process is None
    assert capfd.readouterr().err == ""
