"""Real databases on loopback: Redis alone and as a Cluster of three masters."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import free_ports

CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")


class Redis:
    """One redis-server, which can be stopped and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port, self.bus = free_ports(2)
        self.folder, self.options = folder, options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        import redis

        self.folder.mkdir(parents=True, exist_ok=True)
        command = (
            f"redis-server --port {self.port} --cluster-port {self.bus} --bind 127.0.0.1".split()
        )
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        client, ends = redis.Redis(port=self.port), time.monotonic() + 10
        while True:
            try:
                client.ping()
            except redis.AuthenticationError:
                pass
            except redis.ConnectionError:
                assert time.monotonic() < ends
                time.sleep(0.02)
                continue
            client.close()
            return

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Redis]:
    if not shutil.which("redis-server"):
        pytest.skip("redis: there is no redis-server")
    found = Redis(folder, *options)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Redis]:
    with running(tmp_path / "redis") as found:
        yield found


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., Redis]]:
    with ExitStack() as stack:
        yield lambda name, *options: stack.enter_context(running(tmp_path / name, *options))


@pytest.fixture
def redis_cluster(tmp_path: Path) -> Iterator[list[Redis]]:
    """Three masters, each with a third of the slots."""
    import redis

    with ExitStack() as stack:
        nodes = [stack.enter_context(running(tmp_path / str(i), *CLUSTER)) for i in range(3)]
        clients = [redis.Redis(port=node.port) for node in nodes]
        for place, client in enumerate(clients):
            first, last = 16384 * place // 3, 16384 * (place + 1) // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus)
        ends = time.monotonic() + 20
        while not all(client.cluster("info")["cluster_state"] == "ok" for client in clients):
            assert time.monotonic() < ends
            time.sleep(0.05)
        while not all(client.cluster("info")["cluster_known_nodes"] == "3" for client in clients):
            assert time.monotonic() < ends
            time.sleep(0.05)
        yield nodes
