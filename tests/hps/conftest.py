"""Real databases on loopback: Redis alone and as a Cluster of three masters."""

import shutil
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

from tests.conftest import free_ports, wait_for

CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")


class Redis:
    """One redis-server, which can be stopped and started again."""

    def __init__(self, folder, *options):
        self.port, self.bus = free_ports(2)
        self.folder, self.options = folder, options
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        import redis

        self.folder.mkdir(parents=True, exist_ok=True)
        command = (
            f"redis-server --port {self.port} --cluster-port {self.bus} --bind 127.0.0.1".split()
        )
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port) as client:

            def answers():
                try:
                    return client.ping()
                except redis.AuthenticationError:  # a ConnectionError too
                    return True
                except redis.ConnectionError:
                    return False

            wait_for(answers)

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def running(folder, *options):
    if not shutil.which("redis-server"):
        pytest.skip("redis: there is no redis-server")
    found = Redis(folder, *options)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def redis_server(tmp_path):
    with running(tmp_path / "redis") as found:
        yield found


@pytest.fixture
def start_redis(tmp_path):
    with ExitStack() as stack:
        yield lambda name, *options: stack.enter_context(running(tmp_path / name, *options))


@pytest.fixture
def redis_cluster(tmp_path):
    """Three masters, each with a third of the slots."""
    import redis

    with ExitStack() as stack:
        nodes = [stack.enter_context(running(tmp_path / str(i), *CLUSTER)) for i in range(3)]
        clients = [redis.Redis(port=node.port) for node in nodes]
        for place, client in enumerate(clients):
            first, last = 16384 * place // 3, 16384 * (place + 1) // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus)
        for name, value in (("cluster_state", "ok"), ("cluster_known_nodes", "3")):
            wait_for(lambda: all(c.cluster("info")[name] == value for c in clients))  # noqa: B023
        yield nodes
