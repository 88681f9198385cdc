"""ImageNet's archives, built small in their public layout, become class folders or one line."""

import gzip
import hashlib
import io
import os
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from helpers import models
from helpers.config.loading import resolve
from helpers.errors import DataError
from helpers.inference import datasets
from helpers.models.resnet50 import raw
from helpers.store.paths import OUTPUTS_VARIABLE
from tests.models.builders import content, refusal

ARCHIVE, DEVKIT = "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
TRUTH, SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
AGAIN = ". Download it again from image-net.org."

# ILSVRC id, WordNet id and number of children, as unordered as in the public file
ROWS = [
    (1, "n02119789", 0),
    (2, "n02100735", 0),
    (7, "n00001740", 2),
    (3, "n01440764", 0),
    (4, "n07579787", 0),
    (6, "n02083346", 3),
    (5, "n01443537", 0),
]
CLASSES = {3: 0, 5: 1, 2: 2, 1: 3, 4: 4}  # by hand: the five ids without children, by WordNet id
IDS = [3, 1, 5, 2, 4, 1, 2, 3, 5, 5, 4, 1]  # of image 1, 2, ...


def name(number):
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def jpeg(number):
    buffer = io.BytesIO()
    Image.new("RGB", (240 + number, 230), (20 * number,) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


def tar(members, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for path, content in members:
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def synsets():
    """The public `meta.mat`: a column of structures, of which some have children."""
    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    found = np.empty((len(ROWS), 1), dtype=[(field, object) for field in fields.split()])
    for place, (number, wordnet_id, children) in enumerate(ROWS):
        below = np.arange(1.0, children + 1)
        found[place, 0] = (number, wordnet_id, "a, b", "words", children, below, 1.0, 1300.0)
    buffer = io.BytesIO()
    savemat(buffer, {"synsets": found})
    return buffer.getvalue()


def devkit(ids=IDS, **other):
    files = {TRUTH: "".join(f"{i}\n" for i in ids).encode(), SYNSETS: synsets()} | other
    place = "ILSVRC2012_devkit_t12"
    members = [(f"{place}/readme.txt", b"words")]
    return tar([*members, *((f"{place}/data/{file}", files[file]) for file in files)], "w:gz")


IMAGES = {name(number): jpeg(number) for number in range(1, len(IDS) + 1)}
SHUFFLED = [(key, IMAGES[key]) for key in sorted(IMAGES, key=lambda key: key[::-1])]
WHOLE = tar(SHUFFLED)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Write the two archives into a folder and take their sums for the published ones."""

    def write(archive=WHOLE, kit=None):
        folder = tmp_path / "imagenet"
        folder.mkdir()
        for file, written in {ARCHIVE: archive, DEVKIT: kit or devkit()}.items():
            (folder / file).write_bytes(written)
            monkeypatch.setitem(raw.MD5, file, hashlib.md5(written).hexdigest())
        return folder

    return write


def prepared(source, tmp_path):
    folder = tmp_path / "prepared"
    folder.mkdir()
    raw.prepare_raw(None, source, folder)
    return folder


def refused(source, tmp_path, file=ARCHIVE):
    """Prepare and give the error without the path of the file in front."""
    text, start = refusal(DataError, prepared, source, tmp_path), f"{source / file} "
    assert text.startswith(start)
    return text.removeprefix(start)


# What is raw


def test_the_archive_and_a_folder_with_it_are_raw(tmp_path):
    (tmp_path / DEVKIT).touch()
    assert not raw.is_raw(tmp_path)
    assert not raw.is_raw(tmp_path / ARCHIVE)
    (tmp_path / ARCHIVE).touch()
    assert models.raw("resnet50").is_raw(tmp_path)
    assert raw.is_raw(tmp_path / ARCHIVE)
    assert not raw.is_raw(tmp_path / DEVKIT)


# What becomes of it


@pytest.mark.parametrize("given", [".", ARCHIVE])
def test_every_image_lies_in_its_class_with_its_own_bytes(put, tmp_path, given):
    assert content(prepared(put() / given, tmp_path)) == {
        f"validation/{CLASSES[number]}/{name(place)}": IMAGES[name(place)]
        for place, number in enumerate(IDS, start=1)
    }


def test_memory_stays_far_below_one_image_of_the_archive(put, tmp_path):
    image = os.urandom(5_000_000)
    source = put(tar((name(number), image) for number in range(1, 4)), devkit(IDS[:3]))
    prepared(source, tmp_path).rename(tmp_path / "first")  # scipy is loaded now
    tracemalloc.start()
    try:
        prepared(source, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


# What is refused


def test_the_published_sums_are_those_of_the_public_page():
    assert raw.MD5[DEVKIT] == "fa75699e90414af021442c21a62c3abf"
    assert raw.MD5[ARCHIVE] == "29b22e2961454d5413ddabcf34fc5622"


PLACE = WHOLE.index(IMAGES[name(3)]) + 100


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        (ARCHIVE, WHOLE[:PLACE] + bytes([WHOLE[PLACE] ^ 1]) + WHOLE[PLACE + 1 :]),
        (ARCHIVE, WHOLE + b"\0" * 300_000),
        (DEVKIT, devkit(IDS[::-1])),
    ],
    ids=["a flipped bit", "bytes after the last image", "another kit"],
)
def test_an_archive_with_other_bytes_is_refused(put, tmp_path, file, changed):
    source = put()
    expected, found = raw.MD5[file], hashlib.md5(changed).hexdigest()
    (source / file).write_bytes(changed)
    assert refused(source, tmp_path, file) == f"has the MD5 {found} instead of {expected}{AGAIN}"


@pytest.mark.parametrize("absent", [ARCHIVE, DEVKIT])
def test_an_archive_that_is_missing_is_named(put, tmp_path, absent):
    source = put()
    (source / absent).unlink()
    assert refused(source, tmp_path, absent) == (
        f"cannot be read (No such file or directory). Put ImageNet's {ARCHIVE} and {DEVKIT} "
        "into one folder."
    )


OTHERS = [name(13), f"./{name(1)}", f"../{name(1)}", f"/{name(1)}", f"a/{name(1)}", "a\nb.JPEG"]
HALF = WHOLE.index(SHUFFLED[6][1])  # where the bytes of the seventh image begin


def linked(kind):
    """An archive with a link or a folder in an image's place."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name(1))
        member.type, member.linkname = kind, "../../secret"
        archive.addfile(member)
    return buffer.getvalue()


KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE)
NO_TAR = "is not a whole tar file ("
DAMAGED = {
    "empty": (b"", NO_TAR),
    "text": (b"no tar", NO_TAR),
    "a web page": (b"<html>" * 500, NO_TAR),
    "random": (np.random.default_rng(0).bytes(5000), NO_TAR),
    "compressed": (gzip.compress(WHOLE), NO_TAR),
    "cut inside an image": (WHOLE[: HALF + 100], f"{NO_TAR}unexpected end of "),
    "cut between two": (
        WHOLE[: HALF - 512],
        f"lacks 6 of 12 images, {min(SHUFFLED[6:])[0]} first{AGAIN}",
    ),
    "an image twice": (tar([*SHUFFLED[:5], SHUFFLED[0]]), f"has '{SHUFFLED[0][0]}' twice{AGAIN}"),
    **{
        each: (tar([*SHUFFLED, (each, b"x")]), f"has {each!r}, which {DEVKIT} does not list{AGAIN}")
        for each in OTHERS
    },
    **{
        each: (linked(kind), f"has '{name(1)}', which is not a plain file{AGAIN}")
        for each, kind in zip(("a link", "a hard link", "a folder"), KINDS, strict=True)
    },
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_an_archive_with_anything_else_is_refused_and_only_images_are_written(
    put, tmp_path, damage
):
    archive, text = DAMAGED[damage]
    assert refused(put(archive), tmp_path).startswith(text)
    assert {Path(path).name for path in content(tmp_path / "prepared")} <= {*IMAGES}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imagenet", "prepared"]


def test_wherever_an_archive_is_cut_or_damaged_it_is_refused(put, tmp_path):
    source, rng = put(), np.random.default_rng(0)
    for number in range(30):
        damaged = bytearray(WHOLE)
        header = 512 * int(rng.integers(len(WHOLE) // 512))
        if number % 2:
            damaged[header : header + 512] = rng.bytes(512)
        else:
            del damaged[header + int(rng.integers(512)) :]
        (source / ARCHIVE).write_bytes(damaged)
        refused(source, tmp_path)
        (tmp_path / "prepared").rename(tmp_path / f"refused-{number}")


# As a stage prepares it


@pytest.fixture
def config_of(tmp_path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    (tmp_path / "checkpoint.pt").write_bytes(b"weights")
    given = {"checkpoint": str(tmp_path / "checkpoint.pt")}
    return lambda source: resolve("resnet50", "export", overrides=given | {"dataset": str(source)})


def test_a_stage_prepares_raw_files_once(put, config_of, tmp_path, capsys):
    config = config_of(source := put())
    first = datasets.prepare(config)
    (made,) = (tmp_path / "outputs/data").iterdir()
    assert capsys.readouterr().out == f"preparing {source}\n"
    images = {Path(path).name: whole for path, whole in content(made / "validation").items()}
    assert images == IMAGES
    second = datasets.prepare(config)
    assert capsys.readouterr().out == ""
    assert list((tmp_path / "outputs/data").iterdir()) == [made]
    assert second.hashes == first.hashes
    again = [first.dataset, second.dataset, datasets.open_dataset(config)]
    assert [len(dataset) for dataset in again] == [12, 12, 12]


def test_a_damaged_archive_leaves_nothing_behind(put, config_of, tmp_path):
    assert AGAIN in refusal(DataError, datasets.prepare, config_of(put(WHOLE[:-15_000])))
    assert list((tmp_path / "outputs/data").iterdir()) == []
