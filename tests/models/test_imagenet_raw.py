"""ImageNet's archives, built small in their public layout, become class folders or one line."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat  # type: ignore[import-untyped, unused-ignore]

from helpers import models
from helpers.config.loading import resolve
from helpers.config.schema import StageConfig as Config
from helpers.display import progress
from helpers.errors import DataError
from helpers.inference import datasets
from helpers.models.resnet50 import MODEL as resnet50
from helpers.models.resnet50 import raw
from helpers.store.paths import OUTPUTS_VARIABLE

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

Members = Iterable[tuple[str, bytes]]


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def grey(number: int) -> int:
    """The brightness of image `number`, by which it is known again."""
    return 20 * number


def jpeg(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (240 + number, 230), (grey(number),) * 3).save(buffer, "JPEG")
    return buffer.getvalue()


def tar(members: Members, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for path, content in members:
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def synsets() -> bytes:
    """The public `meta.mat`: a column of structures, of which some have children."""
    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    found = np.empty((len(ROWS), 1), dtype=[(field, object) for field in fields.split()])
    for place, (number, wordnet_id, children) in enumerate(ROWS):
        below = np.arange(1.0, children + 1)
        found[place, 0] = (number, wordnet_id, "a, b", "words", children, below, 1.0, 1300.0)
    buffer = io.BytesIO()
    savemat(buffer, {"synsets": found})
    return buffer.getvalue()


def devkit(ids: Iterable[Any] = IDS, **other: bytes) -> bytes:
    files = {TRUTH: "".join(f"{i}\n" for i in ids).encode(), SYNSETS: synsets()} | other
    place = "ILSVRC2012_devkit_t12"
    members = [(f"{place}/readme.txt", b"words")]
    return tar([*members, *((f"{place}/data/{file}", files[file]) for file in files)], "w:gz")


IMAGES = {name(number): jpeg(number) for number in range(1, len(IDS) + 1)}
SHUFFLED = [(key, IMAGES[key]) for key in sorted(IMAGES, key=lambda key: key[::-1])]
WHOLE = tar(SHUFFLED)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the two archives into a folder and take their sums for the published ones."""

    def write(archive: bytes = WHOLE, kit: bytes | None = None) -> Path:
        folder = tmp_path / "imagenet"
        folder.mkdir()
        for file, content in {ARCHIVE: archive, DEVKIT: kit or devkit()}.items():
            (folder / file).write_bytes(content)
            monkeypatch.setitem(raw.MD5, file, hashlib.md5(content).hexdigest())
        return folder

    return write


