"""Serving a deployed experiment with the kind of server that its target names, and how to serve it
elsewhere.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from helpers.config import DeployConfig, StageConfig, artefact_folder, results_folder
from helpers.inference import request
from helpers.models import Arrays
from helpers.store import Artefact, find_artefact
from helpers.triton import embedded
from helpers.triton.client import Server


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
    configured.

    The log is kept next to the stage's result, or in `log`. Raises `ServerError` with the server's
    last lines, or before anything is loaded if the model was built for another release.
    """
    converted = find_artefact(artefact_folder(config, "convert"))
    for artefact in (repository, *([converted] if converted else [])):
        if "release" in artefact.facts:
            from helpers.triton.docker import require_same_release

            require_same_release(artefact.facts, config)
    log = log or results_folder(config) / f"{config.stage}_server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = _kind(config)
    with start(repository.folder, log=log, scenario=scenario, http_port=http_port) as server:
        yield server


class Kind(Protocol):
    """What each kind of server implements: serve the models of `repository` during the block."""

    def __call__(
        self, repository: Path, *, log: Path, scenario: str, http_port: int | None
    ) -> AbstractContextManager[Server]: ...


def _kind(config: DeployConfig) -> Kind:
    """Choose the kind of server; a stage does not depend on the code of the others."""
    if config.server.kind == "docker":
        from helpers.triton import docker

        return partial(docker.serve, config=config)
    if config.server.kind == "remote":
        from helpers.triton import remote

        return partial(remote.serve, config=config)
    return embedded.serve


def asking(config: DeployConfig, server: Server) -> Callable[[Arrays], Arrays]:
    """Return a function that sends a batch of the data set to the served model and returns its
    outputs.
    """
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

client = http.InferenceServerClient("127.0.0.1:8000")
metadata = client.get_model_metadata("{model}")
inputs = []
for entry in metadata["inputs"]:
    array = np.zeros([1, *entry["shape"][1:]], {dtypes}[entry["datatype"]])  # your sample here
    inputs.append(http.InferInput(entry["name"], list(array.shape), entry["datatype"]))
    inputs[-1].set_data_from_numpy(array)
print(client.infer("{model}", inputs).as_numpy(metadata["outputs"][0]["name"]).shape)
"""


def client_example(config: StageConfig) -> str:
    """Write a client of ten lines for the served model: it asks the server for names, shapes and
    types.
    """
    dtypes = '{"FP16": "float16", "FP32": "float32", "INT32": "int32", "INT64": "int64"}'
    return CLIENT.format(model=config.model, dtypes=dtypes)
