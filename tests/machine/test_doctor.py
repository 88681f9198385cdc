"""What a target needs and this machine lacks is named, with how to fix it."""

from types import SimpleNamespace

import pytest

from helpers.__main__ import main
from helpers.config.loading import read_file
from helpers.formats import _processor
from helpers.machine import checks
from helpers.machine.gpu import has_driver
from helpers.machine.preflight import why_unavailable
from helpers.store.paths import ROOT
from tests.machine.builders import config, knowing, told


@pytest.fixture(autouse=True)
def known(monkeypatch):
    knowing(monkeypatch)


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_a_gpu_target_names_what_is_missing_and_how_to_fix_it(tmp_path, capsys, monkeypatch):
    knowing(monkeypatch, "NVIDIA-T4")
    monkeypatch.setenv("PATH", str(tmp_path))  # no docker command
    outputs = tmp_path / "outputs"

    assert main(["doctor", str(ROOT / "params/NVIDIA-T4.yaml"), "--outputs", str(outputs)]) == 1

    lines = told(capsys)
    fix = "not found. Install NVIDIA's driver, or use params/cpu.yaml."
    assert lines["NVIDIA driver"] == ("FIX", fix)
    assert lines["Docker"][0] == "FIX"
    word, contents = lines["release 22.02"]
    assert word == "ok"
    assert "Python 3.8 (inferred), CUDA 11.6.0, driver 510, TensorRT 8.2.3.0 (inferred)" in contents
    reason = "it needs NVIDIA T4, but this machine has no NVIDIA driver"
    assert lines["resnet50 onnx-trt-fp16"] == ("FIX", reason)
    assert not outputs.exists()


def test_without_a_file_it_looks_at_the_cpu_target(capsys):
    main(["doctor"])

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
        ("fpu avx2 avx_vnni", "fp32 by avx2; int8 by avx_vnni; no bf16 (not faster than fp32)"),
        ("fpu avx2", "fp32 by avx2; no bf16, int8 (not faster than fp32)"),
    ],
)
def test_it_says_which_precisions_the_processor_has(flags, said, monkeypatch, capsys):
    monkeypatch.setattr(_processor, "cpuinfo", {"flags": flags}.get)

    main(["doctor"])

    assert told(capsys)["CPU"] == ("ok", said)


def test_it_looks_at_the_disk_of_the_given_outputs(capsys):
    main(["doctor", "--outputs", "/dev/shm/triton-notebooks/outputs"])

    lines = told(capsys)
    free = lines["/dev/shm"][1].partition(" free")[0]
    assert lines["disk"][1].partition(" free")[0] == free


def test_a_machine_that_lacks_a_little_is_told_how_to_fix_it(monkeypatch):
    def examined(python, glibc, shm, disk):
        def usage(path):
            return SimpleNamespace(free=1e9 * (shm if str(path) == "/dev/shm" else disk))

        own = SimpleNamespace(version_info=(*python, 1), executable=checks.sys.executable)
        monkeypatch.setattr(checks, "sys", own)
        monkeypatch.setattr(checks.platform, "libc_ver", lambda: ("glibc", glibc))
        monkeypatch.setattr(checks.shutil, "disk_usage", usage)
        found = {each.name: each for each in checks.run_checks([])}
        words = [found[name].word for name in ("Python", "glibc", "/dev/shm", "disk")]
        return words, found["/dev/shm"].line, found["disk"].line

    fix = ". Large requests need more. Run: mount -o remount,size=2G /dev/shm, or docker run "
    fix += "--shm-size=2g"
    found, shm, disk = examined((3, 11), "2.35", 1.0, 5.0)
    assert (found, shm) == (["ok"] * 4, "/dev/shm: 1.0 GB free, 1 needed")
    assert disk == "disk: 5.0 GB free, 5 needed"
    # 64 MB are what Docker gives a container
    found, shm, _ = examined((3, 13), "2.35", 0.064, 5.0)
    assert (found, shm) == (["ok", "ok", "WARN", "ok"], f"/dev/shm: 0.1 GB free, 1 needed{fix}")
    assert examined((3, 13), "2.35", 0.9, 5.0)[0] == ["ok", "ok", "WARN", "ok"]
    found, shm, disk = examined((3, 10), "2.34", 0.015, 4.9)
    assert (found, shm) == (["FIX"] * 4, f"/dev/shm: 0.0 GB free, 1 needed{fix}")
    assert disk.startswith("disk: 4.9 GB free, 5 needed. ")
    assert examined((3, 14), "2.4", 0.0, 0.0)[0] == ["FIX"] * 4


OBSTACLES = [
    ({}, ""),
    (
        {"export_precision": "bf16", "precision": "bf16"},
        "onnx does not support bf16 on a cpu. Use one of fp32, int8.",
    ),
    (
        {"format": "openvino", "precision": "fp16"},
        "openvino does not support fp16 on a cpu. Use one of fp32, bf16, int8.",
    ),
    (
        {"format": "trt", "precision": "fp16"},
        "trt does not support fp16 on a cpu. Use another format.",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), OBSTACLES)
def test_what_cannot_run_is_known_before_it_is_tried(changes, reason):
    assert why_unavailable(config(**changes)) == reason
