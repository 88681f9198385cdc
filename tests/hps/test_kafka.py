"""Updates from Kafka: the real client against librdkafka's own mock broker, which speaks Kafka's
protocol on loopback. No real broker was tried.
"""

from contextlib import closing

import numpy as np
import pytest

from helpers.hps.session import Session
from helpers.hps.store import Store
from helpers.hps.updates import start_updates, topic
from tests.conftest import wait_for
from tests.hps.builders import content, settings, vectors_of

kafka = pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.slow


@pytest.fixture
def producer():
    """A producer with a mock cluster in its process, whose address others can ask for."""
    made = kafka.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    yield made
    made.flush(1)


def address(producer):
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    return f"{broker.host}:{broker.port}"


def message(keys, vectors):
    rows = np.empty(len(keys), [("key", "<i8"), ("vector", "<f4", (vectors.shape[1],))])
    rows["key"], rows["vector"] = keys, vectors
    return rows.tobytes()


def test_messages_reach_all_levels_and_bad_ones_none(producer, tmp_path, caplog):
    source = {"type": "kafka_message_queue", "brokers": address(producer)}
    given = settings.parse(content(tmp_path, update_source=source))
    keys = np.array([3, 400])
    with closing(Store(given, tmp_path)) as store:
        first, second = (topic(store, table) for table in store.tables)
        producer.produce(first, message(keys, vectors_of(keys, 4, version=1))[:-3])
        producer.produce(first, message(keys[:1], np.full((1, 4), np.nan, np.float32)))
        producer.produce(first, message(keys, vectors_of(keys, 4, version=1)))
        producer.produce(second, message(keys[:1], vectors_of(keys[:1], 8, version=2)))
        producer.flush(10)
        start_updates(store)
        session, right = Session(store), [vectors_of(keys, 4, 1), vectors_of(keys[:1], 8, 2)]
        right = np.concatenate([each.ravel() for each in right])
        asked = {"KEYS": [[3, 400, 3]], "NUMKEYS": [[2, 1]]}
        left_out = f"a message of {first} was skipped"
        # a topic's partitions have no order among them
        wait_for(lambda: (session.run(asked)["OUTPUT0"][0] == right).all())
        wait_for(lambda: caplog.text.count(left_out) > 1)
    assert caplog.text.count(left_out) == 2


def test_a_broker_that_is_not_there_is_told_and_keeps_nobody_from_answering(tmp_path, capfd):
    source = {"type": "kafka_message_queue", "brokers": "127.0.0.1:1"}
    given = settings.parse(content(tmp_path, update_source=source))
    with closing(Store(given, tmp_path)) as store:
        start_updates(store)
        assert (store.lookup(np.array([3]), [1, 0]) == vectors_of([3], 4).ravel()).all()
        refused = "127.0.0.1:1 failed: Connection refused"
        wait_for(lambda: refused in capfd.readouterr().err)
        assert (store.lookup(np.array([4]), [1, 0]) == vectors_of([4], 4).ravel()).all()
