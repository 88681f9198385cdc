"""New vectors for a store that serves: from folders that appear, or from Kafka.

A folder is `<any name>/<table>/key` and `emb_vector`, as NVIDIA writes them, moved as a whole into
the folder that is watched. A message of Kafka has rows of one table: for each its key, int64, and
its vector, float32, both little-endian, in the topic `hps.<model>.<table>`.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from . import files
from .table import Unavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .settings import UpdateSource
    from .store import Store
    from .table import Table

    Keys = NDArray[np.int64]
    Vectors = NDArray[np.float32]

LOG = logging.getLogger("hps")
POLL_SECONDS = 0.5
PREFIX = "hps"  # of a topic


def start_updates(store: Store) -> Thread | None:
    """Start to read the update source that the settings name, if they name one."""
    source = store.settings.update_source
    work = {"folder": _watch_folder, "kafka_message_queue": _consume_kafka}.get(source.type)
    return store.start(work, store, source) if work else None


def apply(store: Store, folder: Path) -> int:
    """Write the rows of a folder, which has one for each table that changes, to all levels; give
    how many they were. All of it is checked before the first row is written.

    Raises `BadTable` for a damaged one, and ValueError for a table that the store does not have.
    """
    widths = {table.name: table.width for table in store.tables}
    found = sorted(each for each in folder.iterdir() if each.is_dir())
    for each in found:
        if each.name not in widths:
            raise ValueError(f"{each}: there is no table '{each.name}'")
        for _ in files.read(each, widths[each.name]):
            pass
    many = 0
    for each in found:
        for keys, vectors in files.read(each, widths[each.name]):
            store.update(each.name, keys, vectors)
            many += len(keys)
    return many


def _watch_folder(store: Store, source: UpdateSource) -> None:
    """Apply each new folder once, in the order of their names; what is damaged is left out."""
    done: set[str] = set()
    root = store.resolve(source.path)
    while not store.closed.wait(POLL_SECONDS):
        there = sorted(each for each in root.glob("*") if each.is_dir()) if root.is_dir() else []
        for each in there:
            if each.name in done or each.name.startswith("."):
                continue
            try:
                store.say(f"{each.name}: {apply(store, each):,} rows updated")
            except (
                Unavailable
            ) as error:  # it and those after it are applied when the database is back
                LOG.warning("%s is delayed: %s", each.name, error)
                break
            except (OSError, ValueError) as error:
                LOG.warning("%s was skipped: %s", each.name, error)
            done.add(each.name)


def topic(store: Store, table: Table) -> str:
    """Return the topic of a table."""
    return f"{PREFIX}.{store.model.model}.{table.name}"


def _update(store: Store, name: str, keys: Keys, vectors: Vectors) -> None:
    """Update a table, again and again while one of its databases is away."""
    while not store.closed.is_set():
        try:
            store.update(name, keys, vectors)
            return
        except Unavailable as error:
            LOG.warning("an update of %s is delayed: %s", name, error)
            store.closed.wait(POLL_SECONDS)


def _consume_kafka(store: Store, source: UpdateSource) -> None:
    """Apply the messages of all tables' topics, from their beginning."""
    import confluent_kafka as kafka

    tables = {topic(store, each): each for each in store.tables}
    consumer: Any = kafka.Consumer(
        {
            "bootstrap.servers": source.brokers,
            "group.id": f"{PREFIX}.{uuid.uuid4().hex}",  # each server reads all messages
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "allow.auto.create.topics": True,
        }
    )
    consumer.subscribe(list(tables))
    try:
        while not store.closed.is_set():
            for message in consumer.consume(source.max_batch_size, POLL_SECONDS):
                if message.error():
                    LOG.warning("Kafka: %s", message.error())
                    continue
                table = tables[message.topic()]
                row = np.dtype([("key", "<i8"), ("vector", "<f4", (table.width,))])
                try:
                    rows = np.frombuffer(message.value() or b"", row)
                    _update(store, table.name, rows["key"].copy(), rows["vector"].copy())
                except ValueError as error:  # of no whole rows, or a vector that is not finite
                    LOG.warning("a message of %s was skipped: %s", message.topic(), error)
    finally:
        consumer.close()
