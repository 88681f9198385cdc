"""The components of a served model: one graph, or a lookup and the graph after it. This module also
runs them in this process, by their runtimes or by the framework, and sets their threads.

Each component has its own session. A chain of them is a session too, and does in one process what
Triton's ensemble scheduler does between models.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getfile
from pathlib import Path

import numpy as np

from helpers import formats, models
from helpers.config import DeployConfig, ExportConfig, StageConfig
from helpers.formats import Arrays, Session
from helpers.inference import chain
from helpers.inference.chain import Chain, Step
from helpers.models import Ensemble, Graph, Network, Part, RequestCodec, Tensor
from helpers.store import Artifact, link_or_copy, outputs
from helpers.store import physical_cores as physical_cores

_folders: list[str] = []  # the databases of each server that this process runs


@dataclass(frozen=True)
class Component:
    """One served part: the artifact's file that it loads, its loader and the modules it needs."""

    part: Part
    file: str
    code: Path  # of `load`
    load: Callable[[Path, int, str], Session]
    modules: tuple[str, ...]
    is_store: bool = False  # whether it holds what all instances share, in one process


def step(part: Part, session: Session | None = None) -> Step:
    """Return a part's session as a step of a chain."""
    inputs = {name: tensor.name for name, tensor in part.inputs.items()}
    outputs = {name: tensor.name for name, tensor in part.outputs.items()}
    return Step(session, inputs, outputs, bool(part.flat))


@dataclass(frozen=True)
class EncodedSession:
    """A session that takes samples, and computes on their encoded form."""

    session: Session
    codec: RequestCodec

    def run(self, inputs: Arrays) -> Arrays:
        return self.codec.decode(self.session.run(self.codec.encode(inputs)))


def composition(config: ExportConfig) -> Ensemble | None:
    """Return how the experiment's model is composed, if it is more than one graph."""
    return models.ensemble(config.model, config.lookup)


def codec_in(config: ExportConfig, folder: Path) -> RequestCodec | None:
    """Return how samples travel to the lookup whose files `folder` has; None if unchanged."""
    ensemble = composition(config)
    return ensemble.codec_in(folder / ensemble.FOLDER) if ensemble else None


def databases_folder(config: ExportConfig, repository: Path) -> Path:
    """Return the folder in which the store of a repository keeps its databases."""
    return outputs() / config.target / "databases" / repository.name


@contextmanager
def databases(config: ExportConfig, repository: Path) -> Iterator[None]:
    """Keep the databases of stores that start in the block in the folder of their repository.

    A folder that the user has set has precedence. Databases of a hidden repository, which is a
    temporary one, are removed at the end.
    """
    if config.lookup != "hps":
        yield
        return
    from helpers.hps import store

    folder = databases_folder(config, repository)
    is_ours = bool(_folders or not os.environ.get(store.FOLDER))
    if is_ours:
        _folders.append(str(folder))
        os.environ[store.FOLDER] = str(folder)
    try:
        yield
    finally:
        if is_ours:
            _folders.remove(str(folder))
            del os.environ[store.FOLDER]
            if _folders:
                os.environ[store.FOLDER] = _folders[-1]
        if folder.name.startswith("."):
            shutil.rmtree(folder, ignore_errors=True)


def codec_of(config: DeployConfig, repository: Path) -> RequestCodec | None:
    """Return how samples travel to the model that a repository holds."""
    return codec_in(config, repository / served(config)[0].part.name / "1")


def parts(config: ExportConfig) -> tuple[Part, ...]:
    """List the parts in the order in which they run; the last is the graph that is exported."""
    if ensemble := composition(config):
        return ensemble.parts(config)
    model = models.get(config.model)
    inputs = {tensor.name: tensor for tensor in model.inputs(config)}
    outputs = {tensor.name: tensor for tensor in model.outputs(config)}
    return (Part(config.model, inputs, outputs),)


def components(config: ExportConfig, format_name: str) -> tuple[Component, ...]:
    """List the components of an artifact whose graph has the format `format_name`."""
    fmt, (*lookups, graph) = formats.get(format_name), parts(config)
    component = Component(graph, fmt.FILE, Path(getfile(fmt.load)), fmt.load, fmt.RUNTIME)
    if ensemble := composition(config):
        fields = ensemble.FOLDER, ensemble.CODE, ensemble.load, ensemble.RUNTIME
        return Component(lookups[0], *fields, is_store=ensemble.CODE.is_dir()), component
    return (component,)


def whole(config: ExportConfig) -> Part:
    """Describe all parts as one model, as a client sees them."""
    members = parts(config)
    produced = {name for part in members for name in part.outputs}

    def view(part: Part, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: Tensor(name, spec.dtype, (-1,) if part.flat else spec.shape)
            for name, spec in tensors.items()
        }

    inputs = {name: spec for part in members for name, spec in view(part, part.inputs).items()}
    external = {name: spec for name, spec in inputs.items() if name not in produced}
    return Part(config.model, external, view(members[-1], members[-1].outputs))


def served(config: DeployConfig) -> tuple[Component, ...]:
    """List the models that Triton runs: one per component, or one for the chain of them."""
    members = components(config, config.format)
    if len(members) == 1 or config.composition == "ensemble":
        return members
    modules = tuple(module for component in members for module in component.modules)
    is_store = any(component.is_store for component in members)
    path = Path(chain.__file__)
    return (Component(whole(config), chain.FILE, path, chain.load, modules, is_store),)