def prepared(source: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    raw.prepare_raw(None, source, folder)
    return folder


def refusal(source: Path, tmp_path: Path, file: str = ARCHIVE) -> str:
    """Prepare and give the error, one line, without the path of the file in front."""
    with pytest.raises(DataError) as caught:
        prepared(source, tmp_path)
    text, start = str(caught.value), f"{source / file} "
    assert "\n" not in text
    assert text.startswith(start)
    return text.removeprefix(start)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# What is raw


def test_the_archive_and_a_folder_with_it_are_raw(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    assert not raw.is_raw(tmp_path)
    (tmp_path / DEVKIT).touch()
    assert not raw.is_raw(tmp_path)
    assert not raw.is_raw(tmp_path / ARCHIVE)
    (tmp_path / ARCHIVE).touch()
    assert raw.is_raw(tmp_path)
    assert raw.is_raw(tmp_path / ARCHIVE)
    assert not raw.is_raw(tmp_path / DEVKIT)


def test_the_package_finds_it_and_importing_it_loads_neither_scipy_nor_torch() -> None:
    code = (
        "import sys; from helpers import models; assert models.raw('resnet50').is_raw;"
        "print({'scipy', 'torch', 'PIL'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# What becomes of it


@pytest.mark.parametrize("given", ["the folder", "the archive"])
def test_every_image_lies_in_its_class_with_its_own_bytes(
    put: Callable[..., Path], tmp_path: Path, given: str
) -> None:
    source = put()
    folder = prepared(source if given == "the folder" else source / ARCHIVE, tmp_path)
    assert files(folder) == {
        f"validation/{CLASSES[number]}/{name(place)}": IMAGES[name(place)]
        for place, number in enumerate(IDS, start=1)
    }


def test_a_class_without_an_image_gets_no_folder(put: Callable[..., Path], tmp_path: Path) -> None:
    source = put(tar([(name(1), b"a"), (name(2), b"b")]), devkit([4, 2]))
    found = files(prepared(source, tmp_path))
    assert found == {f"validation/4/{name(1)}": b"a", f"validation/2/{name(2)}": b"b"}
    assert len(list((tmp_path / "prepared/validation").iterdir())) == 2


def test_the_evaluation_set_reads_it_with_the_right_labels(
    put: Callable[..., Path], tmp_path: Path
) -> None:
    config: Any = SimpleNamespace(export_precision="fp32", crop_size=None)
    dataset = resnet50.open_dataset(config, prepared(put(), tmp_path))
    assert dataset.facts == {"images": 12, "classes": 5, "origin": "folder"}
    red = np.concatenate([batch["INPUT__0"] for batch in dataset.batches(5)])[:, 0]
    brightness = (red.mean(axis=(1, 2)) * 0.229 + 0.485) * 255
    numbers = [round(float(each) / 20) for each in brightness]
    assert sorted(numbers) == list(range(1, 13))
    labels = [CLASSES[IDS[number - 1]] for number in numbers]
    logits = np.eye(1000, dtype=np.float32)[labels]
    assert dataset.score({"OUTPUT__0": logits}) == {"top1": 1.0, "top5": 1.0}


def test_it_says_how_far_it_is(
    put: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    prepared(put(), tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        f"{count} of 12 images written, 0 s" for count in range(1, 13)
    ]


def test_memory_stays_far_below_one_image_of_the_archive(
    put: Callable[..., Path], tmp_path: Path
) -> None:
    content = os.urandom(5_000_000)
    source = put(tar((name(number), content) for number in range(1, 7)), devkit(IDS[:6]))
    assert (source / ARCHIVE).stat().st_size > 30_000_000
    prepared(source, tmp_path)
    (tmp_path / "prepared").rename(tmp_path / "first")  # scipy is loaded now
    tracemalloc.start()
    try:
        prepared(source, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


# What is refused


def test_other_bytes_than_the_published_ones_are_refused(tmp_path: Path) -> None:
    kit = devkit()
    (tmp_path / ARCHIVE).write_bytes(WHOLE)
    (tmp_path / DEVKIT).write_bytes(kit)
    found = hashlib.md5(kit).hexdigest()
    assert refusal(tmp_path, tmp_path, DEVKIT) == (
        f"has the MD5 {found} instead of fa75699e90414af021442c21a62c3abf{AGAIN}"
    )
    assert files(tmp_path / "prepared") == {}


def test_an_archive_with_a_flipped_bit_is_refused(put: Callable[..., Path], tmp_path: Path) -> None:
    source, expected = put(), hashlib.md5(WHOLE).hexdigest()
    place = WHOLE.index(IMAGES[name(3)]) + 100
    changed = WHOLE[:place] + bytes([WHOLE[place] ^ 1]) + WHOLE[place + 1 :]
    (source / ARCHIVE).write_bytes(changed)
    found = hashlib.md5(changed).hexdigest()
    assert refusal(source, tmp_path) == (f"has the MD5 {found} instead of {expected}{AGAIN}")


def test_the_published_sum_of_the_archive_is_what_it_is_compared_with(
    put: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = raw.MD5[ARCHIVE]
    source = put()
    monkeypatch.setitem(raw.MD5, ARCHIVE, published)
    assert refusal(source, tmp_path).endswith(
        f" instead of 29b22e2961454d5413ddabcf34fc5622{AGAIN}"
    )


def test_bytes_after_the_last_image_count_too(put: Callable[..., Path], tmp_path: Path) -> None:
    source = put()
    (source / ARCHIVE).write_bytes(WHOLE + b"\0" * 300_000)
    assert refusal(source, tmp_path).startswith("has the MD5 ")


@pytest.mark.parametrize("absent", [ARCHIVE, DEVKIT])
def test_an_archive_that_is_missing_is_named(
    put: Callable[..., Path], tmp_path: Path, absent: str
) -> None:
    source = put()
    (source / absent).unlink()
    assert refusal(source, tmp_path, absent) == (
        f"cannot be read (No such file or directory). Put ImageNet's {ARCHIVE} and {DEVKIT} "
        "into one folder."
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"no tar", b"<html>" * 500, np.random.default_rng(0).bytes(5000), gzip.compress(WHOLE)],
    ids=["empty", "text", "a web page", "random", "compressed"],
)
def test_what_is_not_a_tar_file_is_refused(
    put: Callable[..., Path], tmp_path: Path, content: bytes
) -> None:
    assert refusal(put(content), tmp_path).startswith("is not a whole tar file (")


def test_an_archive_cut_inside_an_image_is_refused(
    put: Callable[..., Path], tmp_path: Path
) -> None:
    cut = WHOLE.index(SHUFFLED[6][1]) + 100
    assert refusal(put(WHOLE[:cut]), tmp_path) == (
        f"is not a whole tar file (unexpected end of data){AGAIN}"
    )


def test_an_archive_cut_between_two_images_is_refused(
    put: Callable[..., Path], tmp_path: Path
) -> None:
    cut = WHOLE.index(SHUFFLED[6][1]) - 512
    first = min(key for key, _ in SHUFFLED[6:])
    assert refusal(put(WHOLE[:cut]), tmp_path) == f"lacks 6 of 12 images, {first} first{AGAIN}"


def test_wherever_an_archive_is_cut_or_damaged_it_is_refused(
    put: Callable[..., Path], tmp_path: Path
) -> None:
    source, rng = put(), np.random.default_rng(0)
    for number in range(60):
        content = bytearray(WHOLE)
        header = 512 * int(rng.integers(len(WHOLE) // 512))
        if number % 2:
            content[header : header + 512] = rng.bytes(512)
        else:
            del content[header + int(rng.integers(512)) :]
        (source / ARCHIVE).write_bytes(content)
        refusal(source, tmp_path)
        (tmp_path / "prepared").rename(tmp_path / f"refused-{number}")


OTHERS = [name(13), f"./{name(1)}", f"../{name(1)}", f"/{name(1)}", f"a/{name(1)}", "a\nb.JPEG"]


@pytest.mark.parametrize("other", OTHERS)
def test_a_name_that_the_devkit_does_not_list_is_refused_and_not_written(
    put: Callable[..., Path], tmp_path: Path, other: str
) -> None:
    source = put(tar([*SHUFFLED, (other, b"x")]))
    assert refusal(source, tmp_path) == f"has {other!r}, which {DEVKIT} does not list{AGAIN}"
    assert {Path(path).name for path in files(tmp_path / "prepared")} == set(IMAGES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imagenet", "prepared"]


def test_an_image_that_is_there_twice_is_refused(put: Callable[..., Path], tmp_path: Path) -> None:
    source = put(tar([*SHUFFLED[:5], (SHUFFLED[0][0], b"x")]))
    assert refusal(source, tmp_path) == f"has '{SHUFFLED[0][0]}' twice{AGAIN}"


def test_an_image_that_is_missing_is_named(put: Callable[..., Path], tmp_path: Path) -> None:
    source = put(tar(member for member in SHUFFLED if member[0] != name(7)))
    assert refusal(source, tmp_path) == f"lacks 1 of 12 images, {name(7)} first{AGAIN}"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_or_a_folder_in_an_images_place_is_refused(
    put: Callable[..., Path], tmp_path: Path, kind: bytes
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name(1))
        member.type, member.linkname = kind, "../../secret"
        archive.addfile(member)
    assert refusal(put(buffer.getvalue()), tmp_path) == (
        f"has '{name(1)}', which is not a plain file{AGAIN}"
    )
    assert files(tmp_path / "prepared") == {}


# As a stage prepares it


@pytest.fixture
def config_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Config]:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    (tmp_path / "checkpoint.pt").write_bytes(b"weights")
    given = {"checkpoint": str(tmp_path / "checkpoint.pt")}
    return lambda source: resolve("resnet50", "export", overrides=given | {"dataset": str(source)})


def test_a_stage_prepares_raw_files_once(
    put: Callable[..., Path],
    config_of: Callable[[Path], Config],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = config_of(source := put())
    first = datasets.prepare(config)
    (made,) = (tmp_path / "outputs/data").iterdir()
    assert capsys.readouterr().out == f"preparing {source}\n"
    images = {Path(path).name: content for path, content in files(made / "validation").items()}
    assert images == IMAGES
    second = datasets.prepare(config)
    assert capsys.readouterr().out == ""
    assert list((tmp_path / "outputs/data").iterdir()) == [made]
    assert second.hashes == first.hashes
    again: list[models.Dataset] = [first.dataset, second.dataset, datasets.open_dataset(config)]
    assert [len(dataset) for dataset in again] == [12, 12, 12]


def test_a_damaged_archive_leaves_nothing_behind(
    put: Callable[..., Path], config_of: Callable[[Path], Config], tmp_path: Path
) -> None:
    config = config_of(put(WHOLE[:-15_000]))
    with pytest.raises(DataError, match=AGAIN):
        datasets.prepare(config)
    assert list((tmp_path / "outputs/data").iterdir()) == []
