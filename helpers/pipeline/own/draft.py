"""Describe a source by running it: its dimensions, its batch, its outputs and their tolerances."""

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

# an output's size may be a dimension of an input divided by one of these
PARTS = (1, 2, 4, 8, 16, 32)
CLASS_WORDS = re.compile(r"logit|prob|score|class|label|softmax", re.IGNORECASE)
CLASS_SUM = 1e-3  # tolerance of the sum of all class probabilities
BYTES, MOST = 2e6, 16  # most bytes and most samples on which rounding errors are measured
SAME = 0.05  # tolerance of a sample's output, computed alone and in a batch
TRIED = 6  # samples for a trace and for its check
TWO = 2  # samples that test the batch dimension
ADVICE = " (random inputs; use --samples if the model accepts only some values)"


@dataclass(frozen=True)
class InspectedModel:
    """The description of a model, and what running it showed."""

    origin: ModelSource
    description: Description
    dimensions: dict[str, int]
    terms: tuple[int, int] = (1, 1)  # of all sums over weights, and the number of these sums
    # precision -> its rounding error; `apart` is the mean distance between two samples
    effects: dict[str, rounding.RoundingError] = field(default_factory=dict)
    apart: float = 1.0
    samples: Arrays = field(repr=False, default_factory=dict)  # a few inputs that it can run on
    network: Network = field(repr=False, default=None)

    def described(self, **changes: object) -> "InspectedModel":
        """Return a copy with other fields of its description."""
        return replace(self, description=self.description.model_copy(update=changes))


def draft(
    title: str,
    origin: ModelSource,
    samples: Path | None,
    batch: str,
    sizes: Mapping[str, int],
    precisions: Collection[str],
) -> InspectedModel:
    """Infer what a source does not declare from its samples and by running it.

    `batch` is the user's option: "" (a free batch), "1" (a fixed one) or "none". `precisions` are
    those whose rounding error is measured. Raises ParameterError, which names the missing option,
    and DataError for samples that do not fit.
    """
    inputs = known_inputs(origin, samples, batch, sizes)
    scalars = tuple(tensor.name for tensor in inputs.axes if not tensor.shape)
    axes = tuple(tensor if tensor.shape else replace(tensor, shape=(1,)) for tensor in inputs.axes)
    description = Description(
        source=origin.kind,
        framework=origin.framework,
        function=origin.function,
        backend=origin.backend,
        inputs=with_tables(origin, axes),
        outputs=(),
        has_batch=inputs.has_batch,
        is_batched=inputs.is_batched,
        scalars=scalars,
    )
    model = InspectedModel(origin, description, inputs.dimensions)
    if origin.backend:
        return _unseen(title, model, samples)
    return _run(title, model, samples, precisions)


def fields(model: InspectedModel) -> Config:
    """Return the fields of an experiment that a model reads."""
    return cast(Config, SimpleNamespace(dimensions=model.dimensions, labels="", dataset=""))


def _run(
    title: str, model: InspectedModel, samples: Path | None, precisions: Collection[str]
) -> InspectedModel:
    """Run the model on one sample and on two, and describe its outputs."""
    own_model, config = Own(title, model.description), fields(model)
    tensors = own_model.inputs(config)
    if samples:
        batch = samples_file.read(samples, tensors)
    else:
        below = {tensor.name: tensor.below for tensor in model.description.inputs}
        batch = samples_file.drawn(tensors, below, MOST)
    source: Any = own_model.read(model.origin.path)
    one = {name: array[:1] for name, array in batch.items()}
    run, single = source.run, _answered(model, source.run, one, not samples)
    model = model.described(scalars=(*model.description.scalars, *source.lifted))
    source.own = Own(title, model.description)
    has_batch, scalars = model.description.has_batch, model.description.scalars
    if scalars and model.origin.kind == "savedmodel":
        raise ParameterError(
            f"'{scalars[0]}' has only a batch dimension, and Triton needs one more. Save "
            "the model with the shape batch x 1."
        )
    if model.origin.framework == "torch" and has_batch and not scalars:
        model = model.described(is_plain=source.is_plain(one))
    if model.description.is_batched:
        rows = [array[:TWO] if len(array) >= TWO else array[[0, 0]] for array in batch.values()]
        _require_batch(model, run, dict(zip(batch, rows, strict=True)), single)
    doubled = _doubled(model, run, one)
    outputs = tuple(_output(model, name, array, doubled) for name, array in single.items())
    first = next(iter(single.values()))
    decision = "class" if _is_classes(next(iter(single)), first) else "values"
    several, network = _several(model, batch, one), source.build(tensors)
    model = model.described(outputs=outputs, decision=decision, takes_zeros=_takes_zeros(run, one))
    return replace(
        model,
        terms=rounding.terms(_weight_shapes(network, model)),
        effects=rounding.effects(
            network, model.origin.framework, run, several, decision, precisions
        ),
        apart=rounding.sample_distance(run(several)),
        samples=take(batch, np.resize(spread(len(next(iter(batch.values()))), TRIED), TRIED)),
        network=network,
    )


def _unseen(title: str, model: InspectedModel, samples: Path | None) -> InspectedModel:
    """Describe the outputs of a model that only a server can run, by its configuration."""
    if samples:
        samples_file.read(samples, Own(title, model.description).inputs(fields(model)))
    outputs = []
    for output in model.origin.answers:
        assert output.sizes is not None
        if "" in output.sizes[1:]:
            raise ParameterError(
                f"The output '{output.name}' has a free size. Set the size in config.pbtxt."
            )
        outputs.append(TensorSpec(output.name, output.dtype, output.sizes[1:]))
    decision = "class" if CLASS_WORDS.search(outputs[0].name) else "values"
    is_batched = model.origin.most > 1
    return model.described(outputs=tuple(outputs), decision=decision, is_batched=is_batched)


