"""A Triton server on any machine: free ports for it, the wait until it is ready, and requests."""

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
import tritonclient.grpc as grpc
import tritonclient.http as http
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers.config import Protocol
from helpers.errors import ServerError
from helpers.models import Arrays, RequestCodec
from helpers.triton.process import last_lines, plain

EXACT = "exact"  # another configuration of a store: every lookup waits for its vectors
TIMEOUT_SECONDS = 600.0
CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS_FROM = 10_000  # below are those of well-known services
TRIES = 1_000
STUB_SECONDS = 5.0  # in which Triton itself reports a stub that could not start, if it does
OPENER = build_opener(ProxyHandler({}))  # requests to a server never use the user's proxy
# Flags of every Triton that this package starts, of any release. Without model control it loads the
# repository's models, and no client can load others, whose code would run as this user.
COMMON_FLAGS = ("--model-control-mode=none", "--exit-timeout-secs=5")
NO_GRPC = "--allow-grpc=false"
NO_RESPONSE = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")  # of gRPC

randrange = SystemRandom().randrange  # forked processes draw different ports

T = TypeVar("T")


def _answers(url: str) -> bool:
    try:
        with OPENER.open(f"http://{url}", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # nothing listens, or it ends during the response
        return False


class Statistics(TypedDict):
    """The part of Triton's cumulative statistics of a model that this package uses."""

    inference_count: int  # samples
    execution_count: int  # runs of the model
    # of requests, in "success", "fail", "queue", "compute_infer" ...: "count" and time in "ns"
    inference_stats: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Server:
    """A server that runs, or starts.

    `address`, `metrics_address` and `grpc_address` are host:port. With the last, requests for
    inference travel over gRPC, and all others over HTTP. `end` describes how the server ended, and
    is empty while it runs. `is_local` says whether it can share memory with this host. `processes`
    are those of this host from which all of its own descend, where they are known. `ready` returns
    once it is ready, and raises `ServerError` if it will not be.
    """

    address: str
    metrics_address: str
    log: Path
    end: Callable[[], str] = field(repr=False, default=lambda: "")
    is_local: bool = True
    processes: tuple[int, ...] = ()
    codec: RequestCodec | None = None  # how samples travel to the model, if not as they are
    identity: str = ""  # a model with the same tensors that computes nothing, if there is one
    ready: Callable[[], None] = field(repr=False, default=lambda: None)
    grpc_address: str = ""

    @property
    def url(self) -> str:
        """Return the address, after the server has become ready."""
        self.ready()
        return self.address

    @property
    def metrics_url(self) -> str:
        """Return the address of the metrics, after the server has become ready; empty without."""
        self.ready()
        return self.metrics_address

    @property
    def protocol(self) -> Protocol:
        """Return the protocol of requests for inference."""
        return "grpc" if self.grpc_address else "http"

    @property
    def inference_url(self) -> str:
        """Return the address for requests for inference, after the server has become ready."""
        return self.url and (self.grpc_address or self.address)

    def is_alive(self) -> bool:
        """Return whether the server's process runs."""
        return not self.end()

    def exit_report(self) -> str:
        """Return how the server ended, if it did, and the last lines of its log."""
        return ": ".join(filter(None, (self.end(), last_lines(self.log))))

    def is_live(self, seconds: float = 0) -> bool:
        """Return whether the server responds within `seconds` and has not ended, as another may
        respond at its address. The reason of its end is known after all its processes have ended.
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
        """Return whether it responds as ready, and with its metrics, which are available later."""
        metrics = self.metrics_address and f"{self.metrics_address}/metrics"
        urls = f"{self.address}/v2/health/ready", metrics
        return all(_answers(url) for url in urls if url) and self.is_alive()

    def wait_until_ready(
        self,
        seconds: float,
        has_dead_stubs: Callable[[], bool] = lambda: False,
        pause_seconds: float = 0.05,
    ) -> None:
        """Wait until the server, its models and its metrics are ready.

        Raises `ServerError` if it ends, is not ready after `seconds`, or has dead stubs for
        `STUB_SECONDS`.
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
        """Return whether `model` is ready for requests."""
        return bool(self._call(lambda client: client.is_model_ready(model)))

    def statistics(self, model: str) -> Statistics:
        """Return Triton's cumulative statistics of `model`."""
        answer = self._call(lambda client: client.get_inference_statistics(model))
        statistics: Statistics = answer["model_stats"][0]
        return statistics

    def metrics(self) -> str:
        """Return the server's metrics in Prometheus' text format."""
        with OPENER.open(f"http://{self.metrics_url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def with_client(self, model: str, use: Callable[[Callable[[Arrays], Arrays]], T]) -> T:
        """Call `use` with a function that sends a request; all go over one connection."""
        return self._call(lambda client: use(partial(_infer, client, model)), self.protocol)

    def infer(self, model: str, inputs: Arrays) -> Arrays:
        """Send one request with a leading batch dimension and return all outputs by name."""
        return self._call(lambda client: self._infer_encoded(client, model, inputs), self.protocol)

    def infer_all(self, model: str, batches: Iterable[Arrays], clients: int = 1) -> Arrays:
        """Send each batch as a request, and return the outputs of all samples, in that order.

        Each of `clients` clients has one connection and one request in flight. Raises `ServerError`
        with the numbers, from 0 on, of samples without a response.
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
                    answers[samples] = self._infer_encoded(client, model, batch)

        with ThreadPoolExecutor(clients) as threads:
            sending = [threads.submit(self._call, send, self.protocol) for _ in range(clients)]
            try:
                wait(sending, return_when=FIRST_EXCEPTION)
            finally:
                waiting = iter(())  # after an error or an interrupt the others end too
        for future in sending:
            future.result()
        in_order = sorted(answers.items(), key=lambda item: item[0].start)
        names = dict.fromkeys(name for answer in answers.values() for name in answer)
        for name, (samples, answer) in product(names, in_order):
            if (count := len(answer.get(name, ()))) != len(samples):
                raise ServerError(
                    f"sample {samples[min(count, len(samples) - 1)]} has no response: Triton sent "
                    f"{count} values of {name} for samples {samples[0]} to {samples[-1]}"
                )
        return {name: np.concatenate([answer[name] for _, answer in in_order]) for name in names}

    def _infer_encoded(self, client: Any, model: str, batch: Arrays) -> Arrays:
        if self.codec is None:
            return _infer(client, model, batch)
        return self.codec.decode(_infer(client, model, self.codec.encode(batch)))

    def counters(self, prefix: str) -> dict[str, float]:
        """Return the metrics whose names begin with `prefix`, as sums over their labels."""
        from prometheus_client.parser import text_string_to_metric_families

        totals: dict[str, float] = {}
        try:
            text = self.metrics()
        except (OSError, HTTPException):  # it has ended, or has no metrics
            return totals
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name.startswith(prefix) else ():
                name = sample.name.removesuffix("_total")
                totals[name] = totals.get(name, 0) + sample.value
        return totals

    def _call(self, action: Callable[[Any], T], protocol: Protocol = "http") -> T:
        timeouts = dict.fromkeys(("connection_timeout", "network_timeout"), TIMEOUT_SECONDS)
        client = (
            grpc.InferenceServerClient(self.inference_url)
            if protocol == "grpc"
            else http.InferenceServerClient(self.url, **timeouts)
        )
        try:
            with self._explained():
                return action(client)
        finally:
            with suppress(OSError):
                client.close()

    @contextmanager
    def _explained(self, request: str = "") -> Iterator[None]:
        """Turn the client's errors into `ServerError`; `request` identifies the request."""
        try:
            yield
        except InferenceServerException as error:
            if error.status() in NO_RESPONSE:
                raise self._no_response(error) from error
            reason = plain(error.message())
            raise ServerError(f"Triton rejected the request{request}: {reason}") from error
        except (OSError, HTTPParseError) as error:  # the second during a response
            raise self._no_response(error) from error

    def _no_response(self, error: Exception) -> ServerError:
        state = f"has ended: {self.exit_report()}" if self.end() else f"is running: {error}"
        where = f"Triton at {self.grpc_address or self.address}, which {state}"
        return ServerError(f"no response from {where}")


def _infer(client: Any, model: str, inputs: Arrays) -> Arrays:
    is_grpc = isinstance(client, grpc.InferenceServerClient)
    tensor_class = grpc.InferInput if is_grpc else http.InferInput
    tensors = []
    for name, array in inputs.items():
        tensor = tensor_class(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array))
    if is_grpc:
        result = client.infer(model, tensors, client_timeout=TIMEOUT_SECONDS)
        return {out.name: result.as_numpy(out.name) for out in result.get_response().outputs}
    try:
        result = client.infer(model, tensors)
    except (HTTPConnectionClosed, ConnectionError):  # it was idle, and closed before a response
        result = client.infer(model, tensors)
    return {
        output["name"]: result.as_numpy(output["name"])
        for output in result.get_response()["outputs"]
    }


@contextmanager
def reserved_ports(*requested: int) -> Iterator[list[int]]:
    """Yield different ports of 127.0.0.1 without a listener: those `requested`, any one for a 0. No
    other process can draw them during the block, and a server can listen on them.
    Raises `ServerError` if one is in use, or if this machine has no 127.0.0.1.
    """
    with socket() as probe:
        if probe.connect_ex(("127.0.0.1", 1)) in (ENETUNREACH, EADDRNOTAVAIL):
            raise ServerError(
                "This machine cannot reach 127.0.0.1. Set up its loopback interface: "
                "ip address add 127.0.0.1/8 dev lo; ip link set lo up"
            )
    with ExitStack() as bound:
        yield [_bind(bound, port, True) if port else _bind_any(bound) for port in requested]


def _bind(bound: ExitStack, port: int, is_requested: bool) -> int:
    listener = bound.enter_context(socket())
    if is_requested:  # also just after a server's end; two that only bind it would both get it
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise ServerError(
            f"Port {port} of 127.0.0.1 is taken ({error.strerror}). Use another port, or none."
        ) from None
    # a server sets it too, and can listen next to this socket
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    return port


def _bind_any(bound: ExitStack) -> int:
    """Bind a port below those that the system assigns to clients' connections."""
    clients = int(CLIENT_PORTS.read_text().split()[0]) if CLIENT_PORTS.exists() else 32_768
    for _ in range(TRIES):
        with suppress(ServerError):
            return _bind(bound, randrange(min(PORTS_FROM, clients - 1), clients), False)
    raise ServerError(f"No port of 127.0.0.1 below {clients} is free. Stop what listens there.")
