"""Describe Triton's releases: the packages in their images, and the drivers that they need.

`releases.csv` has one row for each version in an image, with its source. `known` is "stated" by the
source, "inferred" from it, or "unsourced". A row holds until the next one of the same part.
"""

import csv
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from helpers.errors import ParameterError

Version = tuple[int, int]


class ReleasePackage(NamedTuple):
    """The version of one part of a release's image."""

    release: str
    part: str
    version: str
    known: str
    source: str


PARTS = {  # names for a reader
    "triton": "Triton",
    "python": "Python",
    "cuda": "CUDA",
    "driver": "driver",
    "tensorrt": "TensorRT",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "tensorflow2": "TensorFlow 2",  # where version 1 is the default
}

# Pull request 8068 of triton-inference-server/server takes TensorFlow out of 25.03, and NVIDIA's
# last TensorFlow image is 25.02's (docs.nvidia.com/deeplearning/frameworks, release notes)
LAST_WITH_TENSORFLOW = "25.02"
# The first ONNX Runtime to read what PyTorch exports today: opset 20, IR version 10
# (onnxruntime.ai/docs/reference/compatibility). All older ones in Triton's releases from 2021 on
# read opset 13, which NVIDIA exported. Their PyTorch and TensorFlow also need older formats
FIRST_WITH_NEW_OPSETS, OLD_OPSET = (1, 18), 13

# The first driver that a release runs on, and for data centres the first of each older branch. See
# "Driver Requirements" of Triton's release notes; a row holds until the next one
# (docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-<YY>-<MM>.html)
DRIVERS = {
    "21.02": ((460, 27), ((418, 40), (440, 33), (450, 51))),
    "21.04": ((465, 19), ((418, 40), (440, 33), (450, 51), (460, 27))),
    "21.10": ((470, 0), ((418, 40), (440, 33), (450, 51), (460, 27))),
    "21.11": ((495, 0), ((418, 40), (440, 33), (450, 51), (460, 27), (470, 57))),
    "22.01": ((510, 0), ((418, 40), (440, 33), (450, 51), (460, 27), (470, 57))),
    "22.05": ((515, 0), ((450, 51), (470, 57), (510, 47))),
    "22.10": ((520, 0), ((450, 51), (470, 57), (510, 47), (515, 65))),
    "23.01": ((525, 0), ((450, 51), (470, 57), (510, 47), (515, 65))),  # CUDA 12.0: no page found
    "23.04": ((530, 0), ((450, 51), (470, 57), (510, 47), (515, 65), (525, 85))),
    "23.08": ((535, 0), ((450, 51), (470, 57), (510, 47), (525, 85))),
    "23.12": ((545, 0), ((450, 51), (470, 57), (510, 47), (525, 85), (535, 86))),
    "24.03": ((545, 0), ((470, 57), (525, 85), (535, 86))),
    "24.10": ((560, 0), ((470, 57), (525, 85), (535, 86), (545, 23))),
    "25.04": ((575, 0), ((470, 57), (525, 85), (535, 86), (545, 23))),
}

# Branches that the notes from 24.10 on call not forward-compatible. The notes do not mention newer
# branches than those that they allow, unless they are in this list: see `driver_faults`. Such are
# 550 for 24.10 and 570 for 26.04
SILENT_FROM, NOT_COMPATIBLE = "24.10", (418, 440, 450, 460, 510, 520, 530, 545, 555)

_NAME = re.compile(r"(\d\d)\.(0[1-9]|1[0-2])")


def number(release: str) -> Version:
    """Read a release's year and month; raise `ParameterError` for another name."""
    if match := _NAME.fullmatch(release):
        return int(match[1]), int(match[2])
    raise ParameterError(f"Unknown release '{release}'. Triton's names are YY.MM, such as 24.10.")


def has_tensorflow(release: str) -> bool:
    """Return whether the release's image has the TensorFlow backend."""
    return number(release) <= number(LAST_WITH_TENSORFLOW)


@cache
def table() -> tuple[ReleasePackage, ...]:
    """Read `releases.csv`, from the oldest release to the newest."""
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        return tuple(ReleasePackage(**row) for row in csv.DictReader(file))


def describe_release(release: str) -> str:
    """Return the packages of a release's image in one line; empty if the table lacks it."""
    held = [package for package in table() if package.release == release]
    doubt = {"stated": "", "inferred": " (inferred)", "unsourced": " (unsure)"}
    return ", ".join(
        f"{PARTS[package.part]} {package.version}{doubt[package.known]}" for package in held
    )


def _version(release: str, part: str) -> Version:
    """Return major and minor version of a part; (0, 0) for a release older than the table."""
    rows = (package for package in table() if package.part == part)
    held = [package for package in rows if number(package.release) <= number(release)]
    major, minor = re.findall(r"\d+", held[-1].version)[:2] if held else (0, 0)
    return int(major), int(minor)


def has_tensorrt_10(release: str) -> bool:
    """Return whether the release's TensorRT is 10 or newer; older ones read int64 as int32."""
    return _version(release, "tensorrt") >= (10, 0)


def opset(release: str) -> int | None:
    """Return the ONNX opset that a release with old runtimes reads; None for others."""
    if not _NAME.fullmatch(release) or _version(release, "onnxruntime") >= FIRST_WITH_NEW_OPSETS:
        return None
    return OLD_OPSET


def driver_faults(release: str, version: str) -> tuple[str, str]:
    """Return why a release does not run on this driver, and why it may not; empty if it does."""
    major, minor, *_ = map(int, f"{version}.0".split("."))
    rows = [row for name, row in DRIVERS.items() if number(name) <= number(release)]
    first, older = rows[-1] if rows else ((0, 0), ())
    if (major, minor) >= min([first, *(branch for branch in older if branch[0] == major)]):
        return "", ""
    needs = (
        f"Triton {release} needs {_spelled(first)} or newer, or on a data-centre GPU "
        f"{', '.join(map(_spelled, older))} or newer of the same branch"
    )
    is_mentioned = major in NOT_COMPATIBLE or major <= older[-1][0]
    if is_mentioned or number(release) < number(SILENT_FROM):
        return f"driver {version} is too old: {needs}", ""
    return "", f"NVIDIA's notes do not mention driver {version}, which may be too old: {needs}"


def _spelled(version: Version) -> str:
    return f"{version[0]}.{version[1]:02d}" if version[1] else str(version[0])