def _takes_zeros(run: Callable[[Arrays], Arrays], one: Arrays) -> bool:
    try:
        run({name: np.zeros_like(array) for name, array in one.items()})
    except Exception:  # runtimes raise anything
        return False
    return True


def _several(model: InspectedModel, batch: Arrays, one: Arrays) -> Arrays:
    """Choose the samples on which rounding errors are measured.

    Large samples are fewer, as they take long. A fixed batch has one.
    """
    if not model.description.is_batched:
        return one
    size = sum(array.nbytes for array in one.values())
    count = int(min(MOST, max(TWO, BYTES // size)))
    return take(batch, spread(len(next(iter(batch.values()))), count))


def _answered(
    model: InspectedModel, run: Callable[[Arrays], Arrays], inputs: Arrays, are_drawn: bool
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
            f"{model.origin.path} does not run on {shapes}{advice}: {reason}"
        ) from None


def _require_batch(
    model: InspectedModel, run: Callable[[Arrays], Arrays], two: Arrays, single: Arrays
) -> None:
    """Raise ParameterError unless two samples in a batch give the outputs of two samples."""
    ask = "Use --batch 1 if the model takes one sample at a time, --batch none if it has no batch."
    try:
        outputs = run(two)
    except Exception as error:  # runtimes raise anything
        reason = " ".join(str(error).split())[:150]
        raise ParameterError(f"The model rejects two samples at once ({reason}). {ask}") from None
    for name, one in single.items():
        rows = np.asarray(outputs[name])
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
    model: InspectedModel, run: Callable[[Arrays], Arrays], one: Arrays
) -> dict[str, Arrays]:
    """Run one sample with each free dimension doubled; leave out dimensions that fail."""
    results = {}
    for dimension in model.dimensions:
        wider = dict(one)
        for tensor in model.description.inputs:
            for axis, size in enumerate(tensor.shape, 1):
                if size == dimension:
                    wider[tensor.name] = np.concatenate([wider[tensor.name]] * 2, axis)
        with suppress(Exception):  # runtimes raise anything for a size that a model does not take
            results[dimension] = run(wider)
    return results


def _output(
    model: InspectedModel, name: str, array: NDArray[Any], doubled: Mapping[str, Arrays]
) -> TensorSpec:
    """Describe an output, with the names of free dimensions where its sizes follow them."""
    check_name(model.origin.path, name, "output")
    if array.dtype.kind not in "fiub":
        unsupported = f"the output '{name}' has the type {array.dtype}, which is not numeric"
        raise ParameterError(f"{model.origin.path}: {unsupported}")
    if array.shape[:1] != (1,):
        raise ParameterError(
            f"The output '{name}' of one sample has the shape {samples_file.spell(array.shape)}. "
            "Use --batch none if the model has no batch dimension."
        )
    declared = _declared_sizes(model, name)
    wider = {dimension: outputs[name].shape[1:] for dimension, outputs in doubled.items()}
    shape = [
        declared.get(axis) or _part_of(model, axis, size, wider)
        for axis, size in enumerate(array.shape[1:])
    ]
    return TensorSpec(name, str(array.dtype), tuple(shape))


def _part_of(
    model: InspectedModel, axis: int, size: int, wider: Mapping[str, tuple[int, ...]]
) -> int | str:
    """Return the free dimension, or the part of one, that an output's size equals; else the size.

    A dimension of the same axis comes first. `wider` has the output's shape after a dimension was
    doubled: a size that did not double is equal by chance.
    """
    at_axis = [
        tensor.shape[axis] for tensor in model.description.inputs if len(tensor.shape) > axis
    ]
    ordered = sorted(model.dimensions, key=lambda name: name not in at_axis)
    for part, name in product(PARTS, ordered):
        dimension_size = model.dimensions[name]
        grows = name not in wider or wider[name][axis : axis + 1] == (2 * size,)
        if size > 1 and dimension_size == size * part and grows:
            return f"{name}/{part}" if part > 1 else name
    return size


def _declared_sizes(inspected: InspectedModel, name: str) -> dict[int, int | str]:
    """Return the sizes of an output that its graph declares, by axis.

    A size is a number or the name of an input's free dimension.
    """
    if inspected.origin.kind != "onnx":
        return {}
    model = graph.read_onnx(inspected.origin.path)
    output = next(tensor for tensor in model.graph.output if tensor.name == name)
    sizes = graph.sizes(output)[int(inspected.description.has_batch) :]
    names = (*inspected.dimensions,)
    return {at: size for at, size in enumerate(sizes) if isinstance(size, int) or size in names}


def _is_classes(name: str, array: NDArray[Any]) -> bool:
    """Guess whether an output has one score per class."""
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < 2:
        return False
    is_share = bool((array >= 0).all()) and abs(float(array[0].sum()) - 1) < CLASS_SUM
    return is_share or bool(CLASS_WORDS.search(name))


def _weight_shapes(network: Network, model: InspectedModel) -> list[tuple[int, ...]]:
    """Return the shapes of the weights, with the dimension of their results last."""
    if isinstance(network, Graph) and model.origin.kind == "onnx":
        shapes = graph.weight_shapes(network.content)  # of matrix multiplications and convolutions
        return [s if prod(s[:-1]) > prod(s[1:]) else s[::-1] for s in shapes]
    if isinstance(network, Graph):
        source: Any = network.session
        return cast(list[tuple[int, ...]], source.session.shapes())
    if model.origin.framework == "torch":
        return [tuple(tensor.shape)[::-1] for tensor in (*network.parameters(), *network.buffers())]
    return [tuple(weight.shape) for weight in network.weights]
