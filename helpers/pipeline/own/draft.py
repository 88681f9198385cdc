"""What a source is found to be once it has run: its dimensions, its batch, what it answers, and how
far rounding may carry its outputs.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from helpers.errors import CheckpointError, DeploymentError, ParameterError
from helpers.models import Arrays, Config, Graph, Network
from helpers.models._arrays import spread, take
from helpers.models._own import Description, Own, TensorSpec, graph
from helpers.models._own import data as samples_file
from helpers.pipeline.own import rounding
from helpers.pipeline.own.inputs import known_inputs, with_tables
from helpers.pipeline.own.origin import ModelSource, check_name

PARTS = (1, 2, 4, 8, 16, 32)  # of an input's dimension that an output's may be
CLASS_WORDS = re.compile(r"logit|prob|score|class|label|softmax", re.IGNORECASE)
CLASS_SUM = 1e-3  # how near to 1 the shares of all classes add up
BYTES, MOST = 2e6, 16  # of the samples of which it is seen what rounding does, and these at most
SAME = 0.05  # how far a sample's output may be from the same, computed beside another
TRIED = 6  # samples of a trace and of what it is compared on
TWO = 2  # samples that show whether there is a batch
ADVICE = " (random inputs; use --samples if the model accepts only some values)"


@dataclass(frozen=True)
class InspectedModel:
    """What will be written of a model."""

    origin: ModelSource
    description: Description
    dimensions: dict[str, int]
    terms: tuple[int, int] = (1, 1)  # of all sums over weights, and how many sums these are
    # precision -> the largest and the mean effect of rounding, and what tells samples apart
    effects: dict[str, rounding.RoundingError] = field(default_factory=dict)
    apart: float = 1.0
    samples: Arrays = field(repr=False, default_factory=dict)  # a few that it computes
    network: Network = field(repr=False, default=None)

    def described(self, **changes: object) -> "InspectedModel":
        """Return it with other fields of its description."""
        return replace(self, description=self.description.model_copy(update=changes))


def draft(
    title: str,
    origin: ModelSource,
    samples: Path | None,
    batch: str,
    wanted: Mapping[str, int],
    precisions: Collection[str],
) -> InspectedModel:
    """Find out what a source does not say, by its samples and by running it.

    `batch` is what the user says of it: "" (it is free), "1" (it is fixed) or "none"; `precisions`
    are those of which the effect is to be seen. Raises ParameterError for what cannot be known,
    which names what to give, and DataError for samples that do not fit.
    """
    known = known_inputs(origin, samples, batch, wanted)
    scalars = tuple(each.name for each in known.axes if not each.shape)
    axes = tuple(each if each.shape else replace(each, shape=(1,)) for each in known.axes)
    description = Description(
        source=origin.kind,
        framework=origin.framework,
        function=origin.function,
        backend=origin.backend,
        inputs=with_tables(origin, axes),
        outputs=(),
        has_batch=known.has_batch,
        is_batched=known.is_batched,
        scalars=scalars,
    )
    found = InspectedModel(origin, description, known.dimensions)
    if origin.backend:
        return _unseen(title, found, samples)
    return _run(title, found, samples, precisions)


def fields(found: InspectedModel) -> Config:
    """Return what a model reads of an experiment."""
    return cast(Config, SimpleNamespace(dimensions=found.dimensions, labels="", dataset=""))


def _run(
    title: str, found: InspectedModel, samples: Path | None, precisions: Collection[str]
) -> InspectedModel:
    """Run the model on one sample and on two, and describe what it answers."""
    own, config = Own(title, found.description), fields(found)
    tensors = own.inputs(config)
    if samples:
        batch = samples_file.read(samples, tensors)
    else:
        below = {each.name: each.below for each in found.description.inputs}
        batch = samples_file.drawn(tensors, below, MOST)
    source: Any = own.read(found.origin.path)
    one = {name: array[:1] for name, array in batch.items()}
    run, single = source.run, _answered(found, source.run, one, not samples)
    found = found.described(scalars=(*found.description.scalars, *source.lifted))
    source.own = Own(title, found.description)
    has_batch, scalars = found.description.has_batch, found.description.scalars
    if scalars and found.origin.kind == "savedmodel":
        raise ParameterError(
            f"'{scalars[0]}' has only a batch dimension, and Triton needs one more. Save "
            "the model with the shape batch x 1."
        )
    if found.origin.framework == "torch" and has_batch and not scalars:
        found = found.described(is_plain=source.is_plain(one))
    if found.description.is_batched:
        rows = [array[:TWO] if len(array) >= TWO else array[[0, 0]] for array in batch.values()]
        _require_batch(found, run, dict(zip(batch, rows, strict=True)), single)
    doubled = _doubled(found, run, one)
    outputs = tuple(_output(found, name, array, doubled) for name, array in single.items())
    first = next(iter(single.values()))
    decision = "class" if _is_classes(next(iter(single)), first) else "values"
    several, network = _several(found, batch, one), source.build(tensors)
    found = found.described(outputs=outputs, decision=decision, takes_zeros=_takes_zeros(run, one))
    return replace(
        found,
        terms=rounding.terms(_weight_shapes(network, found)),
        effects=rounding.effects(
            network, found.origin.framework, run, several, decision, precisions
        ),
        apart=rounding.sample_distance(run(several)),
        samples=take(batch, np.resize(spread(len(next(iter(batch.values()))), TRIED), TRIED)),
        network=network,
    )


def _unseen(title: str, found: InspectedModel, samples: Path | None) -> InspectedModel:
    """Describe the outputs of a model that only a server can run, as its configuration does."""
    if samples:
        samples_file.read(samples, Own(title, found.description).inputs(fields(found)))
    outputs = []
    for each in found.origin.answers:
        assert each.sizes is not None
        if "" in each.sizes[1:]:
            raise ParameterError(
                f"The output '{each.name}' has a free size. Set the size in config.pbtxt."
            )
        outputs.append(TensorSpec(each.name, each.dtype, each.sizes[1:]))
    decision = "class" if CLASS_WORDS.search(outputs[0].name) else "values"
    is_batched = found.origin.most > 1
    return found.described(outputs=tuple(outputs), decision=decision, is_batched=is_batched)


def _takes_zeros(run: Callable[[Arrays], Arrays], one: Arrays) -> bool:
    try:
        run({name: np.zeros_like(array) for name, array in one.items()})
    except Exception:  # runtimes raise anything
        return False
    return True


def _several(found: InspectedModel, batch: Arrays, one: Arrays) -> Arrays:
    """Choose the samples of which it is seen what rounding does: fewer if they are large, as these
    take long; one, where the batch is fixed.
    """
    if not found.description.is_batched:
        return one
    size = sum(array.nbytes for array in one.values())
    count = int(min(MOST, max(TWO, BYTES // size)))
    return take(batch, spread(len(next(iter(batch.values()))), count))


def _answered(
    found: InspectedModel, run: Callable[[Arrays], Arrays], inputs: Arrays, are_drawn: bool
) -> Arrays:
    """Run a model; raise CheckpointError with the shapes if it does not run on them."""
    try:
        return run(inputs)
    except DeploymentError:
        raise
    except Exception as error:  # runtimes raise anything
        shapes = ", ".join(f"{n} {samples_file.spell(a.shape)}" for n, a in inputs.items())
        reason = " ".join(str(error).split())[:200]
        advice = ADVICE if are_drawn else ""
        raise CheckpointError(
            f"{found.origin.path} does not run on {shapes}{advice}: {reason}"
        ) from None


def _require_batch(
    found: InspectedModel, run: Callable[[Arrays], Arrays], two: Arrays, single: Arrays
) -> None:
    """Raise ParameterError if two samples at once are not answered as two samples."""
    ask = "Use --batch 1 if the model takes one sample at a time, --batch none if it has no batch."
    try:
        both = run(two)
    except Exception as error:  # runtimes raise anything
        reason = " ".join(str(error).split())[:150]
        raise ParameterError(f"The model rejects two samples at once ({reason}). {ask}") from None
    for name, one in single.items():
        rows = np.asarray(both[name])
        if one.shape[:1] != (1,) or rows.shape != (TWO, *one.shape[1:]):
            shape = samples_file.spell(rows.shape)
            raise ParameterError(
                f"The output '{name}' of two samples has the shape {shape}, not a row each. {ask}"
            )
        if not np.allclose(rows[0], one[0], rtol=SAME, atol=SAME * float(np.abs(one).max())):
            raise ParameterError(
                f"Output '{name}' changes when another sample is in the batch, so samples cannot "
                f"be batched. {ask}"
            )


def _doubled(
    found: InspectedModel, run: Callable[[Arrays], Arrays], one: Arrays
) -> dict[str, Arrays]:
    """Run one sample with each free dimension at twice its size; leave out those that fail."""
    results = {}
    for dimension in found.dimensions:
        wider = dict(one)
        for axes in found.description.inputs:
            for axis, size in enumerate(axes.shape, 1):
                if size == dimension:
                    wider[axes.name] = np.concatenate([wider[axes.name]] * 2, axis)
        with suppress(Exception):  # runtimes raise anything for a size that a model does not take
            results[dimension] = run(wider)
    return results


def _output(
    found: InspectedModel, name: str, array: NDArray[Any], doubled: Mapping[str, Arrays]
) -> TensorSpec:
    """Describe an output: sizes that are a free dimension of an input, or part of one, by name."""
    check_name(found.origin.path, name, "output")
    if array.dtype.kind not in "fiub":
        unsupported = f"the output '{name}' has the type {array.dtype}, which is not numeric"
        raise ParameterError(f"{found.origin.path}: {unsupported}")
    if array.shape[:1] != (1,):
        raise ParameterError(
            f"The output '{name}' of one sample has the shape {samples_file.spell(array.shape)}. "
            "Use --batch none if the model has no batch dimension."
        )
    told = _told_sizes(found, name)
    wider = {dimension: outputs[name].shape[1:] for dimension, outputs in doubled.items()}
    shape = [
        told.get(place) or _part_of(found, place, size, wider)
        for place, size in enumerate(array.shape[1:])
    ]
    return TensorSpec(name, str(array.dtype), tuple(shape))


def _part_of(
    found: InspectedModel, place: int, size: int, wider: Mapping[str, tuple[int, ...]]
) -> int | str:
    """Return which free dimension the size of an output is, or which part of one: at best one of
    the same place; the size itself if of none. `wider` has the output's shape where a dimension
    was doubled: a size that did not double only happens to be equal.
    """
    at_place = [each.shape[place] for each in found.description.inputs if len(each.shape) > place]
    ordered = sorted(found.dimensions, key=lambda name: name not in at_place)
    for part, name in product(PARTS, ordered):
        whole = found.dimensions[name]
        grows = name not in wider or wider[name][place : place + 1] == (2 * size,)
        if size > 1 and whole == size * part and grows:
            return f"{name}/{part}" if part > 1 else name
    return size


def _told_sizes(found: InspectedModel, name: str) -> dict[int, int | str]:
    """Return the sizes of an output that its graph tells, by their places: a number, or the name of
    an input's free dimension.
    """
    if found.origin.kind != "onnx":
        return {}
    model = graph.read_onnx(found.origin.path)
    own = next(each for each in model.graph.output if each.name == name)
    sizes = graph.sizes(own)[int(found.description.has_batch) :]
    known = (*found.dimensions,)
    return {at: size for at, size in enumerate(sizes) if isinstance(size, int) or size in known}


def _is_classes(name: str, array: NDArray[Any]) -> bool:
    """Guess whether an output has a score for each of some classes."""
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < 2:
        return False
    is_share = bool((array >= 0).all()) and abs(float(array[0].sum()) - 1) < CLASS_SUM
    return is_share or bool(CLASS_WORDS.search(name))


def _weight_shapes(network: Network, found: InspectedModel) -> list[tuple[int, ...]]:
    """Return the shapes of the weights, the dimension of their results last."""
    if isinstance(network, Graph) and found.origin.kind == "onnx":
        shapes = graph.weight_shapes(network.content)  # of products and convolutions alike
        return [s if prod(s[:-1]) > prod(s[1:]) else s[::-1] for s in shapes]
    if isinstance(network, Graph):
        source: Any = network.session
        return cast(list[tuple[int, ...]], source.session.shapes())
    if found.origin.framework == "torch":
        return [tuple(each.shape)[::-1] for each in (*network.parameters(), *network.buffers())]
    return [tuple(each.shape) for each in network.weights]
