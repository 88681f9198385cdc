"""A Triton server, wherever it runs: ports for one, waiting until it is ready, talking to it."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from errno import EADDRNOTAVAIL, ENETUNREACH
from functools import partial
from http.client import HTTPException
from itertools import product
from pathlib import Path
from random import SystemRandom
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from threading import Lock
from typing import Any, TypedDict, TypeVar
from urllib.request import ProxyHandler, build_opener

import numpy as np
import tritonclient.http as http
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers.errors import ServerError
from helpers.models import Arrays, Wire
from helpers.triton.process import last_lines, plain

EXACT = "exact"  # another configuration of a store: every lookup waits for its vectors
TIMEOUT_SECONDS = 600.0
CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_CLIENT_PORTS = 32_768  # the first of them where that cannot be read
PORTS_FROM = 10_000  # below are those of well-known services
TRIES = 1_000
STUB_SECONDS = 5.0  # in which Triton itself reports a stub that could not start, if it does
OPENER = build_opener(ProxyHandler({}))  # a server is never asked through the user's proxy
# For every Triton that this package starts, of whatever release. Without model control it loads the
# repository's models, and nobody who reaches the port can load others, whose code would run as this
# user.
COMMON_FLAGS = ("--model-control-mode=none", "--allow-grpc=false", "--exit-timeout-secs=5")

randrange = SystemRandom().randrange  # forked processes draw different ports

T = TypeVar("T")


def _answers(url: str) -> bool:
    try:
        with OPENER.open(f"http://{url}", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # nobody listens, or it ends in mid-answer
        return False


class Count(TypedDict):
    """How often something happened, and the nanoseconds that it took altogether."""

    count: int
    ns: int


class Statistics(TypedDict):
    """Triton's cumulative statistics of a model since it was loaded, as far as they are used."""

    inference_count: int  # samples
    execution_count: int  # runs of the model
    inference_stats: dict[str, Count]  # of requests: success, fail, queue, compute_infer ...


