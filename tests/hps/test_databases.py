"""The databases below the cache: real Redis, alone and as a Cluster, and real RocksDB."""

import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest

from helpers.hps import files
from helpers.hps.redis_map import RedisMap, connect
from helpers.hps.rocks import Rocks
from helpers.hps.session import JSON
from helpers.hps.settings import VolatileDatabase, parse
from helpers.hps.table import Unavailable
from tests.conftest import wait_for
from tests.hps.builders import ROCKS, UPDATES, one_table, open_session, store, update, vectors_of
from tests.hps.conftest import CLUSTER, Redis

pytestmark = pytest.mark.slow
WIDTH = 16
EVICTING = {"num_partitions": 1, "overflow_margin": 100, "overflow_resolution_target": 0.5}


def redis_map(server, name="t", **fields):
    given = VolatileDatabase(type="redis_cluster", address=server.address, **fields)
    return RedisMap(connect(given), name, given)


def took(level, keys):
    out = np.full((len(keys), WIDTH), -1, np.float32)
    return out, level.fetch(keys, out).tolist()


def check(level):
    """Rows come back as they were written, the last written, and no others."""
    keys = np.array([5, -3, 2**63 - 1, -(2**63), 0, 77])
    level.insert(keys, vectors_of(keys % 1000, WIDTH))
    level.insert(keys[:2], vectors_of(keys[:2] % 1000, WIDTH, version=1))
    asked = np.array([0, 1234, 5, 77, -3, 6])
    found, missing = took(level, asked)
    assert missing == [1, 5]
    assert (found[[1, 5]] == -1).all()
    assert (found[[0, 3]] == vectors_of([0, 77], WIDTH)).all()
    assert (found[[2, 4]] == vectors_of(np.array([5, -3]) % 1000, WIDTH, version=1)).all()
    assert took(level, keys[:0])[1] == []


def test_redis_keeps_rows(redis_server):
    check(redis_map(redis_server))


def test_a_cluster_keeps_rows_on_all_its_nodes(redis_cluster):
    import redis

    level = redis_map(redis_cluster[1])
    check(level)
    keys = np.arange(2000)
    level.insert(keys, vectors_of(keys, WIDTH))
    assert len(level) == 2000 + 3  # of the three keys of `check` that are not among them
    sizes = [redis.Redis(port=node.port).dbsize() for node in redis_cluster]
    assert min(sizes) > 0


def test_rocksdb_keeps_rows_and_opens_again(tmp_path):
    level = Rocks(tmp_path / "deep/db")
    check(level)
    level.set_load_token("all")
    level.close()
    again = Rocks(tmp_path / "deep/db", read_only=True)
    assert again.load_token() == "all"
    found, missing = took(again, np.array([77, 78]))
    assert missing == [1]
    assert (found[0] == vectors_of([77], WIDTH)[0]).all()
    again.close()


def test_round_trips_grow_with_batches_and_not_with_keys(redis_server, monkeypatch):
    from redis.client import Pipeline

    round_trips, execute = [], Pipeline.execute

    def counted(pipeline):
        round_trips.append(pipeline)
        return execute(pipeline)

    monkeypatch.setattr(Pipeline, "execute", counted)
    level, keys = redis_map(redis_server, max_batch_size=1000), np.arange(5000)
    level.insert(keys, vectors_of(keys, WIDTH))
    assert len(round_trips) == 5
    client = level._client
    before = client.info("stats")["total_reads_processed"]
    took(level, keys[:1000])
    one = client.info("stats")["total_reads_processed"] - before
    took(level, keys[:10])
    few = client.info("stats")["total_reads_processed"] - before - one
    assert len(round_trips) == 7
    assert few <= 3
    assert one <= 8  # socket reads of Redis, 16 kB each, and one for the question


