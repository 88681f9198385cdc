"""The public files of electricity and traffic, in small, against a slow reading of the text."""

import io
import zipfile
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from helpers import models
from helpers.errors import DataError
from helpers.models._tables import LONGEST_LINE
from helpers.models.tft import MODEL as tft
from helpers.models.tft import raw
from helpers.models.tft.variants import VARIANTS
from tests.models.builders import config_of, encrypt, grown, refusal

DAYS = {"electricity": ((3, 12), (3, 12), (5, 13)), "traffic": ((0, 9), (0, 9), (1, 10))}
START = datetime(2011, 1, 1)


@pytest.fixture(autouse=True)
def few_days(monkeypatch):
    for kind, days in DAYS.items():
        monkeypatch.setitem(VARIANTS, kind, replace(VARIANTS[kind], days=days))


def prepared(kind, source, folder):
    folder.mkdir()
    raw.prepare_raw(config_of(variant=kind), source, folder)
    return folder


def refused(kind, source, folder):
    return refusal(DataError, prepared, kind, source, folder).removeprefix(f"{source}").strip(" :")


def unscaled(kind, folder):
    """Put the target of test.csv back into units, series by series."""
    dataset = tft.open_dataset(config_of(variant=kind), folder)
    return dataset, dataset.targets(np.unique(dataset.series, return_index=True)[1])


# Electricity


def quarters(days=14):
    """Draw quarters of an hour for four customers; the first of them starts after two days."""
    names, rng = ["MT_001", "MT_010", "MT_002", "MT_003"], np.random.default_rng(0)
    values = np.round(rng.uniform(1, 90, (days * 96 + 1, 4)), 4)
    values[: 2 * 96, 0] = 0
    values[6 * 96 - 1 : 6 * 96 + 3, 1] = 0  # an hour of nothing, in between
    values[9 * 96 :, 2] = 0  # ends too early for the last split
    values[:, 3] = 0  # nobody
    return names, values


def written(names, values, path):
    """Write as the UCI archive does: quoted names, `;` between, a comma in numbers, CRLF."""
    lines = ['"";' + ";".join(f'"{name}"' for name in names)]
    for place, row in enumerate(values):
        stamp = (START + timedelta(minutes=15 * (place + 1))).strftime("%Y-%m-%d %H:%M:%S")
        cells = ["0" if value == 0 else repr(float(value)).replace(".", ",") for value in row]
        lines.append(f'"{stamp}";' + ";".join(cells))
    path.write_bytes(("\r\n".join(lines) + "\r\n").encode())
    return path


def zipped(path, target, inside=""):
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, f"{inside}{path.name}")
        archive.writestr(f"__MACOSX/{inside}._{path.name}", b"x")
    return target


