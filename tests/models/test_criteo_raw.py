"""Criteo's day files, in small, against a reading of the text in plain Python."""

import gzip
import math
import random
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from helpers import models
from helpers.display import progress
from helpers.errors import DataError
from helpers.models._criteo import raw, tables
from helpers.models._criteo.data import SplitBinary
from tests.models.builders import content, refusal


def config_of(variant="own"):
    return SimpleNamespace(dataset="x", variant=variant)


def line_of(rng, words):
    """Draw a line as the public files have it: hashes of a power law, some cells empty."""

    def hashed(place):
        return f"{(int(words * rng.random() ** 3) * 2_654_435_761 * (place + 1)) % 2**32:08x}"

    counts = (-3, -2, -1, 0, 1, 7, 650, 2_147_483_647)
    integers = ["" if rng.random() < 0.2 else str(rng.choice(counts)) for _ in range(13)]
    hashes = ["" if rng.random() < 0.1 else hashed(place) for place in range(26)]
    return [str(int(rng.random() < 0.3)), *integers, *hashes]


def days_of(counts=(300, 211, 151), seed=0):
    rng = random.Random(seed)
    return [[line_of(rng, 60) for _ in range(count)] for count in counts]


def text_of(lines):
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def written(root, days, zipped=()):
    root.mkdir(exist_ok=True)
    for number, lines in enumerate(days):
        if number in zipped:
            (root / f"day_{number}.gz").write_bytes(gzip.compress(text_of(lines)))
        else:
            (root / f"day_{number}").write_bytes(text_of(lines))
    return root


def prepared(source, folder, variant="own"):
    folder.mkdir()
    raw.prepare_raw(config_of(variant), source, folder)
    return folder


def refused(source, folder, variant="own"):
    found = refusal(DataError, prepared, source, folder, variant)
    return found.removeprefix(f"{source}").strip("/ ")


def expected_ids(days, threshold):
    """Number each feature's hashes of all `days`: by falling count, then by value."""
    found = []
    for column in range(14, 40):
        counts = Counter(line[column] for day in days for line in day if line[column])
        kept = [word for word, count in counts.items() if count >= threshold]
        kept.sort(key=lambda word: (-counts[word], int(word, 16)))
        found.append({word: number for number, word in enumerate(kept, 1)})
    return found


def expected_part(lines, ids, order):
    categorical = [[ids[n].get(line[14 + n], 0) for n in order] for line in lines]
    logs = [[math.log(max(int(cell or -2) + 3, 1)) for cell in line[1:14]] for line in lines]
    # rounded to float16 by way of float32
    numerical = np.array(logs, np.float32).astype(np.float16)
    return categorical, numerical, [line[0] == "1" for line in lines]


