"""Two parameter files are told apart field by field; a new one starts from the nearest known."""

import errno
import os
import shutil
import sys

import pytest

from helpers.__main__ import main
from helpers.config import loading, releases
from helpers.config.comparison import differences, resolved
from helpers.config.loading import read_file
from helpers.config.parameter_file import Experiment
from helpers.config.targets import KNOWN, Gpu, nearest
from helpers.machine import gpu
from helpers.store.paths import ROOT
from tests.machine.conftest import card as card  # the fixture

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


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of params/ in which new files are written."""
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.setattr(loading, "FILES", tmp_path / "params")
    return tmp_path / "params"


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- params diff ---


def compared(folder, changed, first=PLAIN):
    paths = [folder / "a.yaml", folder / "b.yaml"]
    for path, text in zip(paths, (first, changed), strict=True):
        path.write_text(text)
    return [line.replace(f"{folder}/", "") for line in differences(*paths)]


def test_a_key_that_only_one_of_two_mappings_has_is_a_difference(tmp_path):
    text = (ROOT / "params/cpu-hps.yaml").read_text()
    less = text.replace(", hit_rate_threshold: 0.9", "")
    assert less != text

    for first, second, change in ((text, less, "unset -> 0.9"), (less, text, "0.9 -> unset")):
        (line,) = compared(tmp_path, first, second)
        assert line.endswith(f"9 hps.hit_rate_threshold: {change}")


CHANGES = [
    ("gpu: A", "gpu: B", ["gpu: A -> B"]),
    ("device: cpu", "device: gpu", ["device: cpu -> gpu"]),
    (
        'kind: embedded, release: "24.10"',
        'kind: docker, release: "24.11", image: x',
        [
            *("server.kind: embedded -> docker", "server.image: unset -> x"),
            "resnet50 (all 2) release: 24.10 -> 24.11",
        ],
    ),
    ("one: {", "one: {batch_sizes: [1, 8], ", ["resnet50 one batch_sizes: [1] -> [1, 8]"]),
    (": 2}", ": {offline: 2, online: 3}}", ["resnet50 (all 2) instances.online: 2 -> 3"]),
    (
        "max_batch_size: 8",
        "max_batch_size: 8, latency_budget_ms: 5",
        ["resnet50 (all 2) latency_budget_ms: unset -> 5.0"],
    ),
    ("one: {", 'one: {release: "21.02", ', ["resnet50 one release: 24.10 -> 21.02"]),
    ("two: {", "two: {compare: false, ", ["resnet50 two compare: true -> false"]),
    ("two:", "three:", ["resnet50 two: only in a.yaml", "resnet50 three: only in b.yaml"]),
    ("resnet50:", "tft:", ["resnet50 (all 2): only in a.yaml", "tft (all 2): only in b.yaml"]),
]


@pytest.mark.parametrize(("old", "new", "lines"), CHANGES)
def test_each_difference_is_a_line_that_says_where_and_from_what_to_what(old, new, lines, tmp_path):
    assert PLAIN.count(old) == 1

    assert compared(tmp_path, PLAIN.replace(old, new)) == lines


def test_what_only_says_the_same_otherwise_is_no_difference(tmp_path):
    other = """
gpu: A
device: cpu
server: {}
models:
  resnet50:
    experiments:
      two: {<<: &all {export_format: onnx, export_precision: fp32, max_batch_size: 8,
                      instances: {offline: 2, online: 2}}, format: openvino, precision: bf16}
      one: {<<: *all, format: onnx, precision: fp32, batch_sizes: [1]}
