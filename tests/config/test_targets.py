"""Two parameter files are told apart field by field, and a new one starts from the nearest known.

No test needs a GPU or nvidia-ml-py: a stand-in for its module `pynvml` answers as a driver would.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from helpers import formats
from helpers.__main__ import main
from helpers.config import loading, releases
from helpers.config.comparison import differences, resolved
from helpers.config.loading import read_file
from helpers.config.parameter_file import Experiment
from helpers.config.targets import KNOWN, Gpu, nearest
from helpers.machine import gpu
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT

MIB = 2**20
H100, H200 = ROOT / "params/NVIDIA-H100.yaml", ROOT / "params/NVIDIA-H200.yaml"
PLAIN = """
gpu: A
device: cpu
server: {kind: embedded, release: "24.10"}
defaults: {instances: 2}
models:
  resnet50:
    defaults: {export_format: onnx, export_precision: fp32, max_batch_size: 8}
    experiments:
      one: {format: onnx, precision: fp32}
      two: {format: openvino, precision: bf16}
"""


@pytest.fixture(autouse=True)
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of params/ in which new files are written."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.setattr(loading, "FILES", tmp_path / "params")
    return tmp_path / "params"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- params diff ---


def compared(folder: Path, changed: str, first: str = PLAIN) -> list[str]:
    """Write two files, `a.yaml` and `b.yaml`, and compare them."""
    paths = [folder / "a.yaml", folder / "b.yaml"]
    for path, text in zip(paths, (first, changed), strict=True):
        path.write_text(text)
    return [line.replace(f"{folder}/", "") for line in differences(*paths)]


def test_a_key_that_only_one_of_two_mappings_has_is_a_difference(tmp_path: Path) -> None:
    text = (ROOT / "params/cpu-hps.yaml").read_text()
    less = text.replace(", hit_rate_threshold: 0.9", "")
    assert less != text

    one, other = compared(tmp_path, text, less), compared(tmp_path, less, text)

    assert [line.partition(".")[2] for line in one] == ["9 hps.hit_rate_threshold: unset -> 0.9"]
    assert [line.partition(".")[2] for line in other] == ["9 hps.hit_rate_threshold: 0.9 -> unset"]


CHANGES = {
    "the gpu": ("gpu: A", "gpu: B", ["gpu: A -> B"]),
    "the device": ("device: cpu", "device: gpu", ["device: cpu -> gpu"]),
    "the server": (
        'kind: embedded, release: "24.10"',
        'kind: docker, release: "24.11", image: x',
        [
            "server.kind: embedded -> docker",
            "server.image: unset -> x",
            "resnet50 (all 2) release: 24.10 -> 24.11",
        ],
    ),
    "a field of one experiment": (
        "one: {",
        "one: {batch_sizes: [1, 8], ",
        ["resnet50 one batch_sizes: [1] -> [1, 8]"],
    ),
    "a field of all": (
        "instances: 2",
        "instances: {offline: 2, online: 3}",
        ["resnet50 (all 2) instances.online: 2 -> 3"],
    ),
    "what was not set": (
        "max_batch_size: 8",
        "max_batch_size: 8, latency_budget_ms: 5",
        ["resnet50 (all 2) latency_budget_ms: unset -> 5.0"],
    ),
    "a release of its own": (
        "one: {",
        'one: {release: "21.02", ',
        ["resnet50 one release: 24.10 -> 21.02"],
    ),
    "a truth value": (
        "two: {",
        "two: {capture_cuda_graph: true, ",
        ["resnet50 two capture_cuda_graph: false -> true"],
    ),
    "an experiment's name": (
        "two:",
        "three:",
        ["resnet50 two: only in a.yaml", "resnet50 three: only in b.yaml"],
    ),
    "a model": (
        "resnet50:",
        "tft:",
        ["resnet50 (all 2): only in a.yaml", "tft (all 2): only in b.yaml"],
    ),
}


@pytest.mark.parametrize(("old", "new", "lines"), CHANGES.values(), ids=CHANGES.keys())
def test_each_difference_is_a_line_that_says_where_and_from_what_to_what(
    old: str, new: str, lines: list[str], tmp_path: Path
) -> None:
    assert PLAIN.count(old) == 1

    assert compared(tmp_path, PLAIN.replace(old, new)) == lines


def test_what_only_says_the_same_otherwise_is_no_difference(tmp_path: Path) -> None:
    other = """
