"""Connect the machines of a cluster: addresses, and the key file that authenticates them.

Anyone who reaches a Dask scheduler can run code on its workers. So connections between machines are
encrypted, and both ends present the certificate of one file, which the scheduler writes.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
LEAST_TCP_SECONDS = 12.0  # the smallest value that Dask accepts
LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")
ROLES = ("client", "scheduler", "worker")


def worker_timeout() -> float:
    """Return the seconds without contact after which a machine counts as disconnected.

    Raises `ParameterError` if the user's variable is not a positive number.
    """
    value = os.environ.get(WORKER_TIMEOUT_VARIABLE) or WORKER_TIMEOUT_SECONDS
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < inf:
            return seconds
    raise ParameterError(f"Invalid {WORKER_TIMEOUT_VARIABLE} '{value}'. Use a number of seconds.")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host's address."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Access:
    """The address of a scheduler, the key file, and whether remote connections may skip TLS."""

    address: str
    key: Path | None = None
    insecure: bool = False

    @property
    def host(self) -> str:
        """Return the host of an address such as tls://10.0.0.1:8786; raise `ParameterError`."""
        with suppress(ValueError):  # the port is not a number
            parts = urlsplit(self.address)
            if parts.scheme in ("tls", "tcp") and parts.hostname and parts.port is not None:
                return parts.hostname
        raise ParameterError(
            f"Invalid address {self.address}. Use tls://HOST:PORT, as the scheduler printed it."
        )

    @property
    def security(self) -> "Security":
        """Return Dask's settings of the encryption.

        Raises `ParameterError` if a key is missing, or if a connection to another machine has no
        TLS and `insecure` is not set.
        """
        configure()  # Dask sets its loggers when it is imported
        from distributed.security import Security

        if self.address.startswith("tcp:"):
            if not is_loopback(self.host) and not self.insecure:
                plain = "is not encrypted: anyone who reaches it can run code on the workers"
                raise ParameterError(f"{self.address} {plain}. Use tls://, or add --insecure.")
            return Security()
        if self.key is None:
            missing = f"{self.address} needs a key"
            raise ParameterError(f"{missing}. Add --key with the scheduler's file.")
        if not self.key.is_file():
            raise ParameterError(f"--key {display_path(self.key)}: the file does not exist")
        parts = {f"tls_{role}_{part}": str(self.key) for role in ROLES for part in ("cert", "key")}
        return Security(require_encryption=True, tls_ca_file=str(self.key), **parts)


def write_key(path: Path) -> Path:
    """Write a key and its certificate for a year, for its owner only, unless the file exists."""
    from distributed.security import Security

    if not path.exists():
        credentials = Security.temporary()
        with report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", opener=partial(os.open, mode=0o600)) as file:
                file.write(f"{credentials.tls_client_key}{credentials.tls_client_cert}")
    return path


def configure() -> None:
    """Configure Dask in every process of a cluster.

    It must not run tasks twice, move them, or profile during a measurement, and must detect a lost
    connection soon.
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
            "logging": dict.fromkeys(LOGGERS, "critical"),  # this package reports errors
        }
    )
