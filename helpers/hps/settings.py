"""NVIDIA's JSON of a hierarchical parameter server, with the defaults that its code had. It is read
without another package, as the server of a model repository reads it too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DATABASES = {
    "volatile_db": ("disabled", "hash_map", "parallel_hash_map", "redis_cluster"),
    "persistent_db": ("disabled", "rocks_db"),
    "update_source": ("null", "folder", "kafka_message_queue"),
}
POLICIES = ("evict_random", "evict_least_used", "evict_oldest")
ONE_TABLE = {  # what a model decides, and no experiment
    "model": "one",
    "sparse_files": ["0"],
    "embedding_table_names": ["0"],
    "embedding_vecsize_per_table": [1],
    "maxnum_catfeature_query_per_table_per_sample": [1],
}
EXAMPLE = {  # of NVIDIA's deployment script, where it does not leave its code's defaults
    "num_of_worker_buffer_in_pool": 3,
    "deployed_device_list": [0],
    "cache_refresh_percentage_per_iteration": 0.0,
    "hit_rate_threshold": 1.0,
    "gpucacheper": 0.25,
    "gpucache": True,
}
UNBOUNDED = 2**64 - 1  # what NVIDIA's code has for no margin


class BadSettings(ValueError):
    """A JSON that is not NVIDIA's, in one line that names the field."""


@dataclass(frozen=True)
class VolatileDatabase:
    """The level of hot rows that several servers may share."""

    type: str = "parallel_hash_map"
    address: str = "127.0.0.1:7000"
    user_name: str = "default"
    password: str = ""
    num_partitions: int = 16
    allocation_rate: int = 256 * 2**20
    max_batch_size: int = 65536  # rows of a round trip
    overflow_margin: int = UNBOUNDED  # rows of a partition, above which some are evicted
    overflow_policy: str = "evict_random"
    overflow_resolution_target: float = 0.8  # of the margin, to which they are
    initialize_after_startup: bool = True
    initial_cache_rate: float = 1.0  # share of each table that it begins with
    cache_missed_embeddings: bool = False  # whether what the persistent level had comes here
    refresh_time_after_fetch: bool = False
    update_filters: tuple[str, ...] = (".+",)
    num_node_connections: int = 5
    enable_tls: bool = False


@dataclass(frozen=True)
class PersistentDatabase:
    """The level that has all rows."""

    type: str = "disabled"
    path: str = "/tmp/rocksdb"
    num_threads: int = 16
    read_only: bool = False
    max_batch_size: int = 65536
    initialize_after_startup: bool = True
    update_filters: tuple[str, ...] = (".+",)


@dataclass(frozen=True)
class UpdateSource:
    """Where new vectors come from; "folder" and its path are not NVIDIA's."""

    type: str = "null"
    path: str = ""
    brokers: str = "127.0.0.1:9092"
    poll_timeout_ms: int = 500
    max_receive_buffer_size: int = 2000
    max_batch_size: int = 8192
    failure_backoff_ms: int = 50
    max_commit_interval: int = 32


@dataclass(frozen=True)
class ModelSettings:
    """The tables of one model, and the cache in front of each."""

    model: str = ""
    sparse_files: tuple[str, ...] = ()
    dense_file: str = ""
    embedding_table_names: tuple[str, ...] = ()
    embedding_vecsize_per_table: tuple[int, ...] = ()
    maxnum_catfeature_query_per_table_per_sample: tuple[int, ...] = ()
    default_value_for_each_table: tuple[float, ...] = ()
    deployed_device_list: tuple[int, ...] = ()
    max_batch_size: int = 64
    num_of_worker_buffer_in_pool: int = 1
    num_of_refresher_buffer_in_pool: int = 1
    gpucache: bool = True
    gpucacheper: float = 0.2
    hit_rate_threshold: float = 0.9
    cache_refresh_percentage_per_iteration: float = 0.0
    refresh_delay: float = 0.0  # seconds
    refresh_interval: float = 0.0  # seconds
    init_ec: bool = True
    fuse_embedding_table: bool = False


@dataclass(frozen=True)
class Settings:
    """The whole file."""

    models: tuple[ModelSettings, ...]
    supportlonglong: bool = True
    fuse_embedding_table: bool = False
    volatile_db: VolatileDatabase = field(default_factory=VolatileDatabase)
    persistent_db: PersistentDatabase = field(default_factory=PersistentDatabase)
    update_source: UpdateSource = field(default_factory=UpdateSource)

    def of(self, name: str) -> ModelSettings:
        """The settings of a model; raise `BadSettings` if it has none."""
        for each in self.models:
            if each.model == name:
                return each
        known = ", ".join(each.model for each in self.models)
        raise BadSettings(f"There is no model '{name}'. The file has {known}.")


# Fields without a meaning here, and why.
IGNORED = {
    "allocation_rate": "arrays grow as they need",
    "num_node_connections": "redis-py keeps its own connections",
    "num_of_worker_buffer_in_pool": "buffers are made for each request",
    "num_of_refresher_buffer_in_pool": "buffers are made for each chunk",
    "num_threads": "RocksDB keeps its own threads",
    "poll_timeout_ms": "a source is asked twice a second",
    "max_receive_buffer_size": "Kafka's client keeps its own buffers",
    "failure_backoff_ms": "Kafka's client waits by itself",
    "max_commit_interval": "each server reads a topic from its beginning",
    "deployed_device_list": "the instance groups of Triton say on which device",
    "dense_file": "the graph is a model of its own",
}