gpu: A
device: cpu
server: {}
models:
  resnet50:
    experiments:
      two: {<<: &all {export_format: onnx, export_precision: fp32, max_batch_size: 8,
                      instances: {offline: 2, online: 2}}, format: openvino, precision: bf16}
      one: {<<: *all, format: onnx, batch_sizes: [1]}
"""
    other = other.replace("batch_sizes: [1]", "precision: fp32, batch_sizes: [1]")

    assert compared(tmp_path, other) == []


def test_no_field_of_an_experiment_is_left_out() -> None:
    found = resolved(read_file(H100), "bert", "trt-fp16")

    assert {name.partition(".")[0] for name in found} == set(Experiment.model_fields)


def test_the_command_says_no_difference_with_exit_code_0_and_lines_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [main(["params", "diff", str(H100), str(other)]) for other in (H100, H200)]

    said = capsys.readouterr()
    assert (codes, said.err) == ([0, 1], "")
    assert said.out == "no difference\ngpu: NVIDIA H100 -> NVIDIA H200\n"
    assert not (tmp_path / "outputs").exists()


def test_a_file_that_is_missing_or_wrong_is_exit_code_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(PLAIN.replace("max_batch_size: 8", "max_batch_size: eight"))

    codes = [
        main(["params", "diff", *map(str, pair)])
        for pair in ((H100, tmp_path / "none.yaml"), (wrong, H100))
    ]

    said = capsys.readouterr()
    assert (codes, said.out) == ([2, 2], "")
    missing, broken = said.err.splitlines()
    assert missing == f"error: {tmp_path / 'none.yaml'}: No such file. Check the path."
    assert broken.startswith(f"error: {wrong}: models.resnet50.experiments.one.max_batch_size is")


# --- params/NVIDIA-H100.yaml and params/NVIDIA-H200.yaml ---


@pytest.mark.parametrize("path", [H100, H200], ids=lambda path: path.stem)
def test_a_newer_card_tries_every_model_in_both_precisions_without_tensorflows_backend(
    path: Path,
) -> None:
    content = read_file(path)
    tried: dict[str, set[tuple[str, ...]]] = {}
    for model in content.file.models:
        found = [resolved(content, model, name) for name in content.experiments(model)]
        tried[model] = {(e["format"], e["accelerator"], e["precision"]) for e in found}
        assert all(formats.get(e["format"]) for e in found if e["format"] in formats.names())
        assert {e["release"] for e in found} == {content.file.server.release}

    assert set(tried) == set(read_file(ROOT / "params/cpu.yaml").file.models)
    kinds = [("trt", "none"), ("onnx", "none"), ("onnx", "trt"), ("ts-trace", "none")]
    for model in ("resnet50", "bert", "tft"):
        assert tried[model] == {(*kind, p) for kind in kinds for p in ("fp16", "fp32")}
    for model in ("widedeep", "dlrm", "dcnv2"):
        assert {("trt", "none", "fp16"), ("trt", "none", "fp32")} < tried[model]
        assert {each[:2] for each in tried[model]} == set(kinds[:3])


@pytest.mark.parametrize("path", [H100, H200], ids=lambda path: path.stem)
def test_a_newer_cards_release_has_tensorrt_10_whose_engines_capture_cuda_graphs(
    path: Path,
) -> None:
    content = read_file(path)

    # 26.06 has TensorRT 11 (onnxruntime_backend, pull request 345)
    assert releases.has_tensorrt_10(content.file.server.release)
    assert releases.number(content.file.server.release) < (26, 6)
    for model in ("tft", "widedeep", "dlrm", "dcnv2"):  # as NVIDIA's deployment of each
        found = [resolved(content, model, name) for name in content.experiments(model)]
        assert all(each["capture_cuda_graph"] is (each["format"] == "trt") for each in found)


# --- params new ---


class NvmlError(Exception):
    """As `pynvml.NVMLError`."""


class NVMLError_DriverNotLoaded(NvmlError):
    """As pynvml makes one of each of NVML's numbers; the code goes by their names."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Put a stand-in in the place of `pynvml`; gives what is opened and closed."""

    monkeypatch.setattr(gpu, "has_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(
        name: str = "", architecture: int = 0, mib: int = 0, fails: bool = False
    ) -> list[str]:
        calls: list[str] = []
        nvml = ModuleType("pynvml")

        def start() -> None:
            calls.append("init")
            if fails:
                raise NVMLError_DriverNotLoaded

        def handle(index: int) -> str:
            if not name:
                raise NvmlError("Invalid Argument")
            return f"handle {index}"

        nvml.__dict__.update(
            NVMLError=NvmlError,
            nvmlInit=start,
            nvmlShutdown=lambda: calls.append("shutdown"),
            nvmlDeviceGetHandleByIndex=handle,
            nvmlDeviceGetName=lambda handle: {"handle 0": name}[handle],
            nvmlDeviceGetArchitecture=lambda handle: {"handle 0": architecture}[handle],
            nvmlDeviceGetMemoryInfo=lambda handle: {"handle 0": SimpleNamespace(total=mib * MIB)}[
                handle
            ],
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return calls

    return install


# What NVML calls them, nvmlDeviceArchitecture_t of nvml.h, and MiB as nvidia-smi shows them
CARDS = {
    "Tesla P40": (4, 24576, "NVIDIA-DGX-1-V100-32GB"),
    "Tesla V100-SXM2-16GB": (5, 16384, "NVIDIA-DGX-1-V100-32GB"),
    "Tesla V100-SXM2-32GB": (5, 32768, "NVIDIA-DGX-1-V100-32GB"),
    "Tesla T4": (6, 15109, "NVIDIA-T4"),
    "NVIDIA GeForce RTX 2080 Ti": (6, 11264, "NVIDIA-T4"),
    "NVIDIA A2": (7, 15356, "NVIDIA-A30"),
    "NVIDIA A10": (7, 23028, "NVIDIA-A30"),
    "NVIDIA A30": (7, 24576, "NVIDIA-A30"),
    "NVIDIA A100-PCIE-40GB": (7, 40960, "NVIDIA-A30"),
    "NVIDIA A40": (7, 46068, "NVIDIA-A40"),
    "NVIDIA RTX A6000": (7, 49140, "NVIDIA-A40"),
    "NVIDIA A100-SXM4-80GB": (7, 81920, "NVIDIA-DGX-A100-80GB"),
    "NVIDIA L4": (8, 23034, "NVIDIA-H100"),
    "NVIDIA H100 80GB HBM3": (9, 81559, "NVIDIA-H100"),
    "NVIDIA H100 NVL": (9, 95830, "NVIDIA-H100"),
    "NVIDIA H200": (9, 143771, "NVIDIA-H200"),
    "NVIDIA B200": (10, 183359, "NVIDIA-H200"),
    "one that NVML does not know": (0xFFFFFFFF, 8192, "NVIDIA-H100"),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_nearest_known_gpu_is_of_its_architecture_and_has_no_more_memory(name: str) -> None:
    architecture, mib, expected = CARDS[name]

    assert nearest(Gpu(name, architecture, mib / 1024)).name == expected


def test_every_nvidia_file_is_of_a_known_gpu() -> None:
    assert {known.name for known in KNOWN} == {p.stem for p in ROOT.glob("params/NVIDIA-*.yaml")}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_new_file_says_what_the_nearest_says_of_a_gpu_of_another_name(
    known: Gpu,
    folder: Path,
    driver: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files(folder)
    calls = driver("GeForce: 'Super' #1", known.architecture, int(known.memory_gib * 1024))

    code = main(["params", "new", "mine"])

    path, source = folder / "mine.yaml", folder / f"{known.name}.yaml"
    said = capsys.readouterr()
    assert (code, said.err, calls) == (0, "", ["init", "shutdown"])
    assert said.out == f"wrote {path}; next: triton-notebooks doctor {path}\n"
    assert files(folder) == {**before, "mine.yaml": path.read_bytes()}
    assert read_file(path).file.gpu == "GeForce: 'Super' #1"
    gpu = read_file(source).file.gpu
    assert differences(source, path) == [f"gpu: {gpu} -> GeForce: 'Super' #1"]
    head = path.read_text().partition("gpu:")[0].splitlines()
    assert head[0].startswith(f"# GeForce: 'Super' #1, {known.memory_gib:.0f} GiB.")
    assert all(line.startswith("# ") for line in head)
    assert str(source) in "".join(head)
    assert path.stat().st_mode & 0o777 == 0o644


def test_without_a_name_it_is_the_gpus(folder: Path, driver: Callable[..., list[str]]) -> None:
    driver("NVIDIA H100 80GB HBM3", 9, 81559)

    assert main(["params", "new"]) == 0

    assert read_file(folder / "NVIDIA-H100-80GB-HBM3.yaml").file.gpu == "NVIDIA H100 80GB HBM3"


def test_a_second_file_for_one_gpu_has_a_gpu_of_its_own_name(
    folder: Path, driver: Callable[..., list[str]]
) -> None:
    driver("NVIDIA A30", 7, 24576)

    assert [main(["params", "new", name]) for name in ("first", "second.yaml")] == [0, 0]

    names = [read_file(path).file.gpu for path in folder.glob("*.yaml")]
    assert {"NVIDIA A30", "NVIDIA A30 (first)", "NVIDIA A30 (second)"} < set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("arguments", [[], ["NVIDIA-A30"], ["NVIDIA-A30.yaml"], ["cpu"]])
def test_a_file_that_is_there_is_not_overwritten(
    arguments: list[str],
    folder: Path,
    driver: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files(folder)
    driver("NVIDIA A30", 7, 24576)

    code = main(["params", "new", *arguments])

    stem = (arguments or ["NVIDIA-A30"])[0].removesuffix(".yaml")
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err == (
        f"error: {folder / stem}.yaml already exists. Choose another NAME than {stem}.\n"
    )
    assert files(folder) == before


@pytest.mark.parametrize("name", ["../mine", "a/b", ".hidden", "my gpu", "-", "$HOME"])
def test_a_name_that_is_no_file_of_that_folder_is_one_line(
    name: str,
    folder: Path,
    driver: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files(folder.parent)
    driver("NVIDIA A30", 7, 24576)

    code = main(["params", "new", "--", name])

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err == (f"error: Invalid NAME '{name}'. Use letters, digits, '.', '_' and '-'.\n")
    assert files(folder.parent) == before


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EEXIST, "file exists"), (errno.ENOSPC, "no space left on device")]
)
def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(
    code: int,
    words: str,
    folder: Path,
    driver: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(code, os.strerror(code), source, None, str(target))

    before = files(folder)
    driver("NVIDIA A10", 7, 23028)
    monkeypatch.setattr(os, "replace", refuse)

    assert main(["params", "new"]) == 1

    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"error: cannot write {folder / 'NVIDIA-A10.yaml'}: {words}\n",
    )
    assert files(folder) == before


def test_a_file_is_written_where_the_file_system_has_no_hard_links(
    folder: Path, driver: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, str(target))

    driver("NVIDIA A10", 7, 23028)
    monkeypatch.setattr(os, "link", refuse)

    assert main(["params", "new"]) == 0
    assert (folder / "NVIDIA-A10.yaml").exists()


MENDED = "Install NVIDIA's driver, or use params/cpu.yaml."


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("nothing", f"This machine has no NVIDIA driver. {MENDED}"),
        ("no package", "nvidia-ml-py is not installed. Run: pip install nvidia-ml-py"),
        ("not loaded", "the driver's kernel module is not loaded. Run: modprobe nvidia"),
        (
            "no GPU",
            "the driver reports no GPU: Invalid Argument. List its GPUs: nvidia-smi -L",
        ),
    ],
)
def test_without_a_gpu_it_is_one_line_and_exit_code_1(
    state: str,
    line: str,
    folder: Path,
    driver: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = files(folder)
    calls = driver(fails=state == "not loaded")
    if state == "nothing":
        monkeypatch.setattr(gpu, "has_driver", lambda: False)
    if state == "no package":
        monkeypatch.setitem(sys.modules, "pynvml", None)

    code = main(["params", "new"])

    said = capsys.readouterr()
    assert (code, said.out, said.err) == (1, "", f"error: {line}\n")
    assert calls in ([], ["init", "shutdown"])
    assert files(folder) == before
