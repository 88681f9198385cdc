"""Raw files prepared in parts give the bytes of one preparation, and each part is made once."""

import pytest

from helpers.errors import DataError
from helpers.models._criteo import raw, raw_parts
from helpers.models.widedeep import raw as outbrain
from helpers.models.widedeep.raw import files, rows
from helpers.models.widedeep.raw.parts import prepare_parts
from tests.models.builders import content
from tests.models.test_criteo_raw import config_of, days_of, prepared, text_of, written
from tests.models.test_widedeep_raw import World


class Broken:
    """Makes calls until one too many, and notes which files each made."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, do, calls):
        found = []
        for arguments in calls:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            found.append(do(*arguments))
        return found


@pytest.mark.parametrize("variant", ["own", "own-T0"])
def test_criteos_days_in_parts_are_the_same_files(variant, tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BATCH", 37)
    monkeypatch.setattr(raw, "MERGE", 100)
    source = written(tmp_path / "days", days_of(), zipped=(1,))
    whole = prepared(source, tmp_path / "whole", variant)
    folder, scratch = tmp_path / "parts", tmp_path / "scratch"

    raw_parts.prepare_parts(config_of(variant), source, folder, scratch, Broken(1000))

    assert len(content(folder)) == 3 * 28 + 1
    assert content(folder) == content(whole)


def test_criteos_parts_that_are_there_are_not_made_again(tmp_path):
    source = written(tmp_path / "days", days_of())
    whole = prepared(source, tmp_path / "whole")
    folder, scratch = tmp_path / "parts", tmp_path / "scratch"
    seen = {}
    for calls in (1, 12, 29, 31, 60, 1000):
        raw_parts._dictionaries.cache_clear()  # as if in another process
        try:
            raw_parts.prepare_parts(config_of(), source, folder, scratch, Broken(calls))
        except KeyboardInterrupt:
            assert calls < 1000
        for path in [*scratch.rglob("*"), *folder.rglob("*")]:
            time = path.stat().st_mtime_ns
            if path.is_file() and path.name != "feature_spec.yaml":
                assert seen.setdefault(path, time) == time
    assert content(folder) == content(whole)


def test_days_that_do_not_give_the_tables_are_refused_before_a_sample_is_written(tmp_path):
    source = written(tmp_path / "days", days_of((5,) * 24))
    folder, scratch = tmp_path / "parts", tmp_path / "scratch"
    with pytest.raises(DataError, match="instead of 45,833,188. Use variant 'own-T3', which"):
        raw_parts.prepare_parts(config_of("T3"), source, folder, scratch, Broken(1000))
    (source / "day_1").write_bytes(text_of(days_of((2,))[0])[:-3])
    with pytest.raises(DataError, match="day_1: line 2, column 40 is"):
        raw_parts.prepare_parts(config_of("own"), source, folder, tmp_path / "x", Broken(1000))
    assert not folder.exists()


def test_outbrains_tables_in_parts_are_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "SPAN", 300)
    monkeypatch.setattr(files, "BLOCK", 1 << 14)
    source = World().write(tmp_path / "source")
    whole, folder, scratch = (tmp_path / name for name in ("whole", "parts", "scratch"))
    whole.mkdir()
    outbrain.prepare_raw(None, source, whole)

    for calls in (1, 4, 8, 1000):
        try:
            prepare_parts(config_of(), source, folder, scratch, Broken(calls))
        except KeyboardInterrupt:
            assert calls < 1000

    assert len(list((folder / "train").iterdir())) > 2
    assert content(folder) == content(whole)