"""
    assert compared(tmp_path, other) == []


def test_no_field_of_an_experiment_is_left_out():
    found = resolved(read_file(H100), "bert", "trt-fp16")

    assert {name.partition(".")[0] for name in found} == set(Experiment.model_fields)


def test_the_command_says_no_difference_with_exit_code_0_and_lines_with_1(tmp_path, capsys):
    codes = [main(["params", "diff", str(H100), str(other)]) for other in (H100, H200)]

    said = capsys.readouterr()
    assert (codes, said.err) == ([0, 1], "")
    assert said.out == "no difference\ngpu: NVIDIA H100 -> NVIDIA H200\n"
    assert not (tmp_path / "outputs").exists()


def test_a_file_that_is_missing_or_wrong_is_exit_code_2_and_one_line(tmp_path, capsys):
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
def test_a_newer_card_tries_every_model_in_both_precisions_without_tensorflows_backend(path):
    content = read_file(path)
    # 26.06 has TensorRT 11 (onnxruntime_backend, pull request 345)
    assert releases.has_tensorrt_10(content.file.server.release)
    assert releases.number(content.file.server.release) < (26, 6)
    assert set(content.file.models) == set(read_file(ROOT / "params/cpu.yaml").file.models)
    kinds = [("trt", "none"), ("onnx", "none"), ("onnx", "trt"), ("ts-trace", "none")]
    for model in content.file.models:
        found = [resolved(content, model, name) for name in content.experiments(model)]
        tried = {(e["format"], e["accelerator"], e["precision"]) for e in found}
        assert {e["release"] for e in found} == {content.file.server.release}
        if model in ("resnet50", "bert", "tft"):
            assert tried == {(*kind, p) for kind in kinds for p in ("fp16", "fp32")}
        else:
            assert {("trt", "none", "fp16"), ("trt", "none", "fp32")} < tried
            assert {each[:2] for each in tried} == set(kinds[:3])
        if model not in ("resnet50", "bert"):  # as NVIDIA's deployment of each
            assert all(each["capture_cuda_graph"] is (each["format"] == "trt") for each in found)


# --- params new ---


@pytest.fixture
def a30(card):
    vars(card).update(name="NVIDIA A30", architecture=7, total=24576 * 2**20)


# What NVML calls them, nvmlDeviceArchitecture_t of nvml.h, and MiB as nvidia-smi shows them
CARDS = {
    "Tesla P40": (4, 24576, "NVIDIA-DGX-1-V100-32GB"),
    "Tesla V100-SXM2-16GB": (5, 16384, "NVIDIA-DGX-1-V100-32GB"),
    "Tesla T4": (6, 15109, "NVIDIA-T4"),
    "NVIDIA GeForce RTX 2080 Ti": (6, 11264, "NVIDIA-T4"),
    "NVIDIA A2": (7, 15356, "NVIDIA-A30"),
    "NVIDIA A10": (7, 23028, "NVIDIA-A30"),
    "NVIDIA A30": (7, 24576, "NVIDIA-A30"),
    "NVIDIA A100-PCIE-40GB": (7, 40960, "NVIDIA-A30"),
    "NVIDIA A40": (7, 46068, "NVIDIA-A40"),
    "NVIDIA A100-SXM4-80GB": (7, 81920, "NVIDIA-DGX-A100-80GB"),
    "NVIDIA L4": (8, 23034, "NVIDIA-H100"),
    "NVIDIA H100 80GB HBM3": (9, 81559, "NVIDIA-H100"),
    "NVIDIA H200": (9, 143771, "NVIDIA-H200"),
    "NVIDIA B200": (10, 183359, "NVIDIA-H200"),
    "one that NVML does not know": (0xFFFFFFFF, 8192, "NVIDIA-H100"),
}


@pytest.mark.parametrize("name", CARDS)
def test_the_nearest_known_gpu_is_of_its_architecture_and_has_no_more_memory(name):
    architecture, mib, expected = CARDS[name]

    assert nearest(Gpu(name, architecture, mib / 1024)).name == expected


def test_every_nvidia_file_is_of_a_known_gpu():
    assert {known.name for known in KNOWN} == {p.stem for p in ROOT.glob("params/NVIDIA-*.yaml")}


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_new_file_says_what_the_nearest_says_of_a_gpu_of_another_name(
    known, folder, card, capsys
):
    before, total = files(folder), int(known.memory_gib * 2**30)
    vars(card).update(name="GeForce: 'Super' #1", architecture=known.architecture, total=total)

    code = main(["params", "new", "mine"])

    path, source = folder / "mine.yaml", folder / f"{known.name}.yaml"
    said = capsys.readouterr()
    assert (code, said.err, card.open) == (0, "", 0)
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


def test_without_a_name_it_is_the_gpus(folder, card, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, str(target))

    vars(card).update(name="NVIDIA H100 80GB HBM3", architecture=9)
    monkeypatch.setattr(os, "link", refuse)  # on a file system that has no hard links

    assert main(["params", "new"]) == 0

    assert read_file(folder / "NVIDIA-H100-80GB-HBM3.yaml").file.gpu == "NVIDIA H100 80GB HBM3"


def test_a_second_file_for_one_gpu_has_a_gpu_of_its_own_name(folder, a30):
    assert [main(["params", "new", name]) for name in ("first", "second.yaml")] == [0, 0]

    names = [read_file(path).file.gpu for path in folder.glob("*.yaml")]
    assert {"NVIDIA A30", "NVIDIA A30 (first)", "NVIDIA A30 (second)"} < set(names)
    assert len(names) == len(set(names))


def refused(folder, capsys, *arguments):
    """How `params new` ends where it writes nothing: its code, and what it says in one line."""
    before = files(folder.parent)
    code = main(["params", "new", *arguments])

    said = capsys.readouterr()
    assert (said.out, said.err.count("\n"), files(folder.parent)) == ("", 1, before)
    return code, said.err.removeprefix("error: ").rstrip()


@pytest.mark.parametrize("arguments", [[], ["NVIDIA-A30"], ["NVIDIA-A30.yaml"], ["cpu"]])
def test_a_file_that_is_there_is_not_overwritten(arguments, folder, a30, capsys):
    stem = (arguments or ["NVIDIA-A30"])[0].removesuffix(".yaml")
    line = f"{folder / stem}.yaml already exists. Choose another NAME than {stem}."

    assert refused(folder, capsys, *arguments) == (2, line)


@pytest.mark.parametrize("name", ["../mine", "a/b", ".hidden", "my gpu", "-", "$HOME"])
def test_a_name_that_is_no_file_of_that_folder_is_one_line(name, folder, a30, capsys):
    line = f"Invalid NAME '{name}'. Use letters, digits, '.', '_' and '-'."

    assert refused(folder, capsys, "--", name) == (2, line)


@pytest.mark.parametrize(
    ("code", "words"), [(errno.EEXIST, "file exists"), (errno.ENOSPC, "no space left on device")]
)
def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(
    code, words, folder, card, monkeypatch, capsys
):
    def refuse(source, target):
        raise OSError(code, os.strerror(code), source, None, str(target))

    monkeypatch.setattr(os, "replace", refuse)

    path = folder / "NVIDIA-A100-SXM4-80GB.yaml"
    assert refused(folder, capsys) == (1, f"cannot write {path}: {words}")


MENDED = "Install NVIDIA's driver, or use params/cpu.yaml."
GET = "nvmlDeviceGetHandleByIndex"


@pytest.mark.parametrize(
    ("query", "error", "line"),
    [
        ("", "", f"This machine has no NVIDIA driver. {MENDED}"),
        ("pynvml", "", "nvidia-ml-py is not installed. Run: pip install nvidia-ml-py"),
        ("nvmlInit", "DriverNotLoaded", "the driver's kernel module is not loaded. Run: modprobe "),
        (GET, "Unknown", "the driver reports no GPU: Unknown. List its GPUs: nvidia-smi -L"),
    ],
)
def test_without_a_gpu_it_is_one_line_and_exit_code_1(
    query, error, line, folder, card, monkeypatch, capsys
):
    card.refuses = {query: error}
    if query == "pynvml":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    if not query:
        monkeypatch.setattr(gpu, "has_driver", lambda: False)

    code, said = refused(folder, capsys)

    assert (code, said.startswith(line)) == (1, True)
    assert card.open <= 0  # none is left open
