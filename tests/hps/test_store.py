"""A store built from NVIDIA's JSON and folders: its answers, its faults, its plan, its updates."""

import re
from contextlib import closing

import numpy as np
import pytest

from helpers.config import resolve
from helpers.hps import files, settings
from helpers.hps.session import Session
from helpers.hps.store import Store
from helpers.models._criteo.hierarchy_display import describe_lookup, memory_estimate
from tests.conftest import ONNX, wait_for
from tests.hps import builders
from tests.hps.builders import Gone, content, expected, store, vectors_of


@pytest.mark.parametrize("fields", [{}, {"gpucache": False}, {"gpucacheper": 0.01}])
def test_a_store_gives_each_table_s_vectors_in_turn_and_defaults_for_what_is_nowhere(
    fields, tmp_path
):
    draws = np.random.default_rng(0)
    with store(tmp_path, **fields) as found:
        for _ in range(20):
            counts = draws.integers(0, 40, 2).tolist()
            keys = draws.integers(-5, 320, sum(counts))
            # the second default is not in the list: NVIDIA pads with 0
            assert (found.lookup(keys, counts) == expected(keys, counts, (1, 0))).all()


def test_no_lookup_is_refused_that_fits_and_each_other_one_in_one_line(tmp_path):
    with store(tmp_path) as found:
        session = Session(found)
        answer = session.run({"KEYS": [[1, 2, 3]], "NUMKEYS": [[2, 1]]})["OUTPUT0"]
        assert answer.shape == (1, 2 * 4 + 8)
        assert answer.dtype == np.float32
        for keys, counts, words in (
            ([[1, 2, 3]], [[2, 2]], "NUMKEYS adds up to 4, but KEYS has 3"),
            ([[1, 2, 3]], [[4, -1]], "NUMKEYS"),
            ([[1, 2, 3]], [[3]], "NUMKEYS has 1 counts for 2 tables"),
            ([[1], [2]], [[1, 0]], "KEYS is [2, 1] and NUMKEYS [1, 2]"),
        ):
            with pytest.raises(ValueError, match=rf"^{re.escape(words)}.*$"):
                session.run({"KEYS": keys, "NUMKEYS": counts})


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("method", ["run", "run_on_device"])
def test_a_session_answers_several_lookups_at_once(method, dtype, tmp_path):
    keys, counts = np.array([[1, 2, 3], [7, 8, 9]], dtype), np.array([[2, 1], [2, 1]], np.int32)
    with store(tmp_path) as found:
        answer = getattr(Session(found), method)({"KEYS": keys, "NUMKEYS": counts})["OUTPUT0"]

    assert (answer == np.stack([expected(each, [2, 1], (1, 0)) for each in keys])).all()


def test_asynchronous_insertion_gives_defaults_first_and_the_rows_later(tmp_path):
    keys, counts = np.arange(60), [40, 20]
    with store(tmp_path, hit_rate_threshold=0.0, gpucacheper=1.0) as found:
        cold = found.lookup(keys % 50, counts)
        for table in found.tables:
            table.drain()
        warm = found.lookup(keys % 50, counts)
        assert (cold == [1] * 160 + [0] * 160).all()
        assert (warm == expected(keys % 50, counts, (1, 0))).all()
        met = found.counts()
        assert (met.keys, met.defaults, met.different, met.hits) == (120, 60, 120, 60)


def test_a_cache_is_filled_at_the_start_only_if_it_is_refreshed(tmp_path):
    for share, is_filled, there in ((0.0, True, 0), (0.2, True, 75), (0.2, False, 0)):
        fields = {"cache_refresh_percentage_per_iteration": share, "init_ec": is_filled}
        with store(tmp_path, **fields) as found:
            assert len(found.tables[0].cache) == there


def test_a_store_refreshes_its_cache_in_intervals(tmp_path):
    keys = np.array([7])
    new = vectors_of(keys, 4, version=1)
    with store(tmp_path, refresh_interval=0.1) as found:
        found.lookup(keys, [1, 0])
        found.tables[0].levels[0].insert(keys, new)
        wait_for(lambda: (found.lookup(keys, [1, 0]) == new).all())


def test_a_refresh_that_fails_is_said_and_tried_again(tmp_path, caplog):
    with store(tmp_path, refresh_interval=0.05) as found:
        found.tables[0].levels = [Gone()]
        found.lookup(np.array([7]), [0, 1])
        found.tables[0].cache.insert(np.array([7]), vectors_of([7], 4))
        wait_for(lambda: caplog.text.count("the caches were not refreshed: it is away") > 1)


def test_without_a_database_every_vector_is_the_default(tmp_path, caplog):
    with store(tmp_path, volatile_db={"type": "disabled"}) as found:
        assert (found.lookup(np.arange(5), [5, 0]) == 1).all()
    assert "sparse_embedding0 has no database, so every vector is the default" in caplog.text


