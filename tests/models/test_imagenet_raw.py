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
from helpers.models.resnet50 import MODEL as resnet50
from helpers.models.resnet50 import raw
from helpers.store.paths import OUTPUTS_VARIABLE
from tests.models import builders
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


def grey(number):
    """The brightness of image `number`, by which it is known again."""
    return 20 * number


def jpeg(number):
    buffer = io.BytesIO()
    Image.new("RGB", (240 + number, 230), (grey(number),) * 3).save(buffer, "JPEG")
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


def test_the_evaluation_set_reads_it_with_the_right_labels(put, tmp_path):
    dataset = resnet50.open_dataset(builders.config_of(), prepared(put(), tmp_path))
    assert dataset.facts == {"images": 12, "classes": 5, "origin": "folder"}
    (batch,) = dataset.batches(99)
    brightness = (batch["INPUT__0"][:, 0].mean(axis=(1, 2)) * 0.229 + 0.485) * 255
    numbers = [round(float(each) / 20) for each in brightness]
    assert sorted(numbers) == list(range(1, 13))
    labels = [CLASSES[IDS[number - 1]] for number in numbers]
    logits = np.eye(1000, dtype=np.float32)[labels]
    assert dataset.score({"OUTPUT__0": logits}) == {"top1": 1.0, "top5": 1.0}


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


def test_other_bytes_than_the_published_ones_are_refused(tmp_path):
    published = {DEVKIT: "fa75699e90414af021442c21a62c3abf"}
    published[ARCHIVE] = "29b22e2961454d5413ddabcf34fc5622"
    assert published == raw.MD5
    kit = devkit()
    (tmp_path / ARCHIVE).write_bytes(WHOLE)
    (tmp_path / DEVKIT).write_bytes(kit)
    found = hashlib.md5(kit).hexdigest()
    text = f"has the MD5 {found} instead of {published[DEVKIT]}{AGAIN}"
    assert refused(tmp_path, tmp_path, DEVKIT) == text
    assert content(tmp_path / "prepared") == {}


PLACE = WHOLE.index(IMAGES[name(3)]) + 100


@pytest.mark.parametrize(
    "changed",
    [WHOLE[:PLACE] + bytes([WHOLE[PLACE] ^ 1]) + WHOLE[PLACE + 1 :], WHOLE + b"\0" * 300_000],
    ids=["a flipped bit", "bytes after the last image"],
)
def test_an_archive_with_other_bytes_is_refused(put, tmp_path, changed):
    source, expected = put(), hashlib.md5(WHOLE).hexdigest()
    (source / ARCHIVE).write_bytes(changed)
    found = hashlib.md5(changed).hexdigest()
    assert refused(source, tmp_path) == f"has the MD5 {found} instead of {expected}{AGAIN}"


@pytest.mark.parametrize("absent", [ARCHIVE, DEVKIT])
def test_an_archive_that_is_missing_is_named(put, tmp_path, absent):
    source = put()
    (source / absent).unlink()
    assert refused(source, tmp_path, absent) == (
        f"cannot be read (No such file or directory). Put ImageNet's {ARCHIVE} and {DEVKIT} "
        "into one folder."
    )


@pytest.mark.parametrize(
    "archive",
    [b"", b"no tar", b"<html>" * 500, np.random.default_rng(0).bytes(5000), gzip.compress(WHOLE)],
    ids=["empty", "text", "a web page", "random", "compressed"],
)
def test_what_is_not_a_tar_file_is_refused(put, tmp_path, archive):
    assert refused(put(archive), tmp_path).startswith("is not a whole tar file (")


@pytest.mark.parametrize(
    ("archive", "text"),
    [
        (WHOLE[: WHOLE.index(SHUFFLED[6][1]) + 100], "is not a whole tar file (unexpected end of "),
        (
            WHOLE[: WHOLE.index(SHUFFLED[6][1]) - 512],
            f"lacks 6 of 12 images, {min(SHUFFLED[6:])[0]} first{AGAIN}",
        ),
        (tar([*SHUFFLED[:5], SHUFFLED[0]]), f"has '{SHUFFLED[0][0]}' twice{AGAIN}"),
    ],
    ids=["cut inside an image", "cut between two", "an image twice"],
)
def test_an_archive_with_other_images_is_refused(put, tmp_path, archive, text):
    assert refused(put(archive), tmp_path).startswith(text)


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


OTHERS = [name(13), f"./{name(1)}", f"../{name(1)}", f"/{name(1)}", f"a/{name(1)}", "a\nb.JPEG"]


@pytest.mark.parametrize("other", OTHERS)
def test_a_name_that_the_devkit_does_not_list_is_refused_and_not_written(put, tmp_path, other):
    source = put(tar([*SHUFFLED, (other, b"x")]))
    assert refused(source, tmp_path) == f"has {other!r}, which {DEVKIT} does not list{AGAIN}"
    assert {Path(path).name for path in content(tmp_path / "prepared")} == set(IMAGES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imagenet", "prepared"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_or_a_folder_in_an_images_place_is_refused(put, tmp_path, kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name(1))
        member.type, member.linkname = kind, "../../secret"
        archive.addfile(member)
    assert refused(put(buffer.getvalue()), tmp_path) == (
        f"has '{name(1)}', which is not a plain file{AGAIN}"
    )
    assert content(tmp_path / "prepared") == {}


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
