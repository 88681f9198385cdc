"""Talking to a running Triton over HTTP, wherever it runs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.request import ProxyHandler, build_opener

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers.errors import ServerError
from helpers.models import Arrays
from helpers.triton.log import last_lines

TIMEOUT_SECONDS = 600.0
OPENER = build_opener(ProxyHandler({}))  # a server is never asked through the user's proxy

T = TypeVar("T")


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
    """A running server.

    `url` and `metrics_url` are host:port. `end` describes how the server ended, and is empty while
    it runs. `is_local` says whether it can share memory with this host. `processes` are those of
    this host from which all of its own descend, where they are known.
    """

    url: str
    metrics_url: str
    log: Path
    end: Callable[[], str] = field(repr=False, default=lambda: "")
    is_local: bool = True
    processes: tuple[int, ...] = ()

    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return not self.end()

    def last_words(self) -> str:
        """Describe how the server ended, if it did, and what the end of its log says."""
        return ": ".join(filter(None, (self.end(), last_lines(self.log))))

    def is_live(self) -> bool:
        """Whether the server answers."""
        return self._health("live", seconds=10)

    def is_all_ready(self) -> bool:
        """Whether the server and every model that it was started with answer requests."""
        return self._health("ready", seconds=5)

    def _health(self, state: str, seconds: float) -> bool:
        try:
            with OPENER.open(f"http://{self.url}/v2/health/{state}", timeout=seconds) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException):  # nobody listens, or it ends in mid-answer
            return False

    def load(self, model: str) -> None:
        """Load `model` from the server's repository, under explicit model control."""
        self._call(lambda client: client.load_model(model))

    def unload(self, model: str) -> None:
        """Unload `model`."""
        self._call(lambda client: client.unload_model(model))

    def is_ready(self, model: str) -> bool:
        """Whether `model` answers requests."""
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

    def infer(self, model: str, inputs: Arrays) -> Arrays:
        """Send one request with a leading batch dimension and return all outputs by name."""
        return self._call(lambda client: _infer(client, model, inputs))

    def infer_all(self, model: str, batches: Iterable[Arrays]) -> Arrays:
        """Send batch after batch over one connection; return the outputs of all samples, in
        order.
        """
        answers = self._call(lambda client: [_infer(client, model, batch) for batch in batches])
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}

    def _call(self, action: Callable[[Any], T]) -> T:
        client = http.InferenceServerClient(
            self.url, connection_timeout=TIMEOUT_SECONDS, network_timeout=TIMEOUT_SECONDS
        )
        try:
            return action(client)
        except InferenceServerException as error:
            raise ServerError(f"Triton refused the request: {error.message()}") from error
        except OSError as error:
            state = f"has ended: {self.last_words()}" if self.end() else f"is running: {error}"
            raise ServerError(f"no answer from Triton at {self.url}, which {state}") from error
        finally:
            with suppress(OSError):
                client.close()


def _infer(client: Any, model: str, inputs: Arrays) -> Arrays:
    tensors = []
    for name, array in inputs.items():
        tensor = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=True)
        tensors.append(tensor)
    result = client.infer(model, tensors)
    return {
        entry["name"]: result.as_numpy(entry["name"]) for entry in result.get_response()["outputs"]
    }