def check_part(folder, part, lines, ids, order=range(26)):
    if part == "validation":  # which no reader of the package takes
        (folder / "test").rename(folder / "first")
        (folder / "validation").rename(folder / "test")
        part = "test"
    found = SplitBinary(folder, part=part).read(slice(None))
    for array, expected in zip(found, expected_part(lines, ids, order), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(("variant", "threshold"), [("own", 15), ("own-T3", 3), ("own-T0", 1)])
def test_a_folder_is_what_plain_python_makes_of_the_days(variant, threshold, tmp_path, monkeypatch):
    days, origin = days_of(), "prepared from the public files"
    monkeypatch.setattr(raw, "BATCH", 37)
    monkeypatch.setattr(raw, "MERGE", 100)
    folder = prepared(written(tmp_path / "days", days, zipped=(1, 2)), tmp_path / "out", variant)
    ids = expected_ids(days[:-1], threshold)
    dataset = SplitBinary(folder)
    assert dataset.spec.cardinalities == tuple(len(each) + 1 for each in ids)
    assert dataset.facts["origin"] == origin
    found = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    assert found["metadata"] == {"origin": origin, "days": 3, "threshold": threshold}
    assert list(found["source_spec"]) == ["test", "train"]
    check_part(folder, "train", days[0] + days[1], ids)
    check_part(folder, "test", days[2][:75], ids)
    check_part(folder, "validation", days[2][75:], ids)


# The order of the features that C0, C1, C10 and so on have as text
AS_TEXT = [0, 1, *range(10, 20), 2, *range(20, 26), *range(3, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "threshold", "order"),
    [("T15", 15, range(26)), ("T3", 3, AS_TEXT), ("T0", 1, AS_TEXT)],
)
def test_the_24_days_are_accepted_for_the_tables_that_nvidia_counts_in_all_of_them(
    variant, threshold, order, tmp_path, monkeypatch
):
    """NVIDIA's tables are those of a terabyte: here they are the ones of 24 small days."""
    days = days_of((31,) * 24)
    ids = expected_ids(days, threshold)
    rows = tuple(len(ids[place]) + 1 for place in order)
    assert rows != tuple(len(each) + 1 for each in expected_ids(days[:-1], threshold))
    monkeypatch.setitem(tables.TABLES, variant, rows)
    folder = prepared(written(tmp_path / "days", days), tmp_path / "out", variant)
    dataset = models.get("dlrm").open_dataset(config_of(variant), folder)
    assert len(dataset) == 15
    train = [line for day in days[:-1] for line in day]
    check_part(folder, "train", train, ids, order)
    check_part(folder, "test", days[-1][:15], ids, order)
    check_part(folder, "validation", days[-1][15:], ids, order)


@pytest.mark.parametrize(
    ("variant", "count", "own"),
    [("T15", 3, "own"), ("T3", 23, "own-T3"), ("T0", 25, "own-T0"), ("T15-10k", 24, "own")],
)
def test_days_that_cannot_give_nvidias_tables_are_refused_before_they_are_read(
    variant, count, own, tmp_path
):
    (tmp_path / "days").mkdir()
    for day in range(count):
        (tmp_path / f"days/day_{day}").touch()  # reading one would say that it is empty
    assert refused(tmp_path / "days", tmp_path / "out", variant) == (
        f"does not give the tables of variant '{variant}' with its {count} days. "
        f"Use variant '{own}', which takes the folder's tables."
    )
    assert not any((tmp_path / "out").iterdir())


def test_24_days_with_other_hashes_are_refused_before_a_sample_is_written(tmp_path):
    days = days_of((5,) * 24)
    rows = len(expected_ids(days, 3)[0]) + 1
    assert refused(written(tmp_path / "days", days), tmp_path / "out", "T3") == (
        f"does not give the tables of variant 'T3': the table of C0 has {rows} rows "
        "instead of 45,833,188. Use variant 'own-T3', which takes the folder's tables."
    )
    assert not any((tmp_path / "out").iterdir())


def test_a_lower_threshold_keeps_more_hashes_of_every_feature_in_nvidias_tables():
    in_logs = []
    for variant in ("T15", "T3", "T0"):
        pairs = zip(tables.order(variant), tables.TABLES[variant], strict=True)
        in_logs.append([rows for _, rows in sorted(pairs)])
    for few, some, most in zip(*in_logs, strict=True):
        assert few <= some <= most


def test_a_hash_of_zeros_is_a_hash_and_a_missing_one_is_none(tmp_path):
    days = days_of((20, 4))
    for place, line in enumerate(days[0]):
        line[14:16] = ["00000000" if place % 4 else "", ""]
    for line in days[1]:
        line[14:16] = ["00000000", "ffffffff"]
    folder = prepared(written(tmp_path / "days", days), tmp_path / "out")
    train, test = (SplitBinary(folder, part=part).read(slice(None)) for part in ("train", "test"))
    np.testing.assert_array_equal(train.categorical[:, 0], [0, 1, 1, 1] * 5)
    assert SplitBinary(folder).spec.cardinalities[:2] == (2, 1)
    assert test.categorical[:, :2].tolist() == [[1, 0]] * 2


def test_plain_and_zipped_days_and_a_last_line_without_end_are_the_same(tmp_path):
    days = days_of((60, 30))
    first = content(prepared(written(tmp_path / "a", days), tmp_path / "b"))
    source = written(tmp_path / "c", days, zipped=(0,))
    (source / "day_1").write_bytes(text_of(days[1])[:-1])
    (source / "README").write_text("day_2")
    assert content(prepared(source, tmp_path / "d")) == first
    (source / "day_1").write_bytes(text_of(days[1]).replace(b"\n", b"\r\n"))
    assert content(prepared(source, tmp_path / "e")) == first
    assert len(first) == 3 * 28 + 1


def test_what_is_used_is_said(tmp_path, capsys, monkeypatch):
    source = written(tmp_path / "days", days_of((60, 30)))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    prepared(source, tmp_path / "out", "own-T3")
    said = re.sub(r"\d+ s$", "0 s", capsys.readouterr().out, flags=re.M)  # however fast it was
    assert said.splitlines() == [
        f"{source}: 2 of the 24 days, 1 to train, the last to test; hashes from 3 occurrences on",
        "60 lines counted, of day_0, 0 s",
        "60 lines written, of day_0, 0 s",
        "75 lines written, of day_1, 0 s",
        "90 lines written, of day_1, 0 s",
    ]


# What is not the public set


def test_only_a_folder_of_days_is_taken_for_raw(tmp_path):
    source = written(tmp_path / "days", days_of((2, 2)), zipped=(0, 1))
    assert raw.is_raw(source)
    for other in (source / "day_0.gz", tmp_path, tmp_path / "absent"):
        assert not raw.is_raw(other)
    assert not raw.is_raw(prepared(source, tmp_path / "out"))
    (source / "feature_spec.yaml").write_text("")
    assert not raw.is_raw(source)
    for name in ("dlrm", "dcnv2"):
        found = models.raw(name)
        assert (found.prepare_raw, found.is_raw) == (raw.prepare_raw, raw.is_raw)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"day_1": None}, "lacks day_1. Use consecutive days."),
        ({"day_0": None, "day_1": None}, "lacks day_0, day_1. Use consecutive days."),
        ({"day_1": None, "day_2": None}, "has only day_0. Use day_0 and day_1 at least"),
        ({"day_0": None, "day_1": None, "day_2": None}, "has no day files. Use day_0 and "),
        ({"day_1.gz": b""}, "has day_1 and day_1.gz. Keep one of them."),
        ({"day_0": b""}, "day_0 is empty"),
        ({"day_2": b""}, "day_2 is empty"),
        ({"day_2": text_of(days_of((1,))[0])}, "day_2 has 1 lines, but the last day needs two"),
    ],
)
def test_days_that_are_missing_are_named(change, text, tmp_path):
    source = written(tmp_path / "days", days_of((20, 20, 20)))
    for name, lines in change.items():
        (source / name).write_bytes(lines or b"")
        if lines is None:
            (source / name).unlink()
    assert refused(source, tmp_path / "out").startswith(text)


