"""Class folders from ImageNet's public validation archives: layout, checksums and labels."""

import hashlib
import shutil
import tarfile
from collections.abc import Mapping
from io import BytesIO, FileIO
from pathlib import Path

from helpers.display import Progress
from helpers.errors import DataError
from helpers.models import Config
from helpers.models.resnet50 import IMAGES

ARCHIVE, DEVKIT = "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
MD5 = {  # as published in torchvision/datasets/imagenet.py
    ARCHIVE: "29b22e2961454d5413ddabcf34fc5622",
    DEVKIT: "fa75699e90414af021442c21a62c3abf",
}
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
SYNSETS = "ILSVRC2012_devkit_t12/data/meta.mat"
CHUNK = 1 << 16  # bytes read at once


def is_raw(path: Path) -> bool:
    """Return whether `path` is ImageNet's archive of validation images, or a folder with it."""
    return (path.name == ARCHIVE and path.is_file()) or (path / ARCHIVE).is_file()


def prepare_raw(config: Config, source: Path, folder: Path) -> None:
    """Write each image to `<folder>/validation/<class>/`, with its original bytes.

    NVIDIA's step resizes each image and encodes it as JPEG a second time; this function keeps the
    originals. Raises DataError for an archive that is missing, damaged or not the public one.
    """
    archive = source / ARCHIVE if source.is_dir() else source
    labels = _labels(archive.with_name(DEVKIT))
    for label in set(labels.values()):
        (folder / IMAGES / str(label)).mkdir(parents=True)
    with _Hashed(archive) as file:  # 6.7 GB, read once: hashed while its images are written
        try:
            with tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK) as members:
                _write(members, labels, folder / IMAGES, archive)
        except (tarfile.TarError, ValueError) as error:  # ValueError: a number in a header
            raise _damaged(archive, f"is not a whole tar file ({error})") from None
        file.compare()


class _Hashed(FileIO):
    """A file of ImageNet, whose MD5 is computed while it is read."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}). Put ImageNet's {ARCHIVE} and {DEVKIT} "
                "into one folder."
            ) from None
        self._path, self._md5 = path, hashlib.md5(usedforsecurity=False)

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self._md5.update(content)
        return content

    def compare(self) -> None:
        """Read to the end; raise DataError if the MD5 is not the published one."""
        while self.read(CHUNK):
            pass
        actual, expected = self._md5.hexdigest(), MD5[self._path.name]
        if actual != expected:
            raise _damaged(self._path, f"has the MD5 {actual} instead of {expected}")


def _write(
    members: tarfile.TarFile, labels: Mapping[str, int], folder: Path, archive: Path
) -> None:
    """Write the images in the archive's order. A name that is not in `labels` becomes no file."""
    missing, progress = dict(labels), Progress()
    for member in members:
        if member.name not in missing:
            fault = " twice" if member.name in labels else f", which {DEVKIT} does not list"
            raise _damaged(archive, f"has {member.name!r}{fault}")
        image = members.extractfile(member) if member.isreg() else None
        if image is None:
            raise _damaged(archive, f"has {member.name!r}, which is not a plain file")
        with (folder / str(missing.pop(member.name)) / member.name).open("xb") as target:
            shutil.copyfileobj(image, target, CHUNK)
        progress.say(f"{len(labels) - len(missing):,} of {len(labels):,} images written")
    if missing:
        count = f"{len(missing):,} of {len(labels):,} images"
        raise _damaged(archive, f"lacks {count}, {min(missing)} first")


def _labels(devkit: Path) -> dict[str, int]:
    """Return the class of each image by its file name.

    Line n of the ground truth is the ILSVRC id of image n. A class is the rank of the id's WordNet
    name among those of all synsets without children (torchvision's convention).
    """
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    with _Hashed(devkit) as kit:
        kit.compare()  # and so its content is known
    with tarfile.open(devkit) as members:
        files = {info.name: file.read() for info in members if (file := members.extractfile(info))}
    synsets = loadmat(BytesIO(files[SYNSETS]), squeeze_me=True)["synsets"]
    leaves = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets if not s["num_children"]}
    ranks = {name: rank for rank, name in enumerate(sorted(leaves.values()))}
    classes = [ranks[leaves[int(line)]] for line in files[TRUTH].splitlines()]
    return {f"ILSVRC2012_val_{n:08d}.JPEG": label for n, label in enumerate(classes, start=1)}


def _damaged(path: Path, fault: str) -> DataError:
    return DataError(f"{path} {fault}. Download it again from image-net.org.")