@pytest.mark.parametrize("policy", ["evict_random", "evict_oldest", "evict_least_used"])
def test_redis_evicts_what_its_policy_says(policy, redis_server):
    level, keys = redis_map(redis_server, overflow_policy=policy, **EVICTING), np.arange(100)
    level.insert(keys[:50], vectors_of(keys[:50], WIDTH))
    level.insert(keys[50:], vectors_of(keys[50:], WIDTH))
    for _ in range(3):
        took(level, keys[20:70])
    new = np.arange(1000, 1001)
    level.insert(new, vectors_of(new, WIDTH))
    _, missing = took(level, np.arange(100))
    left = {*range(100)} - {*missing}
    assert len(level) == 50
    if policy == "evict_oldest":
        assert left >= {*range(51, 100)}
    elif policy == "evict_least_used":
        assert left <= {*range(20, 70)}


@pytest.mark.parametrize("policy", ["evict_oldest", "evict_least_used"])
def test_what_redis_is_asked_for_and_has_not_takes_no_place(policy, redis_server):
    fields = EVICTING | {"refresh_time_after_fetch": True}
    level, keys = redis_map(redis_server, overflow_policy=policy, **fields), np.arange(100)
    level.insert(keys, vectors_of(keys, WIDTH))
    took(level, keys)
    took(level, np.arange(1000, 2000))

    level.insert(np.array([2000]), vectors_of(np.array([2000]), WIDTH))

    assert len(level) == 50


def test_redis_that_is_not_there_or_refuses_is_said_in_one_line(start_redis, tmp_path):
    away, locked = Redis(tmp_path / "never"), start_redis("locked", "--requirepass", "secret")
    words = "it rejects user_name and password"
    for server, fields, said in (
        (away, {}, ".*refused"),
        (locked, {"password": "wrong"}, words),
        (locked, {}, words),
    ):
        with pytest.raises(Unavailable, match=rf"Redis at {server.address}: {said}") as caught:
            redis_map(server, **fields)
        assert "\n" not in str(caught.value)
    check(redis_map(locked, password="secret"))


def test_a_redis_that_stops_is_said_and_one_that_comes_back_is_asked_again(redis_server):
    level, keys, server = redis_map(redis_server), np.arange(10), redis_server.address
    level.insert(keys, vectors_of(keys, WIDTH))
    redis_server.stop()
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"t: no connection to Redis at {server}"):
            took(level, keys)
    redis_server.start()

    def is_asked():
        with suppress(Unavailable):
            return took(level, keys)[1] == keys.tolist()  # the original loads them anew

    wait_for(is_asked)
    level.insert(keys, vectors_of(keys, WIDTH))
    assert took(level, keys)[1] == []


