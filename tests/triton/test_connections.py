"""What becomes of a request when the other side closes its connection, or there is none."""

import json
import re
import shutil
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from helpers.errors import ServerError
from helpers.triton.server import Server

SAMPLES = 5
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset


def answer(request):
    """Answer with the one number that the request holds."""
    (value,) = np.frombuffer(request[-8:], np.int64).tolist()
    output = {"name": "y", "datatype": "INT64", "shape": [1], "data": [value]}
    body = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@contextmanager
def closing(way):
    """A server that keeps connections, but closes each after two answers (`way`: with "reset"), or
    all after a "part" of the third answer, or "instead" of it; and the requests that it read.
    """
    read = []

    def converse(connection):
        with connection, connection.makefile("rb") as file:
            for number in (1, 2, 3):
                size = 0
                while (line := file.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split()[1])
                if not size:
                    return
                whole = answer(body := file.read(size))
                read.append(int.from_bytes(body[-8:], "little"))
                if way in ("part", "instead") and len(read) > 2:
                    connection.sendall(whole[: 60 if way == "part" else 0])
                    return
                connection.sendall(whole)
                if number == 2 and way in ("close", "reset"):
                    if way == "reset":
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    return

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            converse(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=accept)
        thread.start()
        try:
            yield Server(f"127.0.0.1:{listener.getsockname()[1]}", "", Path("log")), read
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def ask(server):
    batches = ({"x": np.full((1, 1), number)} for number in range(SAMPLES))
    return server.infer_all("m", batches)["y"].tolist()


@pytest.mark.parametrize("way", ["close", "reset"])
def test_a_request_on_a_connection_that_was_closed_goes_over_another(way):
    with closing(way) as (server, read):
        assert ask(server) == list(range(SAMPLES))
    assert read == list(range(SAMPLES))  # each arrived once


@pytest.mark.parametrize(("way", "asked"), [("part", [2]), ("instead", [2, 2])])
def test_a_request_is_sent_again_only_if_no_part_of_an_answer_came(way, asked):
    with closing(way) as (server, read), pytest.raises(ServerError) as raised:
        ask(server)
    words = f"no response from Triton at {server.address}, which is running: .+"
    assert re.fullmatch(words, str(raised.value))  # one line
    assert read == [0, 1, *asked]


@pytest.mark.slow
def test_a_machine_without_a_loopback_interface_is_one_line():
    command = "from helpers.triton.server import reserved_ports as f\ntry: f(0).__enter__()\n"
    command += "except Exception as error: print(type(error).__name__, error)"
    for isolation in (["--net"], ["--net", "--user", "--map-root-user"]):
        inside = ["unshare", *isolation]
        if shutil.which("unshare") and not subprocess.run([*inside, "true"]).returncode:
            done = subprocess.run(
                [*inside, sys.executable, "-c", command], capture_output=True, text=True
            )
            assert done.stdout == (
                "ServerError This machine cannot reach 127.0.0.1. Set up its loopback interface: "
                "ip address add 127.0.0.1/8 dev lo; ip link set lo up\n"
            )
            return
    pytest.skip("no network namespace can be made here")