def cell(line, column, value):
    def change(lines):
        lines[line - 1][column - 1] = value
        return text_of(lines)

    return change


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (cell(33, 1, "2"), "line 33, column 1 is b'2', not 0 or 1"),
        (cell(1, 2, "12a"), "line 1, column 2 is b'12a', not an integer"),
        (cell(9, 5, "9" * 30), f"line 9, column 5 is b'{'9' * 30}', not an integer"),
        (cell(7, 15, "0123456g"), "line 7, column 15 is b'0123456g', not 8 hexadecimal digits"),
        (cell(7, 40, "+1234567"), "line 7, column 40 is b'+1234567', not 8 hexadecimal digits"),
        (cell(7, 20, 'ab"12345'), "line 7, column 20 is b'ab\"12345', not 8 hexadecimal digits"),
        (lambda lines: cell(40, 40, "0" * 8)(lines)[:-3], "line 40, column 40 is b'000000', not 8"),
        (cell(3, 40, "01234567\t"), "line 3 has 41 columns instead of 40"),
        (lambda lines: text_of([*lines, lines[0][:39]]), "line 41 has 39 columns instead of 40"),
        (lambda lines: text_of([lines[0][:39], [*lines[1], "0"]]), "line 1 has 39 columns instead"),
        (lambda lines: text_of(lines) + b"\n", "line 41 has 1 columns instead of 40"),
        (lambda lines: b"\n" + text_of(lines), "line 1 has 1 columns instead of 40"),
        (lambda lines: text_of(lines).replace(b"\t", b","), "line 1 has 1 columns instead of 40"),
        (lambda lines: text_of(lines)[:900] + b"\xff\xfe" + text_of(lines)[900:], "line "),
        (lambda lines: b"\0" * 100_000, "line 1 has "),
    ],
)
def test_a_damaged_day_is_one_line_that_says_where(number, change, text, tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BATCH", 12)
    days = days_of((40, 40))
    source = written(tmp_path / "days", days)
    (source / f"day_{number}").write_bytes(change(days[number]))
    assert refused(source, tmp_path / "out").removeprefix(f"day_{number}: ").startswith(text)


def test_zeros_at_the_end_of_a_broken_download_are_found_at_once(tmp_path):
    source = written(tmp_path / "days", days_of((40, 40)))
    with (source / "day_0").open("ab") as file:
        file.truncate(2**40)  # a hole, which takes no space on the disk
    text = "day_0 has 1,048,576 bytes without the end of a line"
    assert refused(source, tmp_path / "out") == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda whole: whole[: len(whole) // 2], "is damaged: unexpected end of file"),
        (lambda whole: whole[:-4], "is damaged: unexpected end of file"),
        (lambda whole: whole[:400] + bytes(90) + whole[490:], "is damaged: "),
        (lambda whole: b"no gzip at all", "line 1 has 1 columns instead of 40"),
        (lambda whole: gzip.compress(gzip.decompress(whole) + b"\xff"), "line 301 has bytes th"),
        (lambda whole: gzip.compress(b""), "is empty"),
        (lambda whole: b"", "is empty"),
    ],
)
def test_a_damaged_gzip_is_one_line(change, text, tmp_path):
    source = written(tmp_path / "days", days_of((300, 20)), zipped=(0,))
    path = source / "day_0.gz"
    path.write_bytes(change(path.read_bytes()))
    assert refused(source, tmp_path / "out").removeprefix("day_0.gz").lstrip(": ").startswith(text)


