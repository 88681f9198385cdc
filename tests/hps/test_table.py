"""A table on its levels against a brute-force oracle, and with lookups and updates at once."""

from threading import Thread

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.hps.cache import Cache
from helpers.hps.device_cache import DeviceCache
from helpers.hps.hash_map import HashMap
from helpers.hps.table import Table, Unavailable
from tests.hps.builders import Gone
from tests.hps.test_levels import WIDTH, vectors_of

DEFAULT = np.float32(1.5)
KEYS = st.lists(st.integers(-5, 40) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=24)


def as_keys(keys):
    return np.array(list(dict.fromkeys(keys)), np.int64)


class TableMachine(RuleBasedStateMachine):
    """The oracle knows which keys the cache holds, asks nothing else, and says each vector."""

    @initialize(
        rows=st.integers(1, 40),
        threshold=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0, 1.1]),
        cached=st.sampled_from(["numpy", "torch", "none"]),
        lift=st.booleans(),
        margin=st.sampled_from([2, 2**64 - 1]),
        persistent=st.booleans(),
    )
    def make(self, rows, threshold, cached, lift, margin, persistent):
        kinds = {"numpy": Cache, "torch": lambda *a: DeviceCache(*a, "cpu")}
        cache = kinds[cached](rows, WIDTH) if cached in kinds else None
        margin = 2**64 - 1 if lift else margin  # else what is lifted evicts what is asked for
        self.volatile = HashMap(WIDTH, 2, margin, "evict_oldest", 0.5)
        self.persistent = HashMap(WIDTH)
        levels = [self.volatile, *([self.persistent] if persistent else [])]
        self.table = Table("t", WIDTH, levels, cache, DEFAULT, threshold, lift)
        self.worker = Thread(target=self.table.run_insert_worker)
        self.worker.start()
        self.version = 0
        self.truths = [{} for _ in levels]  # key -> version, of each level
        self.cached = {}

    def teardown(self):
        if hasattr(self, "table"):
            self.table.stop_worker()
            self.worker.join()

    def keys_of_cache(self):
        return set() if self.table.cache is None else {*self.table.cache.keys().tolist()}

    def in_database(self, key):
        return next((truth[key] for truth in self.truths if key in truth), None)

    def vector(self, key, version):
        return np.full(WIDTH, DEFAULT) if version is None else vectors_of([key], version)[0]

    def look_again(self):
        """What the volatile level evicted or took from below, and what the cache holds now."""
        there = {*self.volatile.keys().tolist()}
        lifted = {key: self.truths[-1][key] for key in there - {*self.truths[0]}}
        self.truths[0] = {key: v for key, v in self.truths[0].items() if key in there} | lifted
        for key in self.keys_of_cache() - {*self.cached}:
            version = self.in_database(key)
            assert version is not None
            self.cached[key] = version
        self.cached = {key: v for key, v in self.cached.items() if key in self.keys_of_cache()}

    @rule(keys=KEYS)
    def lookup(self, keys):
        table, out = self.table, np.full((len(keys), WIDTH), np.nan, np.float32)
        before, there, counted = dict(self.cached), self.keys_of_cache(), vars(table.counts).copy()

        table.lookup(np.array(keys, np.int64), out)

        missing = {*keys} - there
        hit_rate = len({*keys} - missing) / len({*keys}) if keys else 1.0
        later = table.cache is not None and hit_rate >= table.threshold
        known = {key: None if later else self.in_database(key) for key in missing}
        for key, found in zip(keys, out, strict=True):
            version = known[key] if key in missing else before[key]
            assert (found == self.vector(key, version)).all(), (key, version, found)
        met = {name: value - counted[name] for name, value in vars(table.counts).items()}
        assert met == {
            "keys": len(keys),
            "different": len({*keys}),
            "hits": len({*keys} - missing),
            "defaults": sum(key in missing and known[key] is None for key in keys),
            "fetched": 0 if later else len(missing),
        }
        table.drain()
        self.look_again()

    @rule(keys=KEYS)
    def update(self, keys):
        self.version += 1
        array = np.array(keys, np.int64)
        self.table.update(array, vectors_of(array, self.version))
        for key in keys:
            for truth in self.truths:
                truth[key] = self.version
            if key in self.cached:
                self.cached[key] = self.version
        self.look_again()

    @rule(keys=KEYS, level=st.integers(0, 1))
    def another_process_writes(self, keys, level):
        self.version += 1
        level = min(level, len(self.truths) - 1)
        array = as_keys(keys)
        self.table.levels[level].insert(array, vectors_of(array, self.version))
        self.truths[level] |= dict.fromkeys(array.tolist(), self.version)
        self.look_again()

    @rule(share=st.sampled_from([0.2, 1.0]))
    def refresh(self, share):
        before = self.keys_of_cache()
        expected = {key: self.in_database(key) for key in self.cached}
        self.table.refresh(share)
        assert self.keys_of_cache() == before
        self.cached |= {key: v for key, v in expected.items() if v is not None}
        self.look_again()

    @invariant()
    def the_cache_holds_no_other_rows(self):
        if hasattr(self, "table") and self.table.cache is not None and self.cached:
            keys = np.array([*self.cached], np.int64)
            out = np.empty((len(keys), WIDTH), np.float32)
            missing, _ = self.table.cache.fetch(keys, out)
            assert not len(missing)
            assert (out == [vectors_of([key], self.cached[key])[0] for key in self.cached]).all()


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


