"""The volatile database in Redis, a single node or a Cluster, that several servers share.

Each partition of a table is a hash. Its fields are keys (8 bytes, little-endian), and its values
are vectors.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .table import Database, Unavailable, as_bytes, copy_blobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .files import Keys, Places, Vectors
    from .settings import VolatileDatabase

TIMEOUT_SECONDS = 5.0
NO_MARGIN = 2**63
RETRY_SECONDS = 1.0  # after a failure, without a request to Redis


class _NoTls(ModuleType):
    """A module with an attribute of every name, as redis-py needs types of `ssl` without TLS."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})  # some are caught


def _import_redis() -> Any:
    """Import redis-py, also in the Python of Triton's own backend, which may lack `ssl`."""
    try:
        import ssl  # noqa: F401
    except ImportError:
        sys.modules["ssl"] = _NoTls("ssl")
    try:
        import redis
    finally:
        if isinstance(sys.modules["ssl"], _NoTls):
            del sys.modules["ssl"]
    return redis


def connect(settings: VolatileDatabase) -> Any:
    """Connect to the Redis at `address`, a single node or a Cluster; commas separate several nodes.

    Raises `Unavailable` for a wrong password, or if no node responds.
    """
    redis = _import_redis()
    first, *_ = settings.address.replace(";", ",").split(",")
    host, _, port = first.strip().rpartition(":")
    options: dict[str, Any] = {
        "host": host,
        "port": int(port),
        "ssl": settings.enable_tls,
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        # a closed connection is opened again once; after that a request does not wait
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 1),
    }
    if settings.password:
        options.update({"username": settings.user_name, "password": settings.password})
    try:
        client = redis.Redis(**options)
        if client.info("cluster").get("cluster_enabled"):
            client.close()
            return redis.RedisCluster(**options)
    except (redis.RedisError, OSError) as error:
        reason = str(error)
        if isinstance(error, redis.AuthenticationError) or "AUTH" in reason:
            reason = "it rejects user_name and password"
        raise Unavailable(f"Redis at {settings.address}: {reason}") from None
    return client


class RedisMap(Database):
    """One table's rows in Redis. For a second after a failure, all calls raise `Unavailable`."""

    outlives_process = True

    def __init__(self, client: Any, name: str, settings: VolatileDatabase) -> None:
        self._client, self._name, self._settings = client, name, settings
        self._away_until, self._why = 0.0, ""

    def insert(self, keys: Keys, vectors: Vectors) -> None:
        """Write vectors [n, width] of keys [n] in pipelined batches, and evict surplus rows."""
        step = self._settings.max_batch_size
        with self._asking():
            for start in range(0, len(keys), step):
                self._put(keys[start : start + step], vectors[start : start + step])

    def _put(self, keys: Keys, vectors: Vectors) -> None:
        parts, pipe = self._parts(keys), self._client.pipeline(transaction=False)
        for partition, places, fields in parts:
            blobs = as_bytes(vectors[places], "<f4")
            pipe.hset(self._key(partition), mapping=dict(zip(fields, blobs)))
            self._touch(pipe, partition, fields)
        pipe.execute()
        if self._settings.overflow_margin < NO_MARGIN:
            for partition, *_ in parts:
                self._evict(partition)

    def fetch(self, keys: Keys, out: Vectors) -> Places:
        missing = []
        with self._asking():
            for start in range(0, len(keys), self._settings.max_batch_size):
                chunk = keys[start : start + self._settings.max_batch_size]
                missing.append(start + self._take(chunk, out[start:]))
        return np.concatenate(missing) if missing else np.arange(0)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        redis = _import_redis()
        if time.monotonic() < self._away_until:
            raise Unavailable(self._why)
        try:
            yield
        except (redis.RedisError, OSError) as error:
            self._why = f"{self._name}: no connection to Redis at {self._settings.address}: {error}"
            self._away_until = time.monotonic() + RETRY_SECONDS
            raise Unavailable(self._why) from None

    def _take(self, keys: Keys, out: Vectors) -> Places:
        parts, pipe = self._parts(keys), self._client.pipeline(transaction=False)
        for partition, _, fields in parts:
            pipe.hmget(self._key(partition), fields)
        for partition, _, fields in parts:
            self._touch(pipe, partition, fields, read=True)
        answers = zip(parts, pipe.execute())
        missing = [copy_blobs(blobs, places, out) for (_, places, _), blobs in answers]
        return np.sort(np.concatenate(missing))

    def __len__(self) -> int:
        return sum(self._client.hlen(self._key(i)) for i in range(self._settings.num_partitions))

    def _key(self, partition: int, kind: str = "v") -> str:
        """Return the name of a hash; in a Cluster the part in braces decides the node."""
        return f"{{hps_et.{self._name}/p{partition}}}{kind}"

    def _parts(self, keys: Keys) -> list[tuple[int, Places, list[bytes]]]:
        """Group keys by partition: its number, their indices, and their fields of its hash."""
        partitions = keys % self._settings.num_partitions
        order = np.argsort(partitions, kind="stable")
        different, starts = np.unique(partitions[order], return_index=True)
        groups = zip(different.tolist(), np.split(order, starts[1:]))
        return [(partition, at, as_bytes(keys[at], "<i8")) for partition, at in groups]

    def _touch(self, pipe: Any, partition: int, fields: list[bytes], read: bool = False) -> None:
        """Record when rows were written, or how often they were read, if the policy needs it."""
        policy, at = self._settings.overflow_policy, self._key(partition, "u")
        if self._settings.overflow_margin >= NO_MARGIN or not fields:
            return
        if policy == "evict_oldest" and (not read or self._settings.refresh_time_after_fetch):
            pipe.zadd(at, dict.fromkeys(fields, time.time()), xx=read)
        elif policy == "evict_least_used" and read:
            for field in fields:
                pipe.zadd(at, {field: 1}, incr=True, xx=True)  # only of present rows
        elif policy == "evict_least_used":
            pipe.zadd(at, dict.fromkeys(fields, 0), nx=True)

    def _evict(self, partition: int) -> None:
        margin, target = self._settings.overflow_margin, self._settings.overflow_resolution_target
        rows, used = self._key(partition), self._key(partition, "u")
        count = self._client.hlen(rows)
        if count <= margin:
            return
        surplus = count - int(target * margin)
        if self._settings.overflow_policy == "evict_random":
            gone = self._client.hrandfield(rows, surplus)
        else:
            gone = self._client.zrange(used, 0, surplus - 1)
        pipe = self._client.pipeline(transaction=False)
        pipe.hdel(rows, *gone)
        pipe.zrem(used, *gone)
        pipe.execute()

    def clear(self) -> None:
        with self._asking():
            for partition in range(self._settings.num_partitions):
                for kind in "vum":
                    self._client.unlink(self._key(partition, kind))

    def load_token(self) -> str:
        with self._asking():
            return (self._client.get(self._key(0, "m")) or b"").decode()

    def set_load_token(self, text: str) -> None:
        with self._asking():
            self._client.set(self._key(0, "m"), text)
