"""How a served model is composed: of one graph, or of a lookup and the graph after it.

Every piece has a session of its own; a chain of them is a session again, and does in one process
what Triton's ensemble scheduler does among several.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import formats, models
from helpers.config import ExportConfig, StageConfig
from helpers.formats import Arrays, Session
from helpers.models import Part
from helpers.store import Artefact, link_or_copy


@dataclass(frozen=True)
class Piece:
    """One served part: the file of an artefact that it loads, how, and with which modules."""

    part: Part
    file: str
    load: Callable[[Path, int, str], Session]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """Sessions of parts, each of which takes what those before it gave."""

    steps: Sequence[tuple[Part, Session]]

    def run(self, inputs: Arrays) -> Arrays:
        """Map the whole's inputs to the last part's outputs, by the whole's names."""
        known = self.known(inputs)
        return {name: known[name] for name in self.steps[-1][0].outputs}

    def known(self, inputs: Arrays) -> Arrays:
        """Give every tensor that the whole has a name for."""
        known = dict(inputs)
        for part, session in self.steps:
            found = session.run({own.name: known[name] for name, own in part.inputs.items()})
            known |= {name: found[own.name] for name, own in part.outputs.items()}
        return known


def parts(config: ExportConfig) -> tuple[Part, ...]:
    """List the parts in the order of their work: the last is the graph that a format holds."""
    model, ensemble = models.get(config.model), models.ensemble(config.model)
    if ensemble:
        return ensemble.sparse(config), ensemble.dense(config)
    inputs = {tensor.name: tensor for tensor in model.inputs(config)}
    outputs = {tensor.name: tensor for tensor in model.outputs(config)}
    return (Part(config.model, inputs, outputs),)


def pieces(config: ExportConfig, format_name: str) -> tuple[Piece, ...]:
    """List the pieces of an artefact whose graph is in the format `format_name`."""
    fmt, (*lookups, graph) = formats.get(format_name), parts(config)
    found = [Piece(graph, fmt.FILE, fmt.load, fmt.RUNTIME)]
    if ensemble := models.ensemble(config.model):
        before = (Piece(p, ensemble.FOLDER, ensemble.load, ensemble.RUNTIME) for p in lookups)
        found = [*before, *found]
    return tuple(found)


def load(
    config: ExportConfig,
    format_name: str,
    place: Callable[[Piece], Path],
    threads: int,
    device: str,
) -> Session:
    """Load an artefact's pieces in this process, each from the folder that `place` gives."""
    steps = [
        (piece.part, piece.load(place(piece) / piece.file, threads, device))
        for piece in pieces(config, format_name)
    ]
    return Chain(steps) if len(steps) > 1 else steps[0][1]


def only_elsewhere(config: StageConfig, format_name: str) -> bool:
    """Whether a file of the format can be run by the server's own backend alone, not by this
    process: for want of its runtime, or as another TensorRT made it.
    """
    if config.server.kind == "embedded":
        return False
    return bool(formats.built_for(format_name) or formats.missing(format_name, config.device))


def before_graph(config: ExportConfig, folder: Path) -> Chain:
    """Load what comes before the graph from `folder`; a chain of nothing for most models."""
    ensemble, (*lookups, _) = models.ensemble(config.model), parts(config)
    if ensemble is None:
        return Chain(())
    return Chain([(part, ensemble.load(folder / ensemble.FOLDER, 1, "cpu")) for part in lookups])


def graph_inputs(config: ExportConfig, folder: Path, batch: Arrays) -> Arrays:
    """Turn a request into what the graph takes; `folder` holds what comes before it."""
    known = before_graph(config, folder).known(batch)
    return {own.name: known[name] for name, own in parts(config)[-1].inputs.items()}


def write_before_graph(config: ExportConfig, source: Path | Artefact, folder: Path) -> None:
    """Put what comes before the graph into `folder`: from a checkpoint, or out of an artefact."""
    ensemble: Any = models.ensemble(config.model)
    if ensemble is None:
        return
    if isinstance(source, Path):
        ensemble.write(config, source, folder / ensemble.FOLDER)
        return
    for name in source.files:
        if Path(name).parts[0] == ensemble.FOLDER:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source.folder / name, folder / name)
