"""The components of a served model: one graph, or a lookup and the graph after it.

Each component has its own session. A chain of them is a session too, and does in one process what
Triton's ensemble scheduler does between models.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import formats, models
from helpers.config import DeployConfig, ExportConfig, StageConfig
from helpers.formats import Arrays, Session
from helpers.models import Part
from helpers.store import Artefact, link_or_copy


@dataclass(frozen=True)
class Component:
    """One served part: which file of an artefact it loads, how, and with which modules."""

    part: Part
    file: str
    load: Callable[[Path, int, str], Session]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """Sessions of parts, each of which takes outputs of earlier ones."""

    steps: Sequence[tuple[Part, Session]]

    def run(self, inputs: Arrays) -> Arrays:
        """Compute the last part's outputs, under the names that the whole has for them."""
        tensors = self.run_all(inputs)
        return {name: tensors[name] for name in self.steps[-1][0].outputs}

    def run_all(self, inputs: Arrays) -> Arrays:
        """Give every tensor that the whole has a name for: inputs, intermediate ones, outputs."""
        tensors = dict(inputs)
        for part, session in self.steps:
            results = session.run({own.name: tensors[name] for name, own in part.inputs.items()})
            tensors |= {name: results[own.name] for name, own in part.outputs.items()}
        return tensors


def parts(config: ExportConfig) -> tuple[Part, ...]:
    """List the parts in the order in which they run; the last is the graph that is exported."""
    model, ensemble = models.get(config.model), models.ensemble(config.model)
    if ensemble:
        return ensemble.parts(config)
    inputs = {tensor.name: tensor for tensor in model.inputs(config)}
    outputs = {tensor.name: tensor for tensor in model.outputs(config)}
    return (Part(config.model, inputs, outputs),)


def components(config: ExportConfig, format_name: str) -> tuple[Component, ...]:
    """List the components of an artefact whose graph has the format `format_name`."""
    fmt, (*lookups, graph) = formats.get(format_name), parts(config)
    found = [Component(graph, fmt.FILE, fmt.load, fmt.RUNTIME)]
    if ensemble := models.ensemble(config.model):
        found[:0] = [
            Component(part, ensemble.FOLDER, ensemble.load, ensemble.RUNTIME) for part in lookups
        ]
    return tuple(found)


def load(
    config: ExportConfig,
    format_name: str,
    folder_of: Callable[[Component], Path],
    threads: int,
    device: str,
) -> Session:
    """Load an artefact's components in this process, each from the folder `folder_of` gives."""
    steps = [
        (each.part, each.load(folder_of(each) / each.file, threads, device))
        for each in components(config, format_name)
    ]
    return Chain(steps) if len(steps) > 1 else steps[0][1]


def requires_native_backend(config: StageConfig, format_name: str) -> bool:
    """Whether only the server's own backend can run a file of the format: because this process
    lacks the runtime, or because the file is made for the server's version of it.
    """
    if config.server.kind == "embedded":
        return False
    return bool(formats.built_for(format_name) or formats.missing(format_name, config.device))


def has_bare_runtime(config: DeployConfig) -> bool:
    """Whether this process can run the deployed file with the runtime that serves it. If not, the
    ratio of served to bare throughput would compare two runtimes: an accelerator of Triton's
    backend runs the graph by TensorRT, OpenVINO or in mixed precision, and a session here does not.
    """
    return config.accelerator == "none" and not requires_native_backend(config, config.format)


def preprocessing(config: ExportConfig, folder: Path) -> Chain:
    """Load the parts before the graph from `folder`; for most models there is none."""
    ensemble, (*lookups, _) = models.ensemble(config.model), parts(config)
    if ensemble is None:
        return Chain(())
    return Chain([(part, ensemble.load(folder / ensemble.FOLDER, 1, "cpu")) for part in lookups])


def graph_inputs(config: ExportConfig, folder: Path, batch: Arrays) -> Arrays:
    """Turn a request into the inputs of the graph; `folder` contains the parts before it."""
    tensors = preprocessing(config, folder).run_all(batch)
    return {own.name: tensors[name] for name, own in parts(config)[-1].inputs.items()}


def write_preprocessing(config: ExportConfig, source: Path | Artefact, folder: Path) -> None:
    """Write the parts before the graph into `folder`, from a checkpoint or an artefact."""
    ensemble = models.ensemble(config.model)
    if ensemble is None:
        return
    if isinstance(source, Path):
        ensemble.write(config, source, folder / ensemble.FOLDER)
    else:
        names = [name for name in source.files if Path(name).parts[0] == ensemble.FOLDER]
        link_files(source, folder, names)


def link_files(source: Artefact, folder: Path, names: Iterable[str]) -> None:
    """Put files of an artefact into `folder`, without copies if possible."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source.folder / name, folder / name)