def test_a_redis_that_is_away_stops_no_lookup_that_would_lift_a_row_and_no_update_for_good(
    redis_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    volatile = {"type": "redis_cluster", "address": redis_server.address}
    volatile |= {"cache_missed_embeddings": True, "initial_cache_rate": 0.1}
    given = {"volatile_db": volatile, "persistent_db": ROCKS, "update_source": UPDATES}
    keys = np.array([290])
    new = vectors_of(keys, 4, version=1)
    with open_session(tmp_path, **given) as session:
        redis_server.stop()
        assert (session.store.lookup(keys, [1, 0]) == vectors_of(keys, 4)).all()
        update(tmp_path, "1", keys, new)
        time.sleep(2)
        redis_server.start()
        level, out = session.store.tables[0].levels[0], np.zeros((1, 4), np.float32)

        def is_new():
            with suppress(Unavailable):
                level.fetch(keys, out)
            return bool((out == new).all())

        wait_for(is_new)
        assert (session.store.lookup(keys, [1, 0]) == new).all()


FULL = """
import sys
from pathlib import Path
from helpers.hps.session import load
from helpers.hps.table import Unavailable
try:
    load(Path(sys.argv[1]), 1, "cpu")
except Unavailable as error:
    print(error)
"""


def test_a_disk_that_is_full_while_loading_is_said_and_the_next_start_loads_all(
    on_a_small_disk, tmp_path, monkeypatch
):
    keys, databases = np.arange(200_000), {"volatile_db": {"type": "disabled"}}
    given = one_table(tmp_path, keys, 64, persistent_db=ROCKS, **databases)
    (tmp_path / JSON).write_text(parse(given).model_dump_json())
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("HPS_FOLDER", str(disk))

    done = on_a_small_disk(disk, "20m", sys.executable, "-c", FULL, str(tmp_path))

    (said,) = done.stdout.splitlines()
    assert said.startswith(f"RocksDB at {disk}/rocks/sparse.one: ")
    assert "No space left on device" in said
    with open_session(tmp_path, given) as session:  # there is space now
        asked = keys[[0, -1]]
        assert (session.store.lookup(asked, [2]) == vectors_of(asked, 64).ravel()).all()


def test_a_cluster_that_fails_over_under_lookups_gives_defaults_or_the_rows_and_then_all_rows(
    redis_cluster, start_redis, tmp_path
):
    import redis

    spare = start_redis("spare", *CLUSTER)
    master, replica = (redis.Redis(port=each.port) for each in (redis_cluster[0], spare))
    first = redis_cluster[0]
    replica.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus)
    wait_for(lambda: replica.cluster("info")["cluster_known_nodes"] == "4")
    replica.execute_command("CLUSTER", "REPLICATE", master.cluster("myid").decode())
    volatile = {"type": "redis_cluster", "address": redis_cluster[1].address}
    with store(tmp_path / "store", volatile_db=volatile, gpucache=False) as found:
        wait_for(lambda: replica.info("replication").get("master_link_status") == "up")
        wait_for(lambda: replica.dbsize() == master.dbsize())
        keys = np.arange(300)
        right, outcomes, ends = vectors_of(keys, 4), [""], time.monotonic() + 30
        assert (found.lookup(keys, [300, 0]) == right.ravel()).all()
        redis_cluster[0].stop()
        while outcomes[-1] != "right":
            assert time.monotonic() < ends, outcomes
            try:
                rows = found.lookup(keys, [300, 0]).reshape(300, 4)
            except Unavailable:
                outcomes.append("away")
                time.sleep(0.1)
                continue
            assert ((rows == right) | (rows == 1)).all(axis=1).all()
            outcomes.append("right" if (rows == right).all() else "defaults")
        assert "away" in outcomes


def test_what_was_loaded_is_not_loaded_again_and_updates_stay(redis_server, tmp_path, monkeypatch):
    monkeypatch.setenv("HPS_FOLDER", str(tmp_path))
    volatile = {"type": "redis_cluster", "address": redis_server.address}
    fields = {"volatile_db": volatile, "persistent_db": ROCKS}
    keys = np.array([7])
    new = vectors_of(keys, 4, version=1)
    with store(tmp_path, **fields) as found:
        found.update("sparse_embedding0", keys, new)
    with store(tmp_path, **fields) as found:
        assert (found.lookup(keys, [1, 0]) == new).all()
    (tmp_path / "0").rename(tmp_path / "old")
    files.write(tmp_path / "0", [(np.arange(300), vectors_of(np.arange(300), 4, 2))])
    with store(tmp_path, **fields) as found:  # the files are others
        assert (found.lookup(keys, [1, 0]) == vectors_of(keys, 4, 2)).all()


HOLDER = """
import sys, time
from pathlib import Path
from helpers.hps.rocks import Rocks
held = Rocks(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(60)
"""


def test_a_rocksdb_that_is_locked_or_damaged_is_said_and_can_be_read_beside_its_owner(tmp_path):
    path, keys = tmp_path / "db", np.arange(5000)
    level = Rocks(path)
    level.insert(keys, vectors_of(keys, WIDTH))
    level.close()
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(Unavailable, match="another process is using it"):
            Rocks(path)
        reader = Rocks(path, read_only=True)
        assert took(reader, keys)[1] == []
        reader.close()
        holder.kill()
    for file in path.glob("*.sst"):
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(Unavailable, match=r"RocksDB at .*db") as caught:
        took(Rocks(path), keys)
    assert "\n" not in str(caught.value)


def test_settings_of_a_database_reach_it(tmp_path):
    with store(tmp_path, volatile_db={"overflow_margin": 40, "num_partitions": 1}) as opened:
        assert all(len(table.levels[0]) <= 40 for table in opened.tables)