def hourly(values, column):
    """Average by hour, slowly: the first quarter in the file ends at 00:15 and counts to 00:00."""
    sums = {}
    for place, row in enumerate(values):
        sums.setdefault((15 * (place + 1)) // 60, []).append(float(row[column]))
    return [sum(each) / len(each) for _, each in sorted(sums.items())]


def test_quarters_become_hours_of_the_published_days(tmp_path):
    names, values = quarters()
    folder = prepared("electricity", written(names, values, tmp_path / raw.POWER), tmp_path / "out")
    dataset, found = unscaled("electricity", folder)
    expected = [hourly(values, column)[5 * 24 : 5 * 24 + 192] for column in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
    assert expected[1][24] == 0
    test, train = (pd.read_csv(folder / f"{part}.csv", index_col=0) for part in ("test", "train"))
    assert test.groupby("id").size().tolist() == [192, 192]
    assert sorted(set(test["days_from_start"])) == list(range(5, 13))
    assert train.groupby("categorical_id").size().tolist() == [216, 216]
    assert dataset.facts["origin"] == "prepared from the public files"


def test_hours_and_weekdays_are_those_of_the_calendar_wherever_a_chunk_ends(tmp_path, monkeypatch):
    source = written(*quarters(), tmp_path / raw.POWER)
    table = raw._electricity(source)
    stamps = [START + timedelta(hours=int(hour)) for hour in table["hours_from_start"]]
    assert table["hour"].to_list() == [stamp.hour for stamp in stamps]
    assert table["day_of_week"].to_list() == [stamp.weekday() for stamp in stamps]
    assert table["days_from_start"].to_list() == [(stamp - START).days for stamp in stamps]
    assert set(table["id"]) == {"MT_001", "MT_010", "MT_002"}
    assert table.filter(pl.col("id") == "MT_002")["hours_from_start"].max() == 9 * 24
    monkeypatch.setattr(raw, "BLOCK", 300)
    assert_frame_equal(raw._electricity(source), table, check_exact=True)


def test_zipped_plain_and_in_a_folder_are_the_same(tmp_path):
    source = written(*quarters(), tmp_path / raw.POWER)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    archive = zipped(source, tmp_path / "one" / f"{raw.POWER}.zip", "deep/")
    source = source.rename(tmp_path / "two" / raw.POWER)
    expected = (prepared("electricity", source, tmp_path / "a") / "test.csv").read_bytes()
    for name, other in (("b", archive), ("c", tmp_path / "one"), ("d", tmp_path / "two")):
        assert raw.is_raw(other)
        found = prepared("electricity", other, tmp_path / name)
        assert (found / "test.csv").read_bytes() == expected


# Traffic


def bracketed(*rows):
    return "[" + ";".join(" ".join(str(value) for value in row) for row in rows) + "]\n"


class Pems:
    """A small PEMS-SF: `days` days of three stations, shuffled as the public file is."""

    def __init__(self, days=12, seed=1):
        rng = np.random.default_rng(seed)
        self.stations = [402000, 400001, 400500]
        self.values = np.round(rng.uniform(0, 0.4, (days, 3, 144)), 4)  # in order of the calendar
        self.weekdays = [1 + (day * 2) % 7 for day in range(days)]
        order = rng.permutation(days)  # the day of each line
        self.members = {"randperm": bracketed(order + 1), "stations_list": bracketed(self.stations)}
        for part, shown in (("train", order[:7]), ("test", order[7:])):
            lines = (bracketed(*self.values[day]) for day in shown)
            self.members[f"PEMS_{part}"] = "".join(lines)
            labels = [self.weekdays[day] for day in shown]
            self.members[f"PEMS_{part}labels"] = bracketed(labels)

    def write(self, path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in self.members.items():
                archive.writestr(name, text)
        return path


def test_shuffled_days_come_back_in_order(tmp_path):
    pems = Pems()
    source = pems.write(tmp_path / "PEMS-SF.zip")
    dataset, found = unscaled("traffic", prepared("traffic", source, tmp_path / "out"))
    by_name = np.argsort([str(station) for station in pems.stations])
    means = pems.values[1:9].reshape(8, 3, 24, 6).mean(axis=3)  # of the hours of days
    expected = means.transpose(1, 0, 2).reshape(3, 192)[by_name]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert dataset.facts["windows"] == 3 * 25
    table = raw._traffic(source)
    hours = table["hours_from_start"]
    assert (hours.min(), hours.max()) == (1, 239)  # without the very first hour
    assert table["day_of_week"].to_list() == [pems.weekdays[hour // 24] for hour in hours]
    assert (table["time_on_day"] == hours % 24).all()
    assert (table["sensor_day"] == hours // 24).all()
    short = raw._traffic(Pems(days=10).write(source))["hours_from_start"]
    assert short.max() == 10 * 24 - 2  # without the very last one


# What is not the public file


def test_only_public_files_are_taken_for_raw(tmp_path):
    written(*quarters(1), tmp_path / raw.POWER)
    assert models.raw("tft").is_raw(tmp_path)
    assert raw.is_raw(tmp_path / raw.POWER)
    (tmp_path / "test.csv").write_text("")
    for other in (tmp_path, tmp_path / "test.csv", tmp_path / "absent"):
        assert not raw.is_raw(other)


def test_the_other_variants_file_is_named(tmp_path):
    archive = Pems().write(tmp_path / "PEMS-SF.zip")
    power = written(*quarters(1), tmp_path / raw.POWER)
    text = "has the data of variant {}, but the experiment's is '{}'"
    assert refused("electricity", archive, tmp_path / "a") == text.format("traffic", "electricity")
    assert refused("traffic", power, tmp_path / "b") == text.format("electricity", "traffic")
    other = zipped(archive, tmp_path / "other.zip")
    text = "is another archive: it has neither LD2011_2014.txt nor PEMS_train"
    assert refused("traffic", other, tmp_path / "c") == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c[: c.rindex(b"\r\n", 0, len(c) // 2)], "is damaged: it ends at 2011-01-0"),
        (lambda c: c[: len(c) // 2], "is damaged: row 657 lacks values"),
        (lambda c: c[: c.rindex(b";")], "is damaged: row 1346 lacks values"),
        (lambda c: b"", "is damaged: its first line names no columns"),
        (lambda c: b"\x00\xff" * 500, "is"),
        (lambda c: c.replace(b";", b"\t"), "is damaged: its first line names no columns"),
        (lambda c: c.replace(b",", b"x", 1), "is damaged: could not parse `"),
        (lambda c: c.replace(b"2011-01-03 00:15:00", b"noon"), "damaged: conversion from `str` to"),
        (lambda c: c.replace(b"2011-01-03", b"2011-01-02", 1), "are not in order of time"),
    ],
)
def test_a_damaged_text_is_one_line(change, text, tmp_path):
    path = written(*quarters(), tmp_path / raw.POWER)
    path.write_bytes(change(path.read_bytes()))
    assert text in refused("electricity", path, tmp_path / "out")


@pytest.mark.parametrize(
    ("member", "change", "text"),
    [
        ("randperm", lambda t: "[1 2 3]", "randperm is not an order of the 12 days with labels"),
        ("randperm", lambda t: "1 2 3", "randperm has a line that is not in brackets"),
        ("stations_list", lambda t: "[1 x 3]", "a line that is not a table of numbers: could not"),
        ("stations_list", lambda t: "[1 1 3]", "a station occurs twice, or a label is below 1"),
        ("PEMS_testlabels", lambda t: "[1 2 3 4 9]", "or a label is below 1 or above 7"),
        ("PEMS_train", lambda t: "[1 2;3 4]\n", "a day of PEMS_train is not 3 x 144 numbers"),
        ("PEMS_train", lambda t: t + t, "PEMS_train has more days than labels"),
        ("PEMS_train", lambda t: t[:-40] + "\n", "PEMS_train has a line that is not in brackets"),
        ("PEMS_train", lambda t: t[:-40] + "]\n", "numbers: the number of columns changed"),
        ("PEMS_test", lambda t: "", "PEMS_test ends 5 days before its labels"),
        ("PEMS_test", None, "lacks PEMS_test"),
        ("PEMS_testlabels", None, "lacks PEMS_testlabels"),
    ],
)
def test_a_damaged_member_is_one_line(member, change, text, tmp_path):
    pems = Pems()
    old = pems.members.pop(member)
    if change:
        pems.members[member] = change(old)
    assert text in refused("traffic", pems.write(tmp_path / "PEMS-SF.zip"), tmp_path / "out")


def test_a_cut_an_altered_and_an_encrypted_zip_are_one_line(tmp_path):
    source = Pems().write(tmp_path / "PEMS-SF.zip")
    whole, middle = source.read_bytes(), source.stat().st_size // 2
    encrypt(source)
    assert refused("traffic", source, tmp_path / "encrypted") == "is encrypted"
    for name, changed in (("cut", b""), ("altered", bytes(200) + whole[middle + 200 :])):
        source.write_bytes(whole[:middle] + changed)
        assert refused("traffic", source, tmp_path / name).startswith("is damaged: ")


def test_a_line_without_end_is_refused_before_all_of_it_is_in_memory(tmp_path):
    """Repeated bytes: a zip file of 3 MB could hold a line of 3 GB."""
    text, pems = tmp_path / raw.POWER, Pems()
    text.write_bytes(b'"";"MT_001"\n' + b"1" * (LONGEST_LINE + 2**21))
    endless = "is damaged: a line is longer than 8,388,608 bytes"
    for name, source in (("a", text), ("b", zipped(text, tmp_path / "power.zip"))):
        assert refused("electricity", source, tmp_path / name) == endless
    for name in ("PEMS_train", "randperm"):
        pems.members[name] = "[" + "1 " * (LONGEST_LINE // 2 + 2**20) + "]"
        source = pems.write(tmp_path / "PEMS-SF.zip")
        assert refused("traffic", source, tmp_path / name) == endless


BEFORE = """
from helpers.display import progress
from helpers.models.tft import raw
small, large = map(Path, sys.argv[1:])
raw._hourly_power(small)  # loads the parts of polars that are used
progress.LINE_SECONDS = 0
"""
CODE = """
power = raw._hourly_power(large).drop(raw.HOUR)
print(*power.shape, power.sum_horizontal()[5])
"""


@pytest.mark.slow
def test_a_large_text_is_read_within_bounded_memory(tmp_path):
    """370 customers and a year are a quarter of the public file: 105 MB as numbers."""
    source, row = tmp_path / raw.POWER, io.StringIO()
    row.write('"";' + ";".join(f'"MT_{n:03d}"' for n in range(370)) + "\n")
    cells = ";".join(f"{n},{n % 10}" for n in range(370))
    for place in range(364 * 96):
        row.write(f'"{START + timedelta(minutes=15 * (place + 1)):%Y-%m-%d %H:%M:%S}";{cells}\n')
    source.write_text(row.getvalue())
    small = tmp_path / "small.txt"
    small.write_text("".join(row.getvalue().splitlines(keepends=True)[:100]))
    (*progress, last), megabytes = grown(BEFORE, CODE, small, source)
    hours, customers, total = map(float, last.split())
    assert (hours, customers) == (364 * 24 + 1, 370)
    assert total == pytest.approx(sum(n + n % 10 / 10 for n in range(370)))
    assert megabytes < 100  # the hours twice, and a block at a time
    assert progress[0].startswith("1,968 rows of quarters of an hour, ")
