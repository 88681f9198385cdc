"""Serving an experiment with the kind of server that its target names, and how to elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

from helpers.config import DeployConfig, StageConfig, artefact_folder, results_folder
from helpers.errors import ServerError
from helpers.inference import request
from helpers.models import Arrays
from helpers.store import Artefact, find_artefact
from helpers.triton import embedded
from helpers.triton.server import Server


@contextmanager
def serve(
    config: DeployConfig,
    repository: Artefact,
    scenario: str = "online",
    *,
    log: Path | None = None,
    http_port: int | None = None,
) -> Iterator[Server]:
    """Serve `repository` for as long as the block lasts, as `scenario` ("offline" or "online") is
    configured, at `http_port` of 127.0.0.1 or a free one.

    The log is kept next to the stage's result, or in `log`. Raises `ServerError` with the server's
    last lines if it does not become ready, or before anything is loaded if the model was built for
    another release.
    """
    _require_same_release(config, repository)
    log = log or results_folder(config) / f"{config.stage}_server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start: Callable[..., AbstractContextManager[Server]] = embedded.serve
    if config.server.kind != "embedded":  # a stage does not depend on the code of other kinds
        kind = import_module(f"helpers.triton.{config.server.kind}")
        start = partial(kind.serve, config=config)
    with start(repository.folder, log=log, scenario=scenario, port=http_port or 0) as server:
        yield server


def _require_same_release(config: DeployConfig, repository: Artefact) -> None:
    """Raise `ServerError` for another release's model: only its TensorRT loads such an engine."""
    serving = config.server.release
    for artefact in (repository, find_artefact(artefact_folder(config, "convert"))):
        built = artefact.facts.get("release", serving) if artefact else serving
        if built != serving:
            raise ServerError(
                f"{config.model} {config.experiment} was built in release {built}, which the "
                f"server's {serving} cannot load: convert it again, or set server.release to "
                f"{built}"
            )


def asking(config: DeployConfig, server: Server) -> Callable[[Arrays], Arrays]:
    """Return a function that sends a batch of the data set to the model and returns its outputs."""
    return lambda batch: server.infer(config.model, request(config, batch))


def serve_elsewhere(config: StageConfig) -> str:
    """Return the command that serves a copy of the repository on another machine, with Triton's own
    image. It answers on that machine only, and nobody can load other models into it.
    """
    return (
        "# in the folder that holds the copied repository\n"
        'docker run --rm --shm-size=1g -p 127.0.0.1:8000:8000 -v "$PWD":/models:ro '
        f"nvcr.io/nvidia/tritonserver:{config.server.release}-py3 \\\n"
        "  sh -c 'pip install -r /models/requirements.txt && tritonserver "
        "--model-repository=/models --model-control-mode=none'"
    )


CLIENT = """\
import numpy as np
import tritonclient.http as http
from tritonclient.utils import triton_to_np_dtype

client = http.InferenceServerClient("127.0.0.1:8000")
metadata = client.get_model_metadata("{model}")
inputs = []
for entry in metadata["inputs"]:
    dtype = triton_to_np_dtype(entry["datatype"])
    array = np.zeros([1, *entry["shape"][1:]], dtype)  # your sample here
    inputs.append(http.InferInput(entry["name"], list(array.shape), entry["datatype"]))
    inputs[-1].set_data_from_numpy(array)
print(client.infer("{model}", inputs).as_numpy(metadata["outputs"][0]["name"]).shape)
"""


def client_example(config: StageConfig) -> str:
    """Write a short client of the served model: it asks the server for names, shapes and types."""
    return CLIENT.format(model=config.model)
