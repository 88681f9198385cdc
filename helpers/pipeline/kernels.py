"""Start kernels quickly by forking one process that has imported the packages.

Starting Python and importing the packages of a notebook takes about 2 s on two cores, and importing
the framework 1 to 5 s more. Some stages compute no longer than that. Jupyter starts kernels by a
provisioner, which this module has.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from helpers.errors import StageError

NAME = "forked"
LAUNCHER = "ipykernel_launcher"  # the module by which Jupyter starts a kernel
END_SECONDS = 5.0


class KernelServer:
    """The process that forks kernels; it starts with the first kernel."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._framework = ""

    def preload(self, framework: str, is_needed: bool = True) -> None:
        """Import the framework of this name for the next kernels, and no other framework.

        It is imported if it is needed, and stays imported otherwise. Two frameworks in one process
        may interfere.
        """
        if self._framework != framework and (is_needed or self._framework):
            self.close()
            self._framework = framework if is_needed else ""

    def _start(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        script = str(Path(__file__).with_name("fork_server.py"))
        channel, theirs = socket.socketpair()
        with theirs:
            # -P: this folder must not come before the packages
            command = [sys.executable, "-P", script, str(theirs.fileno()), self._framework]
            process = subprocess.Popen(
                [*filter(None, command)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return process, channel

    def fork(self, argv: list[str], env: dict[str, str], cwd: str) -> "KernelProcess":
        """Start a kernel with these arguments; raise `StageError` if that fails."""
        if self._channel is None:
            self._process, self._channel = self._start()
        request = json.dumps({"argv": argv, "env": env, "cwd": cwd})
        with suppress(OSError):  # the process has ended
            self._channel.sendall(f"{request}\n".encode())
        response = b""
        while not response.endswith(b"\n"):
            if not (chunk := self._channel.recv(64)):
                raise StageError("The process that starts kernels has ended. Run again.")
            response += chunk
        if not response[:1].isdigit():
            self.close()
            raise StageError(response.decode().strip())
        return KernelProcess(int(response))

    def close(self) -> None:
        """End the process, if it runs, and wait for its end."""
        if self._channel:
            self._channel.close()
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            self._process.kill()
            self._process.wait()
        self._process = self._channel = None


class KernelProcess:
    """A kernel that is a child of another process, with the methods of `Popen` for Jupyter."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid, self._file = pid, -1
        with suppress(ProcessLookupError):
            self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return None while it runs, then 0: its exit status is unknown."""
        is_running = self._file >= 0 and not select.select([self._file], [], [], 0)[0]
        return None if is_running else self.wait()

    def wait(self) -> int:
        """Wait for its end."""
        if self._file >= 0:
            select.select([self._file], [], [])
            os.close(self._file)
            self._file = -1
        return 0

    def send_signal(self, signum: int) -> None:
        """Send it a signal, unless it has ended."""
        if self._file >= 0:
            signal.pidfd_send_signal(self._file, signum)

    kill = partialmethod(send_signal, signal.SIGKILL)
    terminate = partialmethod(send_signal, signal.SIGTERM)


kernel_server: KernelServer | None = None  # that of the current `kernel_server_context`


class ForkedProvisioner(LocalProvisioner):
    """Forks a kernel of this Python, and starts any other as Jupyter does."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, and return how to connect to it."""
        if kernel_server is None or cmd[0] != sys.executable or LAUNCHER not in cmd:
            return await super().launch_kernel(cmd, **kwargs)
        arguments = cmd[cmd.index(LAUNCHER) + 1 :]
        env, cwd = kwargs.get("env") or dict(os.environ), kwargs.get("cwd") or os.getcwd()
        self.process: Any = kernel_server.fork(arguments, env, str(cwd))
        self.pid = self.pgid = self.process.pid
        return self.connection_info


@contextmanager
def kernel_server_context() -> Iterator[KernelServer]:
    """Fork the kernels that the block starts from one process, which ends with the block."""
    global kernel_server
    factory = KernelProvisionerFactory.instance()
    factory.provisioners[NAME] = EntryPoint(
        NAME, f"{__name__}:{ForkedProvisioner.__name__}", factory.GROUP_NAME
    )
    before = factory.default_provisioner_name
    kernel_server, factory.default_provisioner_name = KernelServer(), NAME
    try:
        yield kernel_server
    finally:
        factory.default_provisioner_name = before
        kernel_server.close()
        kernel_server = None
