"""New vectors for a store that serves: from folders that appear, or from Kafka.

A folder has `<any name>/<table>/key` and `emb_vector`, as NVIDIA writes them. It is moved
atomically into the watched folder. A message of Kafka, in the topic `hps.<model>.<table>`, has rows
of one table. A row has a key, int64, and a vector, float32, both little-endian.
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
    from .files import Keys, Vectors
    from .settings import UpdateSource
    from .store import Store
    from .table import Table

LOG = logging.getLogger("hps")
POLL_SECONDS = 0.5
PREFIX = "hps"  # of a topic


def start_updates(store: Store) -> Thread | None:
    """Start the thread that reads the update source of the settings, if they name one."""
    source = store.settings.update_source
    work = {"folder": _watch_folder, "kafka_message_queue": _consume_kafka}.get(source.type)
    return store.start(work, store, source) if work else None


def apply(store: Store, folder: Path) -> int:
    """Write the rows of a folder, which has a folder per table, to all levels; return their number.

    All are checked first. Raises `BadTable` for a damaged one, ValueError for an unknown table.
    """
    widths = {table.name: table.width for table in store.tables}
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    for path in folders:
        if path.name not in widths:
            raise ValueError(f"{path}: there is no table '{path.name}'")
        for _ in files.read(path, widths[path.name]):
            pass
    many = 0
    for path in folders:
        for keys, vectors in files.read(path, widths[path.name]):
            store.update(path.name, keys, vectors)
            many += len(keys)
    return many


def _watch_folder(store: Store, source: UpdateSource) -> None:
    """Apply each new folder once, in the order of their names; skip damaged ones."""
    done: set[str] = set()
    root = store.resolve(source.path)
    while not store.closed.wait(POLL_SECONDS):
        folders = sorted(path for path in root.glob("*") if path.is_dir()) if root.is_dir() else []
        for path in folders:
            if path.name in done or path.name.startswith("."):
                continue
            try:
                store.say(f"{path.name}: {apply(store, path):,} rows updated")
            except Unavailable as error:  # the rest is applied when the database is available
                LOG.warning("%s is delayed: %s", path.name, error)
                break
            except (OSError, ValueError) as error:
                LOG.warning("%s was skipped: %s", path.name, error)
            done.add(path.name)


def topic(store: Store, table: Table) -> str:
    return f"{PREFIX}.{store.model.model}.{table.name}"


def _update(store: Store, name: str, keys: Keys, vectors: Vectors) -> None:
    """Update a table, and retry while one of its databases is not available."""
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

    tables = {topic(store, table): table for table in store.tables}
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
                except ValueError as error:  # an incomplete row, or a vector that is not finite
                    LOG.warning("a message of %s was skipped: %s", message.topic(), error)
    finally:
        consumer.close()
