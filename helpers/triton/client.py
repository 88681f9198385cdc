"""Talking to a running Triton over HTTP, wherever it runs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from helpers.errors import ServerError
from helpers.models import Arrays

TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Server:
    """A running server: its addresses (host:port), its log, whether it lives, whether it can share
    memory with this host, and the processes of this host that all of its own descend from, where
    they are known.
    """

    url: str
    metrics_url: str
    log: Path
    is_alive: Callable[[], bool] = field(repr=False, default=lambda: True)
    is_local: bool = True
    processes: tuple[int, ...] = ()

    def is_live(self) -> bool:
        """Whether the server answers."""
        try:
            with urlopen(f"http://{self.url}/v2/health/live", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def load(self, model: str) -> None:
        """Load `model` from the server's repository."""
        self._call(lambda client: client.load_model(model))

    def unload(self, model: str) -> None:
        """Unload `model`."""
        self._call(lambda client: client.unload_model(model))

    def is_ready(self, model: str) -> bool:
        """Whether `model` answers requests."""
        return bool(self._call(lambda client: client.is_model_ready(model)))

    def statistics(self, model: str) -> dict[str, Any]:
        """Triton's cumulative counts and nanoseconds of `model` since it was loaded."""
        answer = self._call(lambda client: client.get_inference_statistics(model))
        return dict(answer["model_stats"][0])

    def metadata(self) -> dict[str, Any]:
        """The server's name, version and extensions."""
        return dict(self._call(lambda client: client.get_server_metadata()))

    def metrics(self) -> str:
        """The server's metrics in Prometheus' text format."""
        with urlopen(f"http://{self.metrics_url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def infer(self, model: str, inputs: Arrays) -> Arrays:
        """Send one request with a leading batch dimension and return all outputs by name."""
        answer: Arrays = self._call(lambda client: _infer(client, model, inputs))
        return answer

    def infer_all(self, model: str, batches: Iterable[Arrays]) -> Arrays:
        """Send batch after batch over one connection; return the outputs of all samples, in
        order.
        """
        answers = self._call(lambda client: [_infer(client, model, batch) for batch in batches])
        return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}

    def _call(self, action: Callable[[Any], Any]) -> Any:
        client = http.InferenceServerClient(
            self.url, connection_timeout=TIMEOUT_SECONDS, network_timeout=TIMEOUT_SECONDS
        )
        try:
            return action(client)
        except InferenceServerException as error:
            raise ServerError(f"Triton refused the request: {error.message()}") from error
        except OSError as error:
            state = "is running" if self.is_alive() else "has ended"
            raise ServerError(
                f"no answer from Triton at {self.url}, which {state}: {error}"
            ) from error
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
