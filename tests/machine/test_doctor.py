"""What a target needs and this machine lacks is named, with how to fix it."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.__main__ import main
from helpers.config.loading import read_file, resolve
from helpers.config.schema import StageConfig as Config
from helpers.formats import _processor
from helpers.machine import checks
from helpers.machine.checks import Check
from helpers.machine.gpu import has_driver
from helpers.machine.preflight import why_unavailable
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT

WITHOUT_GPU = pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def config(**changes: Any) -> Config:
    place = {name: changes.pop(name) for name in ("gpu", "device", "server") if name in changes}
    fields = {
        "export_format": "onnx",
        "export_precision": "fp32",
        "format": "onnx",
        "precision": "fp32",
        "max_batch_size": 8,
    } | changes
    experiments = {"experiments": {"mine": fields}}
    return resolve("resnet50", "convert", models={"resnet50": experiments}, **place)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """The lines of `doctor`: name -> word and what is said."""
    lines = capsys.readouterr().out.splitlines()
    split = [(line[:4].strip(), *line[5:].split(": ", 1)) for line in lines]
    return {name: (word, text) for word, name, text in split}


@WITHOUT_GPU
def test_a_gpu_target_names_what_is_missing_and_how_to_fix_it(
    outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(outputs))  # no docker command
    code = main(["doctor", str(ROOT / "params/NVIDIA-T4.yaml"), "--outputs", str(outputs)])

    lines = told(capsys)
    assert code == 1
    assert lines["NVIDIA driver"] == (
        "FIX",
        "not found. Install NVIDIA's driver, or use params/cpu.yaml.",
    )
    assert lines["Docker"][1] == (
        "The docker command does not start (no such file or directory). Install Docker Engine, or "
        "set server.kind to embedded."
    )
    word, contents = lines["release 22.02"]
    assert word == "ok"
    assert "Python 3.8 (inferred), CUDA 11.6.0, driver 510, TensorRT 8.2.3.0 (inferred)" in contents
    assert lines["resnet50 onnx-trt-fp16"] == (
        "FIX",
        "it needs NVIDIA T4, but this machine has no NVIDIA driver",
    )
    assert not outputs.exists()


def test_without_a_file_it_looks_at_the_cpu_target(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--outputs", str(outputs)])

    lines = told(capsys)
    experiments = read_file(ROOT / "params/cpu.yaml").experiments("resnet50")
    assert {lines[f"resnet50 {name}"] for name in experiments} == {("ok", "can run here")}
    assert "NVIDIA driver" not in lines
    assert "Docker" not in lines
    assert {"Python", "glibc", "Triton", "perf_analyzer", "/dev/shm", "disk"} < set(lines)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "fpu avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8",
            "fp32 by avx512f, avx2; bf16 by amx_bf16, avx512_bf16; int8 by amx_int8, avx512_vnni",
        ),
        (
            "fpu avx2 avx_vnni",
            "fp32 by avx2; int8 by avx_vnni; no bf16 (not faster than fp32)",
        ),
        ("fpu avx2", "fp32 by avx2; no bf16, int8 (not faster than fp32)"),
    ],
)
def test_it_says_which_precisions_the_processor_has(
    flags: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_processor, "cpuinfo", {"flags": flags}.get)

    main(["doctor"])

    assert told(capsys)["CPU"] == ("ok", said)


def test_it_looks_at_the_disk_of_the_given_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--outputs", "/dev/shm/triton-notebooks/outputs"])

    lines = told(capsys)
    free = lines["/dev/shm"][1].partition(" free")[0]
    assert lines["disk"][1].partition(" free")[0] == free


@pytest.mark.parametrize(
    ("megabytes", "word", "found"),
    [(2000, "ok", "2.0"), (64, "WARN", "0.1"), (1, "FIX", "0.0")],
)
def test_little_shared_memory_is_enough_for_small_models(
    megabytes: int,
    word: str,
    found: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 MB are what Docker gives a container, unless told otherwise."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=megabytes * 1e6))
    main(["doctor"])
    fix = ". Large requests need more. Run: mount -o remount,size=2G /dev/shm, or docker run "
    fix += "--shm-size=2g"
    text = f"{found} GB free, 1 needed{fix if word != 'ok' else ''}"
    assert told(capsys)["/dev/shm"] == (word, text)


def test_a_check_that_fails_is_one_line() -> None:
    assert Check("glibc", False, "2.31", "Use Debian 12.").line == "glibc: 2.31. Use Debian 12."


def test_a_machine_that_lacks_a_little_is_told_how_to_fix_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(python: tuple[int, int], glibc: str, shm: float, disk: float) -> list[str]:
        free = {"/dev/shm": shm}
        usage = lambda path: SimpleNamespace(free=1e9 * free.get(str(path), disk))  # noqa: E731
        executable = checks.sys.executable
        own = SimpleNamespace(version_info=(*python, 1), executable=executable)
        monkeypatch.setattr(checks, "sys", own)
        monkeypatch.setattr(checks.platform, "libc_ver", lambda: ("glibc", glibc))
        monkeypatch.setattr(checks.shutil, "disk_usage", usage)
        main(["doctor"])
        found = told(capsys)
        return [found[name][0] for name in ("Python", "glibc", "/dev/shm", "disk")]

    assert examined((3, 11), "2.35", 1.0, 5.0) == ["ok"] * 4
    assert examined((3, 13), "2.35", 0.9, 5.0) == ["ok", "ok", "WARN", "ok"]
    assert examined((3, 10), "2.34", 0.015, 4.9) == ["FIX"] * 4
    assert examined((3, 14), "2.4", 0.0, 0.0) == ["FIX"] * 4


def test_too_little_space_is_said_with_both_figures(tmp_path: Path) -> None:
    check = checks._space("disk", tmp_path / "not/there/yet", 1e6, "Free some.")

    assert not check.ok
    assert check.line.endswith(" GB free, 1000000 needed. Free some.")


OBSTACLES = {
    "none": ({}, ""),
    "bf16 in ONNX": (
        {"export_precision": "bf16", "precision": "bf16"},
        "onnx does not support bf16 on a cpu. Use one of fp32, int8.",
    ),
    "the converted precision": (
        {"format": "openvino", "precision": "fp16"},
        "openvino does not support fp16 on a cpu. Use one of fp32, bf16, int8.",
    ),
    "a format of GPUs": (
        {"format": "trt", "precision": "fp16"},
        "trt does not support fp16 on a cpu. Use another format.",
    ),
    "a native accelerator": (
        {"accelerator": "openvino"},
        "The embedded server does not support accelerator openvino. "
        "Set server.kind to docker or remote.",
    ),
    "a remote server": (
        {"server": {"kind": "remote"}},
        "server.url '' is invalid. Set it to host:port of Triton's HTTP endpoint, such as "
        "127.0.0.1:8000.",
    ),
}


@pytest.mark.parametrize(("changes", "reason"), OBSTACLES.values(), ids=OBSTACLES.keys())
def test_what_cannot_run_is_known_before_it_is_tried(changes: dict[str, Any], reason: str) -> None:
    assert why_unavailable(config(**changes)) == reason


@WITHOUT_GPU
def test_a_gpu_that_is_not_there_is_the_first_obstacle() -> None:
    found = why_unavailable(config(gpu="NVIDIA A30", device="gpu", server={"kind": "docker"}))

    assert found == "it needs NVIDIA A30, but this machine has no NVIDIA driver"