PEAK = """
import re, sys, threading
from pathlib import Path
from types import SimpleNamespace
from helpers.models._criteo import raw

peak, done = 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.005):
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(re.search(r"RssAnon:\\s*(\\d+)", status)[1]))

raw.BATCH = 2**12
watcher = threading.Thread(target=watch)
watcher.start()
try:
    raw.prepare_raw(SimpleNamespace(variant="own"), Path(sys.argv[1]), Path(sys.argv[2]))
finally:
    done.set()
    watcher.join()
print(peak / 1024)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_twice_the_lines_take_no_more_memory(tmp_path):
    """A day of 512,000 lines has 116 MB of text, and 1,024,000 lines 232 MB. polars reads ahead up
    to a limit, which 58 MB do not reach. The pages of a file that it maps are the kernel's to take
    back and not counted.
    """
    lines = text_of(days_of((4000,))[0])
    peaks = []
    for times in (128, 256):
        source, folder = tmp_path / f"days{times}", tmp_path / f"out{times}"
        folder.mkdir()
        source.mkdir()
        (source / "day_0").write_bytes(lines * times)
        (source / "day_1").write_bytes(lines)
        command = [sys.executable, "-c", PEAK, str(source), str(folder)]
        peaks.append(float(subprocess.check_output(command, text=True).splitlines()[-1]))
        assert len(SplitBinary(folder, part="train")) == 4000 * times
    assert peaks[1] < peaks[0] + 100  # megabytes