def place(config: DeployConfig, repository: Path, component: Component) -> Path:
    """Return where a repository has the files of a component."""
    members = served(config)
    name = component.part.name if len(members) > 1 else members[0].part.name
    return repository / name / "1"


def load(
    config: ExportConfig, name: str, folder: Callable[[Component], Path], threads: int, device: str
) -> Session:
    """Load an artifact of the format `name` in this process; `folder` returns a part's folder."""
    members = components(config, name)
    sessions = [member.load(folder(member) / member.file, threads, device) for member in members]
    if len(sessions) == 1:
        return sessions[0]
    pairs = zip(members, sessions, strict=True)
    joined = Chain([step(member.part, session) for member, session in pairs])
    codec = codec_in(config, folder(members[0]))
    return EncodedSession(joined, codec) if codec else joined


def needs_native_backend(config: StageConfig, format_name: str) -> bool:
    """Return whether only the server can run the format, as this process lacks its runtime."""
    if not config.server.is_native:
        return False
    return bool(formats.built_for(format_name) or formats.missing(format_name, config.device))


def runs_in_process(config: DeployConfig) -> bool:
    """Return whether this process can run the deployed file with the runtime that serves it.

    If not, the relative throughput would compare two runtimes: a native backend has its own version
    and thread settings, and perhaps an accelerator.
    """
    return not (config.server.is_native or models.get(config.model).BACKEND)


def graph_inputs(config: ExportConfig, folder: Path, batch: Arrays) -> Arrays:
    """Turn a request into the inputs of the graph; `folder` contains the parts before it."""
    *lookups, graph = parts(config)
    if ensemble := composition(config):
        codec, lookup = codec_in(config, folder), ensemble.load(folder / ensemble.FOLDER, 1, "cpu")
        batch = Chain([step(lookups[0], lookup)]).run_all(codec.encode(batch) if codec else batch)
    chosen = {tensor.name: batch[name] for name, tensor in graph.inputs.items()}
    return {name: array.reshape(-1) for name, array in chosen.items()} if graph.flat else chosen


def example_inputs(config: ExportConfig, samples: int) -> Arrays:
    """Return zeros of the shapes that a batch has as the graph's inputs."""
    graph, zeros = parts(config)[-1], Arrays()
    for spec in graph.inputs.values():
        shape = (samples * graph.flat[spec.name],) if graph.flat else (samples, *spec.shape)
        zeros[spec.name] = np.zeros(shape, spec.dtype)
    return zeros


def write_preprocessing(config: ExportConfig, source: Path | Artifact, folder: Path) -> None:
    """Write the parts before the graph into `folder`, from a checkpoint or an artifact."""
    ensemble = composition(config)
    if ensemble and isinstance(source, Path):
        ensemble.write(config, source, folder / ensemble.FOLDER)
    elif ensemble and isinstance(source, Artifact):
        names = [name for name in source.files if Path(name).parts[0] == ensemble.FOLDER]
        link_files(source, folder, names)


def link_files(source: Artifact, folder: Path, names: Iterable[str]) -> None:
    """Link the files `names` of an artifact into `folder`, without copies if possible."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source.folder / name, folder / name)


@dataclass(frozen=True)
class FrameworkSession:
    """A network in evaluation mode on the CPU, in fp32; or a graph, with its own runtime."""

    network: Network
    framework: str
    graph: Part

    def run(self, inputs: Arrays) -> Arrays:
        if isinstance(self.network, Graph):
            return self.network.session.run(inputs)
        if self.framework == "torch":
            import torch

            arrays = (torch.from_numpy(inputs[spec.name]) for spec in self.graph.inputs.values())
            with torch.inference_mode():
                results = self.network(*(a.float() if a.is_floating_point() else a for a in arrays))
        else:
            results = self.network(inputs, training=False)
        tensors = results if isinstance(results, (list, tuple)) else (results,)
        names = (spec.name for spec in self.graph.outputs.values())
        return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


def framework_session(config: ExportConfig, checkpoint: Path) -> Session:
    """Load a checkpoint in its framework. A lookup reads the checkpoint's own files in the simplest
    way, independently of the served lookup.
    """
    config = config.model_copy(update={"lookup": next(iter(models.lookups(config.model)), "")})
    model, (*lookups, graph) = models.get(config.model), parts(config)
    session = model.source(config, checkpoint)
    if session is None:
        network = model.build(config, checkpoint)
        if model.FRAMEWORK == "torch":
            import torch

            # another order of the weights in memory: convolutions take a fifth less time
            network.to(memory_format=torch.channels_last)
        session = FrameworkSession(network, model.FRAMEWORK, graph)
    if reference := model.reference:
        mapped = reference.mapped(config, checkpoint)
        return Chain([step(lookups[0], mapped), step(graph, session)])
    return session


def threads(config: DeployConfig, scenario: str) -> int:
    """Return the threads of an instance in a scenario: as configured, or its share of the cores."""
    count = config.instances.offline if scenario == "offline" else config.instances.online
    return config.threads or max(1, physical_cores() // count)