@pytest.mark.parametrize("threshold", [0.5, 1.1])
def test_lookups_beside_updates_see_the_old_or_the_new_row_and_never_an_older_one(threshold):
    """Each update makes one version of all rows; a row's values all say which."""
    width, count, versions = 64, 500, 150
    volatile, persistent, cache = HashMap(width), HashMap(width), Cache(200, width)
    table = Table("t", width, [volatile, persistent], cache, -1, threshold, promote=True)
    keys = np.arange(count)

    def rows(version):
        return np.full((count, width), version, np.float32)

    persistent.insert(keys, rows(0))
    done, wrong = [0, 0], []
    threads = [Thread(target=table.run_insert_worker)]

    def look(seed):
        draws, out = np.random.default_rng(seed), np.empty((64, width), np.float32)
        while done[0] < versions:
            least, _ = done
            table.lookup(draws.integers(0, count, 64), out)
            most, values = done[1], out[:, 0]
            is_torn = (out != values[:, None]).any()
            if is_torn or ((values != -1) & ((values < least) | (values > most))).any():
                wrong.append((least, most, out.copy()))

    def refresh():
        while done[0] < versions:
            table.refresh(0.3)

    threads += [Thread(target=look, args=(seed,)) for seed in range(3)] + [Thread(target=refresh)]
    for thread in threads:
        thread.start()
    for version in range(1, versions + 1):
        done[1] = version  # begun
        table.update(keys, rows(version))
        done[0] = version  # ended
    table.stop_worker()
    for thread in threads:
        thread.join()
    assert not wrong[:3]


class Counting(HashMap):
    """A database that counts how often it is asked."""

    asked = 0

    def fetch(self, keys, out):
        self.asked += 1
        return super().fetch(keys, out)


def test_a_table_that_stops_does_not_fetch_what_still_waits():
    database = Counting(WIDTH)
    table = Table("t", WIDTH, [database], Cache(1000, WIDTH), threshold=0.0)
    out = np.empty((1, WIDTH), np.float32)
    for key in range(100):  # more than may wait
        table.lookup(np.array([key]), out)

    table.stop_worker()
    table.run_insert_worker()

    assert database.asked == 0
    table.drain()


def test_a_database_that_is_away_is_passed_over_if_there_is_one_below():
    below, keys = HashMap(WIDTH), np.arange(4)
    below.insert(keys, vectors_of(keys))
    out = np.empty((4, WIDTH), np.float32)

    Table("t", WIDTH, [Gone(), below]).lookup(keys, out)

    assert (out == vectors_of(keys)).all()
    with pytest.raises(Unavailable, match="it is away"):
        Table("t", WIDTH, [Gone()]).lookup(keys, out)