def test_a_part_of_the_rows_is_loaded_if_the_settings_say_so(tmp_path):
    with store(tmp_path, volatile_db={"initial_cache_rate": 0.5}) as found:
        assert [len(table.levels[0]) for table in found.tables] == [150, 25]


DAMAGES = [  # a file of two tables, its new content or none, and what is said
    ("0/key", b"123", "key has 3 bytes, not a multiple of 8"),
    ("0/emb_vector", b"123", "emb_vector has 3 bytes, not a multiple of 16"),
    ("0/key", bytes(16), "2 keys and 300 vectors of 4. Check"),
    ("0/emb_vector", None, "emb_vector is missing"),
    ("1/key", None, "key is missing"),
    ("1/emb_vector", b"\xff" * (50 * 32), "has a value in row 0 that is not finite"),
    ("0/key", bytes(300 * 8), "has the key 0 twice"),
]


@pytest.mark.parametrize(("name", "damaged", "words"), DAMAGES)
def test_a_damaged_table_is_refused_in_one_line(name, damaged, words, tmp_path):
    content(tmp_path)
    (tmp_path / name).unlink()
    if damaged is not None:
        (tmp_path / name).write_bytes(damaged)
    with pytest.raises(files.BadTable) as caught:
        store(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_SETTINGS = [
    ({"gpu_cache": True}, "models[0].gpu_cache is unknown. Remove it."),
    ({"gpucache": 1}, "models[0].gpucache is 1. It should be a valid boolean."),
    ({"gpucacheper": 2}, "models[0].gpucacheper is 2. It should be less than or equal to 1."),
    ({"sparse_files": "0"}, 'models[0].sparse_files is "0". It should be a valid list.'),
    ({"embedding_vecsize_per_table": [4]}, "has 1 entries for 2 tables"),
    ({"volatile_db": {"type": "redis"}}, "db.type is \"redis\". It should be 'disabled', "),
    ({"volatile_db": {"max_batch_size": 0}}, "volatile_db.max_batch_size is 0. It should be"),
    ({"persistent_db": []}, "persistent_db should be a mapping of names to values."),
    ({"update_source": {"type": "nats"}}, "update_source.type is \"nats\". It should be 'null', "),
    ({"persistent_db": {"max_batch_size": 0}}, "persistent_db.max_batch_size is 0."),
    ({"update_source": {"max_batch_size": 0}}, "update_source.max_batch_size is 0."),
    ({"refresh_interval": -1}, "models[0].refresh_interval is -1."),
    ({"refresh_delay": -0.5}, "models[0].refresh_delay is -0.5."),
]


@pytest.mark.parametrize(("fields", "words"), BAD_SETTINGS)
def test_a_setting_that_is_not_nvidia_s_is_named(fields, words, tmp_path):
    with pytest.raises(settings.BadSettings) as caught:
        settings.parse(content(tmp_path, **fields))
    assert words in str(caught.value)


def test_fields_without_an_effect_are_said_on_the_page_of_the_lookup():
    given = {"num_of_worker_buffer_in_pool": 2, "persistent_db": {"num_threads": 4, "path": "a"}}
    experiments = {"mine": ONNX | {"export_format": "tf-savedmodel", "lookup": "hps", "hps": given}}
    config = resolve("dlrm", "deploy", "Mine", models={"dlrm": {"experiments": experiments}})

    page = describe_lookup(config).data

    said = "No effect: `num_of_worker_buffer_in_pool` (each request makes its buffers), "
    assert f"{said}`num_threads` (RocksDB keeps its own threads)." in page


def test_the_plan_is_what_a_store_takes(tmp_path):
    given = settings.parse(builders.one_table(tmp_path, np.arange(60_000), 128))
    with closing(Store(given, tmp_path)) as found:
        cache, volatile = memory_estimate(given, found.rows, "cpu")
        (table,) = found.tables
        assert cache["MB"] == round(table.cache.nbytes / 1e6, 1)
        assert volatile["MB"] == pytest.approx(table.levels[0].nbytes / 1e6, rel=0.1)
        assert (cache["rows"], volatile["rows"]) == (15_000, 60_000)


def test_a_folder_that_appears_reaches_all_levels_and_a_damaged_one_none(
    tmp_path, monkeypatch, caplog, capsys
):
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    keys = np.array([3, 400])  # one that is there and a new one
    new = vectors_of(keys, 4, version=1)
    with builders.open_session(tmp_path, update_source=builders.UPDATES) as session:
        session.store.lookup(keys[:1], [1, 0])
        builders.update(tmp_path, "0", keys, vectors_of(keys, 4, version=2), b"123")
        builders.update(tmp_path, "1", keys, new)
        wait_for(lambda: (session.store.lookup(keys, [2, 0]) == new.ravel()).all())
    assert "0 was skipped: " in caplog.text
    assert "not a multiple of 16" in caplog.text
    assert "hps: 1: 2 rows updated" in capsys.readouterr().out.splitlines()
