"""The cache and the hash map against a dictionary: random keys, duplicates, updates, evictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from helpers.hps.cache import WAYS, Cache, number_of_sets
from helpers.hps.hash_map import HashMap, Index

WIDTH = 3
KEYS = st.lists(st.integers(-20, 60) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=30)


def vectors_of(keys, version=0):
    """What a key's row is in a version: its vector says both."""
    keys = np.asarray(keys, np.int64)
    low = (keys % 1009).astype(np.float32)
    return np.stack([low, low + version, np.full(len(keys), version, np.float32)], axis=1)


class CacheMachine(RuleBasedStateMachine):
    """A cache never gives a row that was not the last one written of its key."""

    @initialize(rows=st.integers(1, 40))
    def make(self, rows):
        self.cache, self.rows = Cache(rows, WIDTH), rows
        self.truth = {}  # key -> version
        self.version = 0

    @rule(keys=KEYS)
    def fetch(self, keys):
        out = np.full((len(keys), WIDTH), -1, np.float32)
        missing, different = self.cache.fetch(np.array(keys, np.int64), out)
        there = [i for i in range(len(keys)) if i not in set(missing.tolist())]
        assert different == len({keys[i] for i in there})
        for i in there:
            assert (out[i] == vectors_of([keys[i]], self.truth[keys[i]])[0]).all()
        assert {keys[i] for i in there} <= {*self.cache.keys().tolist()}
        assert not {keys[i] for i in missing} & {*self.cache.keys().tolist()}

    @rule(keys=KEYS, only_present=st.booleans())
    def insert(self, keys, only_present):
        self.version += 1
        different = list(dict.fromkeys(keys))
        array = np.array(different, np.int64)
        before = {*self.cache.keys().tolist()}
        self.cache.insert(array, vectors_of(array, self.version), only_present)
        after = {*self.cache.keys().tolist()}
        assert after == before or not only_present
        self.truth |= dict.fromkeys({*different} & after, self.version)

    @invariant()
    def it_has_room_for_what_was_asked_and_no_more(self):
        if hasattr(self, "cache"):
            keys = self.cache.keys().tolist()
            assert len(keys) == len(set(keys)) == len(self.cache)
            assert len(keys) <= number_of_sets(self.rows) * WAYS


class MapMachine(RuleBasedStateMachine):
    """A hash map is a dictionary, but for what its partitions evict."""

    @initialize(
        policy=st.sampled_from(["evict_random", "evict_least_used", "evict_oldest"]),
        margin=st.sampled_from([3, 10, 2**64 - 1]),
        partitions=st.integers(1, 4),
    )
    def make(self, policy, margin, partitions):
        self.map = HashMap(WIDTH, partitions, margin, policy, 0.5)
        self.margin, self.truth, self.version = margin, {}, 0

    @rule(keys=KEYS)
    def insert(self, keys):
        self.version += 1
        array = np.array(keys, np.int64)
        values = vectors_of(array, self.version)
        values[:, 0] += np.arange(len(keys)) / 64  # of a key that repeats the last one holds
        self.map.insert(array, values)
        self.truth |= {key: values[i] for i, key in enumerate(keys)}
        left = {*self.map.keys().tolist()}
        if self.margin > 1000:
            assert left == {*self.truth}
        self.truth = {key: value for key, value in self.truth.items() if key in left}

    @rule(keys=KEYS)
    def fetch(self, keys):
        out = np.full((len(keys), WIDTH), -1, np.float32)
        missing = {*self.map.fetch(np.array(keys, np.int64), out).tolist()}
        for i, key in enumerate(keys):
            assert (i in missing) == (key not in self.truth)
            expected = -1 if i in missing else self.truth[key]
            assert (out[i] == expected).all()

    @invariant()
    def no_partition_is_above_its_margin(self):
        if hasattr(self, "map"):
            keys = self.map.keys()
            assert len(keys) == len(self.map) == len({*keys.tolist()})
            if len(keys):
                assert np.bincount(self.map.partition_of(keys)).max() <= self.margin


TestCache, TestMap = CacheMachine.TestCase, MapMachine.TestCase
FEW = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestCache.settings = TestMap.settings = FEW


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=300))
@settings(max_examples=50, deadline=None)
def test_an_index_numbers_different_keys(keys):
    index, array = Index(), np.array(keys, np.int64)
    half = len(keys) // 2

    index.add(array[:half], np.arange(half, dtype=np.int32))

    assert index.find(array).tolist() == [*range(half), *[-1] * (len(keys) - half)]


def test_the_least_recently_used_row_of_a_set_goes_first():
    cache, out = Cache(2 * WAYS, WIDTH), np.empty((1, WIDTH), np.float32)
    for key in range(0, 2 * WAYS, 2):  # of two sets these keys are in one
        cache.insert(np.array([key]), vectors_of([key]))
    cache.fetch(np.array([0]), out)

    assert cache.insert(np.array([100]), vectors_of([100])) == 1

    assert {*cache.keys().tolist()} == {0, 100, *range(4, 2 * WAYS, 2)}


def test_keys_in_sequence_fill_a_cache_to_its_last_row():
    keys = np.arange(1000)
    cache = Cache(1000, WIDTH)

    assert cache.insert(keys, vectors_of(keys)) == 0

    assert len(cache) == 1000


@pytest.mark.parametrize("width", [16, 128])
def test_a_hash_map_takes_little_more_than_its_vectors(width):
    table, rows = HashMap(width), 200_000
    for start in range(0, rows, 10_000):
        keys = np.arange(start, start + 10_000)
        table.insert(keys, np.ones((10_000, width), np.float32))

    assert table.nbytes < (1.3 if width == 128 else 2.2) * rows * width * 4
