"""How the machines of a cluster reach each other: addresses, and the one file that lets them in.

Whoever reaches a Dask scheduler can run code on its workers. So between machines everything is
encrypted, and both ends show the certificate of one file, which the scheduler writes.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from helpers.errors import ParameterError
from helpers.store import display_path, report_write_errors

if TYPE_CHECKING:
    from distributed.security import Security

KEY_FILE = "cluster.pem"  # in the outputs folder of the scheduler
WORKER_TIMEOUT_VARIABLE = "TRITON_NOTEBOOKS_WORKER_TIMEOUT"  # set by the user, in seconds
WORKER_TIMEOUT_SECONDS = 20.0
LEAST_TCP_SECONDS = 12.0  # that Dask takes
LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")
ROLES = ("client", "scheduler", "worker")


def worker_timeout() -> float:
    """Return after how many seconds a machine that is not heard of counts as cut off.

    Raises `ParameterError` if the user's variable is not a positive number.
    """
    given = os.environ.get(WORKER_TIMEOUT_VARIABLE, "")
    try:
        seconds = float(given or WORKER_TIMEOUT_SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ParameterError(
            f"Invalid {WORKER_TIMEOUT_VARIABLE} '{given}'. Use a number of seconds."
        )
    return seconds


def is_loopback(host: str) -> bool:
    """Return whether a host's address can be reached from this machine only."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Access:
    """How a scheduler is reached: its address, the file that lets us in, and whether a connection
    that leaves this machine may be plain.
    """

    address: str
    key: Path | None = None
    insecure: bool = False

    @property
    def host(self) -> str:
        """Return the host of an address such as tls://10.0.0.1:8786; raise `ParameterError`."""
        with suppress(ValueError):  # of a port that is no number
            parts = urlsplit(self.address)
            if parts.scheme in ("tls", "tcp") and parts.hostname and parts.port is not None:
                return parts.hostname
        raise ParameterError(
            f"Invalid address {self.address}. Use tls://HOST:PORT, as the scheduler printed it."
        )

    @property
    def security(self) -> "Security":
        """Return what encrypts the connection.

        Raises `ParameterError` where a key is missing, or where a plain connection would leave this
        machine and nothing says that it may.
        """
        configure()  # Dask sets its loggers when it is imported
        from distributed.security import Security

        if self.address.startswith("tcp:"):
            if not is_loopback(self.host) and not self.insecure:
                plain = "is not encrypted: anyone who reaches it can run code on the workers"
                raise ParameterError(f"{self.address} {plain}. Use tls://, or add --insecure.")
            return Security()
        if self.key is None:
            raise ParameterError(
                f"{self.address} needs a key. Add --key with the scheduler's file."
            )
        if not self.key.is_file():
            raise ParameterError(f"--key {display_path(self.key)}: the file does not exist")
        parts = {f"tls_{role}_{part}": str(self.key) for role in ROLES for part in ("cert", "key")}
        return Security(require_encryption=True, tls_ca_file=str(self.key), **parts)


def write_key(path: Path) -> Path:
    """Write the file that lets machines in, a new key and its certificate for a year, unless it is
    there; only its owner can read it.
    """
    from distributed.security import Security

    if not path.exists():
        made = Security.temporary()
        with report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{made.tls_client_key}{made.tls_client_cert}")
    return path


def configure() -> None:
    """Set what every process of a cluster needs of Dask: nothing is run a second time, nothing is
    moved, nothing measures beside us, and a connection that is cut is noticed soon.
    """
    import dask

    seconds, tcp = f"{worker_timeout():g}s", f"{max(worker_timeout(), LEAST_TCP_SECONDS):g}s"
    dask.config.set(
        {
            "distributed.scheduler.allowed-failures": 0,
            "distributed.scheduler.work-stealing": False,
            "distributed.scheduler.worker-ttl": seconds,
            "distributed.scheduler.active-memory-manager.start": False,
            "distributed.worker.profile.enabled": False,
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.target": False,
            "distributed.worker.memory.pause": False,
            "distributed.worker.memory.terminate": False,
            "distributed.diagnostics.nvml": False,
            "distributed.comm.timeouts.tcp": tcp,
            "distributed.comm.timeouts.connect": seconds,
            "logging": dict.fromkeys(LOGGERS, "critical"),  # we say what matters
        }
    )
