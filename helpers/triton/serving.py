"""Serve an experiment with the kind of server that its target names, or on another machine."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from helpers.config import DeployConfig, artifact_folder, results_folder
from helpers.errors import ServerError
from helpers.inference import ensemble, request
from helpers.models import Arrays
from helpers.store import Artifact, find_artifact, temporary_folder
from helpers.triton import embedded
from helpers.triton.server import EXACT, Server

COUNTED_SECONDS = 0.1  # Triton counts a request shortly after its response


@contextmanager
def serve(
    config: DeployConfig,
    repository: Artifact,
    scenario: str = EXACT,
    *,
    log: Path | None = None,
    http_port: int | None = None,
) -> Iterator[Server]:
    """Serve `repository` during the block, with the configuration of `scenario`, at `http_port` of
    127.0.0.1 or a free port. "exact" is as "online", but a store waits for all vectors.

    The embedded server has a no-op model too when it serves offline: see `noop`.

    The log is next to the stage's result, or in `log`. Raises `ServerError` with the server's last
    lines if it does not become ready. If the model was built for another release, it raises
    `ServerError` before it loads any model.
    """
    _require_same_release(config, repository)
    log = log or results_folder(config) / f"{config.stage}_server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start: Callable[..., AbstractContextManager[Server]]
    codec = ensemble.codec_of(config, repository.folder)
    is_grpc, is_store = config.protocol == "grpc", codec is not None  # with databases
    start = partial(embedded.serve, is_grpc=is_grpc, graceful_shutdown=is_store)
    with ExitStack() as stack:
        stack.enter_context(ensemble.databases(config, repository.folder))
        name = ""
        if config.server.kind != "embedded":  # a stage does not depend on the code of other kinds
            kind = import_module(f"helpers.triton.{config.server.kind}")
            start = partial(kind.serve, config=config)
        elif scenario == "offline" and ensemble.runs_in_process(config):
            from helpers.triton import noop  # nor other stages on this

            beside = stack.enter_context(temporary_folder())
            graph = ensemble.parts(config)[-1]
            name = noop.write(beside, repository.folder, config.model, graph, config.device)
            start = partial(start, beside=beside)
        server = stack.enter_context(
            start(repository.folder, log=log, scenario=scenario, port=http_port or 0)
        )
        yield replace(server, codec=codec, identity=name)


def _require_same_release(config: DeployConfig, repository: Artifact) -> None:
    """Raise `ServerError` for another release's model: only its TensorRT loads such an engine."""
    serving = config.server.release
    for artifact in (repository, find_artifact(artifact_folder(config, "convert"))):
        built = artifact.facts.get("release", serving) if artifact else serving
        if built != serving:
            raise ServerError(
                f"{config.model} {config.experiment} was built for release {built}, but the server "
                f"is {serving}. Convert it again, or set server.release to {built}."
            )


@contextmanager
def count_requests(config: DeployConfig, server: Server) -> Iterator[list[dict[str, object]]]:
    """Yield a list that gets a row per model at the end of the block: Triton's counts of requests,
    samples and executions (`/v2/models/NAME/stats`), and samples / executions.
    """

    def counts(name: str) -> dict[str, int]:
        stats = server.statistics(name)
        return {
            "requests": stats["inference_stats"]["success"]["count"],
            "samples": stats["inference_count"],
            "executions": stats["execution_count"],
        }

    names = [component.part.name for component in ensemble.served(config)]
    before = {name: counts(name) for name in names}
    rows: list[dict[str, object]] = []
    yield rows
    time.sleep(COUNTED_SECONDS)
    for name, first in before.items():
        new = {key: count - first[key] for key, count in counts(name).items()}
        average = new["samples"] / (new["executions"] or 1)
        rows.append({"model": name, **new, "average_batch_size": average})


def predictor(config: DeployConfig, server: Server) -> Callable[[Arrays], Arrays]:
    """Return a function that sends a batch of the data set to the model and returns its outputs."""
    return lambda batch: server.infer(config.model, request(config, batch))


def docker_command(config: DeployConfig) -> str:
    """Return the command that serves a copy of the repository on another machine, with Triton's own
    image. The server is reachable on that machine only, and no client can load other models.
    """
    gpus = "--gpus all " if config.device == "gpu" else ""
    grpc = "-p 127.0.0.1:8001:8001 " if config.protocol == "grpc" else ""
    return (
        "# in the folder that holds the copied repository\n"
        f'docker run --rm {gpus}--shm-size=1g -p 127.0.0.1:8000:8000 {grpc}-v "$PWD":/models:ro '
        f"nvcr.io/nvidia/tritonserver:{config.server.release}-py3 \\\n"
        "  sh -c 'pip install -r /models/requirements.txt && tritonserver "
        "--model-repository=/models --model-control-mode=none'"
    )
