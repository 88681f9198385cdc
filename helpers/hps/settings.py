"""NVIDIA's JSON of a hierarchical parameter server, with the defaults that its code had.

It is checked before a deployment writes it, with all its fields: the server itself, which may lack
pydantic, reads it as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

if TYPE_CHECKING:
    from collections.abc import Mapping

ONE_TABLE = {  # fields that the model determines, not an experiment
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
PER_TABLE = (  # lists with an entry for each table
    "embedding_table_names",
    "embedding_vecsize_per_table",
    "maxnum_catfeature_query_per_table_per_sample",
)
WORDS = {  # for kinds of pydantic's errors whose own message mentions Python
    "extra_forbidden": " is unknown. Remove it.",
    "missing": " is missing. Add it.",
    "model_type": " should be a mapping of names to values.",
}
UNBOUNDED = 2**64 - 1  # no margin, in NVIDIA's code
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]


class BadSettings(ValueError):
    """A JSON that is not NVIDIA's, in one line that names the field."""


class Section(pydantic.BaseModel):
    """Fields of the JSON. A field without an effect has a description with the reason."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")


class VolatileDatabase(Section):
    """The level of hot rows that several servers may share."""

    type: Literal["disabled", "hash_map", "parallel_hash_map", "redis_cluster"] = (
        "parallel_hash_map"
    )
    address: str = "127.0.0.1:7000"
    user_name: str = "default"
    password: str = ""
    num_partitions: Count = 16
    allocation_rate: int = Field(default=256 * 2**20, description="arrays grow as they need")
    max_batch_size: Count = 65536  # rows of a round trip
    overflow_margin: Count = UNBOUNDED  # rows of a partition, above which some are evicted
    overflow_policy: Literal["evict_random", "evict_least_used", "evict_oldest"] = "evict_random"
    overflow_resolution_target: Share = 0.8  # of the margin, to which they are
    initialize_after_startup: bool = True
    initial_cache_rate: Share = 1.0  # share of each table that it begins with
    cache_missed_embeddings: bool = False  # whether what the persistent level had comes here
    refresh_time_after_fetch: bool = False
    update_filters: list[str] = Field(default=[".+"], description="every table is updated")
    num_node_connections: int = Field(default=5, description="redis-py keeps its own connections")
    enable_tls: bool = False


class PersistentDatabase(Section):
    """The level that has all rows."""

    type: Literal["disabled", "rocks_db"] = "disabled"
    path: str = "/tmp/rocksdb"
    num_threads: int = Field(default=16, description="RocksDB keeps its own threads")
    read_only: bool = False
    max_batch_size: Count = 65536
    initialize_after_startup: bool = True
    update_filters: list[str] = Field(default=[".+"], description="every table is updated")


class UpdateSource(Section):
    """Where new vectors come from; "folder" and its path are not NVIDIA's."""

    type: Literal["null", "folder", "kafka_message_queue"] = "null"
    path: str = ""
    brokers: str = "127.0.0.1:9092"
    poll_timeout_ms: int = Field(default=500, description="a source is polled twice per second")
    max_receive_buffer_size: int = Field(
        default=2000, description="Kafka's client keeps its own buffers"
    )
    max_batch_size: Count = 8192
    failure_backoff_ms: int = Field(default=50, description="Kafka's client waits by itself")
    max_commit_interval: int = Field(default=32, description="each server reads the whole topic")


class ModelSettings(Section):
    """The tables of one model, and the cache in front of each."""

    model: str = Field(min_length=1)
    sparse_files: list[str] = Field(min_length=1)  # the folder of each table
    dense_file: str = Field(default="", description="the graph is a separate model")
    embedding_table_names: list[str]
    embedding_vecsize_per_table: list[Count]
    maxnum_catfeature_query_per_table_per_sample: list[int]
    default_value_for_each_table: list[float] = []
    deployed_device_list: list[int] = Field(default=[], description="Triton's instances set it")
    max_batch_size: int = 64
    num_of_worker_buffer_in_pool: int = Field(
        default=1, description="each request makes its buffers"
    )
    num_of_refresher_buffer_in_pool: int = Field(
        default=1, description="each chunk makes its buffers"
    )
    gpucache: bool = True
    gpucacheper: Share = 0.2
    hit_rate_threshold: float = 0.9
    cache_refresh_percentage_per_iteration: Share = 0.0
    refresh_delay: Seconds = 0.0
    refresh_interval: Seconds = 0.0
    init_ec: bool = True
    fuse_embedding_table: bool = Field(
        default=False, description="`fused` of an experiment joins tables"
    )

    @pydantic.model_validator(mode="after")
    def _check_tables(self) -> ModelSettings:
        tables = len(self.sparse_files)
        for name in PER_TABLE:
            if (entries := len(getattr(self, name))) != tables:
                raise ValueError(f"{name} has {entries} entries for {tables} tables")
        if len(set(self.embedding_table_names)) != tables:
            raise ValueError("embedding_table_names has a name twice. Rename one")
        return self


class Settings(Section):
    """The whole file."""

    models: list[ModelSettings] = Field(min_length=1, max_length=1)
    supportlonglong: Literal[True] = True  # keys have 64 bits
    fuse_embedding_table: bool = False
    volatile_db: VolatileDatabase = VolatileDatabase()
    persistent_db: PersistentDatabase = PersistentDatabase()
    update_source: UpdateSource = UpdateSource()


SECTIONS = ("volatile_db", "persistent_db", "update_source")
NO_EFFECT = {  # why, for each field without an effect
    name: field.description
    for section in (VolatileDatabase, PersistentDatabase, UpdateSource, ModelSettings)
    for name, field in section.model_fields.items()
    if field.description
}


def parse(content: object) -> Settings:
    """Check what a file holds; raise `BadSettings` naming the first field that is wrong."""
    try:
        return Settings.model_validate(content)
    except pydantic.ValidationError as error:
        first, *_ = error.errors()
    keys = [f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]]
    field = "".join(keys).lstrip(".") or "The file"
    if message := WORDS.get(first["type"]):
        raise BadSettings(f"{field}{message}")
    if first["type"] == "value_error":
        raise BadSettings(f"{field}: {first['msg'].removeprefix('Value error, ')}.")
    message = first["msg"].replace("Input should", "It should")
    raise BadSettings(f"{field} is {json.dumps(first['input'], default=str)}. {message}.")


def compose(overrides: Mapping[str, object], model: Mapping[str, object]) -> Settings:
    """Return the content of a file. `overrides` has sections, and fields of the one model, which
    replace those of `model` and of NVIDIA's example. Raises `BadSettings` for a wrong field.
    """
    sections = {name: value for name, value in overrides.items() if name in SECTIONS}
    model_fields = {name: value for name, value in overrides.items() if name not in SECTIONS}
    return parse({"models": [{**EXAMPLE, **model, **model_fields}], **sections})


def without_effect(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the reason for each field of `fields` or its sections that has no effect here."""
    sections = [value for name, value in fields.items() if name in SECTIONS]
    names = [name for group in (fields, *sections) for name in group]  # type: ignore[attr-defined]
    return {name: NO_EFFECT[name] for name in names if name in NO_EFFECT}
