"""What the images of Triton's releases hold, and what follows from it."""

from collections import Counter

from helpers.config import read_file, releases
from helpers.config.releases import DRIVERS, PARTS
from helpers.store.paths import ROOT

OPTIONAL = {"openvino", "tensorflow2"}  # that few releases' experiments need


def named():
    """The releases that NVIDIA's parameter files name, and that of the embedded server."""
    found = {"24.10"}
    for each in map(read_file, sorted((ROOT / "params").glob("NVIDIA-*.yaml"))):
        for model in each.file.models:
            experiments = (each.experiment(model, name) for name in each.experiments(model))
            found |= {one.release or each.file.server.release for one in experiments}
    return found


def test_every_version_has_a_source_or_says_that_it_has_none():
    table = releases.table()

    assert {each.known for each in table} == {"stated", "inferred", "unsourced"}
    assert [each for each in table if not (each.version and each.source)] == []
    assert {each.part for each in table} == set(PARTS)
    assert max(Counter((each.release, each.part) for each in table).values()) == 1
    assert [each.release for each in table] == sorted(each.release for each in table)


def test_every_release_that_a_parameter_file_names_has_all_its_parts():
    for release in named():
        held = {each.part for each in releases.table() if each.release == release}
        has_none = set() if releases.has_tensorflow(release) else {"tensorflow"}

        assert held - OPTIONAL == set(PARTS) - OPTIONAL - has_none, release


def test_its_drivers_are_those_that_a_machine_is_checked_for():
    for each in releases.table():
        if each.part == "driver":
            rows = [DRIVERS[name][0] for name in DRIVERS if name <= each.release]
            major, minor = (*map(int, each.version.split(".")), 0)[:2]
            assert rows[-1] == (major, minor), each


def test_a_version_holds_until_the_next_one():
    names = ["20.11", "21.02", "24.04", "24.05", "24.10", "26.04"]

    assert [releases.opset(name) for name in [*names, "mine"]] == [*[13] * 3, *[None] * 4]
    assert [releases.has_tensorrt_10(name) for name in names] == [*[False] * 3, *[True] * 3]


def test_what_an_image_holds_is_one_line_that_says_what_is_not_certain():
    assert releases.describe_release("23.02") == (
        "Triton 2.31.0, Python 3.8, CUDA 12.0.1, driver 525 (unsure), TensorRT 8.5.3, "
        "ONNX Runtime 1.14.0 (inferred), PyTorch 1.14.0a0+44dac51, TensorFlow 2.11.0 (inferred)"
    )
    assert releases.describe_release("23.03") == ""