def read(path: Path) -> Settings:
    """Read a file; raise `BadSettings` for one that is no JSON or not NVIDIA's."""
    try:
        return parse(json.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadSettings(f"{path}: {error}") from None
    except BadSettings as error:
        raise BadSettings(f"{path}: {error}") from None


def parse(content: object) -> Settings:
    """Check what a file holds; raise `BadSettings` naming the first field that is wrong."""
    found: Settings = _record(Settings, content, "", _nested)
    if not found.models:
        raise BadSettings("models is empty. Add at least one.")
    if not found.supportlonglong:
        raise BadSettings("supportlonglong is false. Set it to true: keys have 64 bits.")
    for kind, known in DATABASES.items():
        given = getattr(found, kind).type
        if given not in known:
            raise BadSettings(f"{kind}.type is '{given}'. Use one of {', '.join(known)}.")
    if found.volatile_db.overflow_policy not in POLICIES:
        given = found.volatile_db.overflow_policy
        raise BadSettings(
            f"volatile_db.overflow_policy is '{given}'. Use one of {', '.join(POLICIES)}."
        )
    _check_shares(found)
    for place, each in enumerate(found.models):
        _check_model(f"models[{place}].", each)
    return found


def compose(given: Mapping[str, object], model: Mapping[str, object]) -> dict[str, object]:
    """Put the content of a file together: `given` has fields of the one model, which come before
    those of `model` and of NVIDIA's example, and whole sections. Raises `BadSettings` for a field
    that is wrong.
    """
    sections = {name: value for name, value in given.items() if name in DATABASES}
    own = {name: value for name, value in given.items() if name not in DATABASES}
    content = {"supportlonglong": True, "models": [{**EXAMPLE, **model, **own}], **sections}
    parse(content)
    return content


def ignored(settings: Settings) -> list[str]:
    """Say of each given field that has no meaning here why it is ignored."""
    records: list[Any] = [settings.volatile_db, settings.persistent_db, settings.update_source]
    records += settings.models
    return [
        f"{each.name} is ignored: {IGNORED[each.name]}"
        for record in records
        for each in fields(record)
        if each.name in IGNORED and getattr(record, each.name) != each.default
    ]


def _check_shares(found: Settings) -> None:
    volatile = found.volatile_db
    shares = {
        "volatile_db.overflow_resolution_target": volatile.overflow_resolution_target,
        "volatile_db.initial_cache_rate": volatile.initial_cache_rate,
    }
    for place, each in enumerate(found.models):
        shares[f"models[{place}].gpucacheper"] = each.gpucacheper
        shares[f"models[{place}].cache_refresh_percentage_per_iteration"] = (
            each.cache_refresh_percentage_per_iteration
        )
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise BadSettings(f"{name} is {value}. It should be from 0 to 1.")
    for name in ("num_partitions", "max_batch_size", "overflow_margin"):
        if getattr(volatile, name) < 1:
            raise BadSettings(f"volatile_db.{name} is {getattr(volatile, name)}. Use 1 or more.")


def _check_model(place: str, each: ModelSettings) -> None:
    tables = len(each.sparse_files)
    if not each.model:
        raise BadSettings(f"{place}model is missing. Add it.")
    if not tables:
        raise BadSettings(f"{place}sparse_files is missing. Add a folder for each table.")
    for name in (
        "embedding_table_names",
        "embedding_vecsize_per_table",
        "maxnum_catfeature_query_per_table_per_sample",
    ):
        if len(getattr(each, name)) != tables:
            raise BadSettings(
                f"{place}{name} has {len(getattr(each, name))} entries for {tables} tables."
            )
    if len(set(each.embedding_table_names)) != tables:
        raise BadSettings(f"{place}embedding_table_names has a name twice. Rename one.")
    if min(each.embedding_vecsize_per_table) < 1:
        raise BadSettings(f"{place}embedding_vecsize_per_table has a size below 1.")


def _record(kind: Any, content: object, place: str, nested: Any) -> Any:
    """Make a record of the type `kind` of a mapping, field by field."""
    if not isinstance(content, dict):
        raise BadSettings(
            f"{place.rstrip('.') or 'The file'} should be a mapping of names to values."
        )
    known = {each.name: each for each in fields(kind)}
    values = {}
    for name, value in content.items():
        if name not in known:
            raise BadSettings(f"{place}{name} is unknown. Remove it.")
        values[name] = nested(known[name], value, f"{place}{name}")
    if kind is Settings:
        values.setdefault("models", ())
    return kind(**values)


def _nested(known: Any, value: Any, place: str) -> Any:
    """Check one value by the type of its field, which is written as text."""
    if known.name == "volatile_db":
        return _record(VolatileDatabase, value, f"{place}.", _nested)
    if known.name == "persistent_db":
        return _record(PersistentDatabase, value, f"{place}.", _nested)
    if known.name == "update_source":
        return _record(UpdateSource, value, f"{place}.", _nested)
    if known.type.startswith("tuple"):
        if not isinstance(value, list):
            raise BadSettings(f"{place} is {json.dumps(value)}. It should be a list.")
        if known.name == "models":
            return tuple(
                _record(ModelSettings, each, f"{place}[{i}].", _nested)
                for i, each in enumerate(value)
            )
        inner = known.type[len("tuple[") :].partition(",")[0]
        return tuple(_plain(inner, each, f"{place}[{i}]") for i, each in enumerate(value))
    return _plain(known.type, value, place)


def _plain(kind: str, value: Any, place: str) -> Any:
    """Check a plain value: bool, int, float or str. A whole number is a float too."""
    wanted: Any = {"bool": bool, "int": int, "float": (int, float), "str": str}[kind]
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
        raise BadSettings(f"{place} is {json.dumps(value)}. It should be {words[kind]}.")
    return float(value) if kind == "float" else value