@dataclass(frozen=True)
class Server:
    """A server that runs, or starts.

    `address` and `metrics_address` are host:port. `end` describes how the server ended, and is
    empty while it runs. `is_local` says whether it can share memory with this host. `processes` are
    those of this host from which all of its own descend, where they are known. `ready` returns once
    it is ready, and raises `ServerError` if it will not be.
    """

    address: str
    metrics_address: str
    log: Path
    end: Callable[[], str] = field(repr=False, default=lambda: "")
    is_local: bool = True
    processes: tuple[int, ...] = ()
    wire: Wire | None = None  # how samples travel to the model, if not as they are
    identity: str = ""  # a model with the same tensors that computes nothing, if there is one
    ready: Callable[[], None] = field(repr=False, default=lambda: None)

    @property
    def url(self) -> str:
        """Where it answers, as soon as it does."""
        self.ready()
        return self.address

    @property
    def metrics_url(self) -> str:
        """Where it tells its metrics, as soon as it does; empty if it has none."""
        self.ready()
        return self.metrics_address

    def is_alive(self) -> bool:
        """Return whether the server's process runs."""
        return not self.end()

    def exit_report(self) -> str:
        """Describe how the server ended, if it did, and what the end of its log says."""
        return ": ".join(filter(None, (self.end(), last_lines(self.log))))

    def is_live(self, seconds: float = 0) -> bool:
        """Return whether the server answers within `seconds` and has not ended: another may answer
        at its address. How it ended is known a little later, when all of its processes have.
        """
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if _answers(f"{self.address}/v2/health/live"):
                return self.is_alive()
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return False

    def _is_ready(self) -> bool:
        """Return whether it answers as ready, and for its metrics, for which it listens a little
        later.
        """
        metrics = self.metrics_address and f"{self.metrics_address}/metrics"
        urls = f"{self.address}/v2/health/ready", metrics
        return all(_answers(url) for url in urls if url) and self.is_alive()

    def wait_until_ready(
        self,
        seconds: float,
        has_dead_stubs: Callable[[], bool] = lambda: False,
        pause_seconds: float = 0.05,
    ) -> None:
        """Wait until the server, its models and its metrics are ready; raise `ServerError` if it
        ends, is not ready after `seconds`, or has dead stubs for `STUB_SECONDS`.
        """
        started = healthy = time.monotonic()
        while (now := time.monotonic()) < started + seconds:
            if not self.is_alive():
                raise ServerError(f"Triton ended while it started: {self.exit_report()}")
            if self._is_ready():
                return
            if not has_dead_stubs():
                healthy = now
            if now > healthy + STUB_SECONDS:
                raise ServerError(
                    f"a Python process of Triton ended while it started: {self.exit_report()}"
                )
            time.sleep(pause_seconds)
        raise ServerError(f"Triton was not ready after {seconds:.0f} s: {self.exit_report()}")

    def load(self, model: str) -> None:
        """Load `model` from the server's repository, under explicit model control."""
        self._call(lambda client: client.load_model(model))

    def unload(self, model: str) -> None:
        """Unload `model`."""
        self._call(lambda client: client.unload_model(model))

    def is_ready(self, model: str) -> bool:
        """Return whether `model` answers requests."""
        return bool(self._call(lambda client: client.is_model_ready(model)))

    def statistics(self, model: str) -> Statistics:
        """Return Triton's cumulative statistics of `model`."""
        answer = self._call(lambda client: client.get_inference_statistics(model))
        found: Statistics = answer["model_stats"][0]
        return found

    def metrics(self) -> str:
        """The server's metrics in Prometheus' text format."""
        with OPENER.open(f"http://{self.metrics_url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def converse(self, model: str, talk: Callable[[Callable[[Arrays], Arrays]], T]) -> T:
        """Call `talk` with a function that sends a request; all go over one connection."""
        return self._call(lambda client: talk(partial(_infer, client, model)))

    def infer(self, model: str, inputs: Arrays) -> Arrays:
        """Send one request with a leading batch dimension and return all outputs by name."""
        return self._call(lambda client: self._ask(client, model, inputs))

    def infer_all(self, model: str, batches: Iterable[Arrays], clients: int = 1) -> Arrays:
        """Send each batch as a request, from `clients` clients that have a connection and one
        request at a time each; return the outputs of all samples, in the order of the batches.

        Raises `ServerError` with the numbers, from 0 on, of samples that were not answered.
        """
        waiting, sent, lock = iter(batches), 0, Lock()
        answers: dict[range, Arrays] = {}  # by the numbers of a request's samples

        def send(client: Any) -> None:
            nonlocal sent
            while True:
                with lock:
                    if not (batch := next(waiting, {})):
                        return
                    samples = range(sent, sent + len(next(iter(batch.values()))))
                    sent = samples.stop
                with self._explained(f" with samples {samples[0]} to {samples[-1]}"):
                    answers[samples] = self._ask(client, model, batch)

        with ThreadPoolExecutor(clients) as threads:
            sending = [threads.submit(self._call, send) for _ in range(clients)]
            try:
                wait(sending, return_when=FIRST_EXCEPTION)
            finally:
                waiting = iter(())  # after an error or an interrupt the others end too
        for each in sending:
            each.result()
        in_order = sorted(answers.items(), key=lambda each: each[0].start)
        names = dict.fromkeys(name for answer in answers.values() for name in answer)
        for name, (samples, answer) in product(names, in_order):
            if (found := len(answer.get(name, ()))) != len(samples):
                raise ServerError(
                    f"sample {samples[min(found, len(samples) - 1)]} has no response: Triton sent "
                    f"{found} values of {name} for samples {samples[0]} to {samples[-1]}"
                )
        return {name: np.concatenate([answer[name] for _, answer in in_order]) for name in names}

    def _ask(self, client: Any, model: str, batch: Arrays) -> Arrays:
        if self.wire is None:
            return _infer(client, model, batch)
        return self.wire.decode(_infer(client, model, self.wire.encode(batch)))

    def counters(self, prefix: str) -> dict[str, float]:
        """Read the counters of the metrics whose names begin so, added up over their labels."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, float] = {}
        try:
            text = self.metrics()
        except (OSError, HTTPException):  # it has ended, or has no metrics
            return found
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name.startswith(prefix) else ():
                name = sample.name.removesuffix("_total")
                found[name] = found.get(name, 0) + sample.value
        return found

    def _call(self, action: Callable[[Any], T]) -> T:
        client = http.InferenceServerClient(
            self.url, connection_timeout=TIMEOUT_SECONDS, network_timeout=TIMEOUT_SECONDS
        )
        try:
            with self._explained():
                return action(client)
        finally:
            with suppress(OSError):
                client.close()

    @contextmanager
    def _explained(self, request: str = "") -> Iterator[None]:
        """Turn the client's errors into `ServerError`; `request` says which request it was."""
        try:
            yield
        except InferenceServerException as error:
            said = plain(error.message())
            raise ServerError(f"Triton rejected the request{request}: {said}") from error
        except (OSError, HTTPParseError) as error:  # the second in mid-answer
            state = f"has ended: {self.exit_report()}" if self.end() else f"is running: {error}"
            where = f"Triton at {self.address}, which {state}"
            raise ServerError(f"no response from {where}") from error


def _infer(client: Any, model: str, inputs: Arrays) -> Arrays:
    tensors = []
    for name, array in inputs.items():
        tensor = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array))
    try:
        result = client.infer(model, tensors)
    except (HTTPConnectionClosed, ConnectionError):  # it was idle, and closed before an answer
        result = client.infer(model, tensors)
    return {
        each["name"]: result.as_numpy(each["name"]) for each in result.get_response()["outputs"]
    }


def free_ports(*wanted: int) -> list[int]:
    """Return different ports of 127.0.0.1 that nothing listens on: those `wanted`, any for a 0.

    Raises `ServerError` if one is taken, or if this machine has no 127.0.0.1.
    """
    with reserved_ports(*wanted) as ports:
        return ports


@contextmanager
def reserved_ports(*wanted: int) -> Iterator[list[int]]:
    """Yield such ports for servers to listen on. No other process can draw them in the block."""
    with socket() as probe:
        if probe.connect_ex(("127.0.0.1", 1)) in (ENETUNREACH, EADDRNOTAVAIL):
            raise ServerError(
                "This machine cannot reach 127.0.0.1. Set up its loopback interface: "
                "ip address add 127.0.0.1/8 dev lo; ip link set lo up"
            )
    with ExitStack() as bound:
        yield [_bind(bound, port, True) if port else _bind_any(bound) for port in wanted]


def _bind(bound: ExitStack, port: int, is_wanted: bool) -> int:
    each = bound.enter_context(socket())
    if is_wanted:  # also just after a server; two that only bind it would both get it
        each.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        each.bind(("127.0.0.1", port))
    except OSError as error:
        raise ServerError(
            f"Port {port} of 127.0.0.1 is taken ({error.strerror}). Use another port, or none."
        ) from None
    each.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # a server sets it too, and can listen beside this
    return port


def _bind_any(bound: ExitStack) -> int:
    """Bind a port that no connection will have meanwhile: the system gives clients others."""
    try:
        clients = int(CLIENT_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        clients = USUAL_CLIENT_PORTS
    for _ in range(TRIES):
        with suppress(ServerError):
            return _bind(bound, randrange(min(PORTS_FROM, clients - 1), clients), False)
    raise ServerError(f"No port of 127.0.0.1 below {clients} is free. Stop what listens there.")
