"""Describe a source by running it: its dimensions, its batch, its outputs and their tolerances."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from helpers.errors import CheckpointError, DeploymentError, ParameterError, one_line
from helpers.models import Arrays, Config, Network
from helpers.models._arrays import spread, take
from helpers.models._own import Description, Own, TensorSpec, graph
from helpers.models._own import data as samples_file
from helpers.pipeline.own import rounding
from helpers.pipeline.own.inputs import known_inputs
from helpers.pipeline.own.origin import ModelSource, check_name, check_type
from helpers.pipeline.own.rounding import Run

# an output's size may be a dimension of an input divided by one of these
PARTS = (1, 2, 4, 8, 16, 32)
CLASS_WORDS = re.compile(r"logit|prob|score|class|label|softmax", re.IGNORECASE)
CLASS_SUM = 1e-3  # tolerance of the sum of all class probabilities
BYTES, MOST = 2e6, 16  # most bytes and most samples on which rounding errors are measured
SAME = 1e-3  # relative tolerance of a sample's output, computed alone and in a batch
TRIED = 6  # samples for a trace and for its check
TWO = 2  # samples that test the batch dimension
ADVICE = " (random inputs; use --samples if the model accepts only some values)"


@dataclass(frozen=True)
class InspectedModel:
    """The description of a model, and what running it showed."""

    origin: ModelSource
    description: Description
    dimensions: dict[str, int]
    rows: int = 0  # of the user's samples
    terms: tuple[int, int] = (1, 1)  # of all sums over weights, and the number of these sums
    # precision -> its rounding error; `apart` is the mean distance between two samples
    effects: dict[str, rounding.RoundingError] = field(default_factory=dict)
    apart: float = 1.0
    weight_bytes: int = 0
    samples: Arrays = field(repr=False, default_factory=dict)  # a few inputs that it can run on
    network: Network = field(repr=False, default=None)
    run: Run = field(repr=False, default=dict)

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
    axes, dimensions, has_batch, is_batched = known_inputs(origin, samples, batch, sizes)
    description = Description(
        source=origin.kind,
        framework=origin.framework,
        function=origin.function,
        backend=origin.backend,
        inputs=tuple(replace(tensor, shape=tensor.shape or (1,)) for tensor in axes),
        outputs=(),
        has_batch=has_batch,
        is_batched=is_batched,
        scalars=tuple(tensor.name for tensor in axes if not tensor.shape),
        classes=origin.classes,
    )
    model = InspectedModel(origin, description, dimensions)
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
    origin, own_model = model.origin, Own(title, model.description)
    tensors = own_model.inputs(fields(model))
    if samples:
        batch = samples_file.read(samples, tensors)
    else:
        batch = samples_file.drawn(own_model, fields(model), MOST)
    rows = len(next(iter(batch.values())))
    source: Any = own_model.read(origin.path)
    one = take(batch, slice(1))
    run, single = source.run, _answered(model, source.run, one, not samples)
    scalars = (*model.description.scalars, *source.lifted)
    is_torch = origin.framework == "torch" and model.description.has_batch and not scalars
    model = model.described(scalars=scalars, is_plain=is_torch and source.is_plain(one))
    source.own = Own(title, model.description)
    if scalars and origin.kind == "savedmodel":
        raise ParameterError(
            f"'{scalars[0]}' has only a batch dimension, and Triton needs one more. Save "
            "the model with the shape batch x 1."
        )
    if origin.kind == "function" and not _are_close(source.own.read(origin.path).run(one), single):
        raise CheckpointError(
            f"{origin.function} returns other weights at each call. Load them from a file, "
            "or set a seed."
        )
    _check_outputs(model, run, batch, single)
    several = one
    if model.description.is_batched:
        _require_batch(run, take(batch, np.arange(TWO) % rows), single)
        # large samples are fewer, as they take long
        count = min(MOST, max(TWO, BYTES // sum(array.nbytes for array in one.values())))
        several = take(batch, spread(rows, int(count)))
    doubled = _doubled(model, run, one)
    outputs = tuple(_output(model, name, array, doubled) for name, array in single.items())
    decision = "class" if _is_classes(*next(iter(single.items()))) else "values"
    network, right = source.build(tensors), run(several)
    _require_numbers(right, not samples)
    zeros = {name: np.zeros_like(array) for name, array in one.items()}
    takes_zeros = _attempted(run, zeros) is not None
    shapes = _weight_shapes(network, model)
    return replace(
        model.described(outputs=outputs, decision=decision, takes_zeros=takes_zeros),
        rows=rows if samples else 0,
        terms=rounding.terms(shapes),
        weight_bytes=4 * sum(map(prod, shapes)),
        effects=rounding.effects(network, origin.framework, run, several, decision, precisions),
        apart=rounding.sample_distance(right),
        samples=take(batch, np.resize(spread(rows, TRIED), TRIED)),
        network=network,
        run=run,
    )


def _attempted(run: Run, inputs: Arrays) -> Arrays | None:
    """Run a model; return None if it does not take these inputs."""
    with suppress(Exception):  # runtimes raise anything
        return run(inputs)
    return None


def _are_close(outputs: Arrays, others: Arrays) -> bool:
    return all(np.allclose(outputs[name], others[name], equal_nan=True) for name in others)


def _unseen(title: str, model: InspectedModel, samples: Path | None) -> InspectedModel:
    """Describe the outputs of a model that only a server can run, by its configuration."""
    if samples:
        arrays = samples_file.read(samples, Own(title, model.description).inputs(fields(model)))
        model = replace(model, rows=len(next(iter(arrays.values()))))
    outputs = [replace(output, shape=output.shape[1:]) for output in model.origin.answers]
    for output in outputs:
        if "" in output.shape:
            raise ParameterError(
                f"The output '{output.name}' has a free size. Set the size in config.pbtxt."
            )
    decision = "class" if CLASS_WORDS.search(outputs[0].name) else "values"
    is_batched = model.origin.most > 1
    return model.described(outputs=tuple(outputs), decision=decision, is_batched=is_batched)


def _answered(model: InspectedModel, run: Run, inputs: Arrays, are_drawn: bool) -> Arrays:
    """Run a model; raise CheckpointError with the shapes if it does not run on them."""
    try:
        return run(inputs)
    except DeploymentError:
        raise
    except Exception as error:  # runtimes raise anything
        shapes = ", ".join(f"{n} {samples_file.spell(a.shape)}" for n, a in inputs.items())
        fault = f"{model.origin.path} does not run on {shapes}{ADVICE if are_drawn else ''}"
        raise CheckpointError(f"{fault}: {one_line(error, 200)}") from None


def _check_outputs(model: InspectedModel, run: Run, batch: Arrays, single: Arrays) -> None:
    """Raise an error for an output that cannot be served, is random, or has no fixed shape."""
    for name, array in single.items():
        check_name(model.origin.path, name, "output")
        check_type(model.origin.path, name, str(array.dtype), "output")
        if not array.size:
            raise ParameterError(f"The output '{name}' has no elements. Leave it out.")
    count = min(TRIED, len(next(iter(batch.values()))))
    others = [run(take(batch, slice(row, row + 1))) for row in range(count)]
    for factor in (0, -1):  # these find nothing, where random ones always find as much
        scaled = {key: factor * array[:1] for key, array in batch.items()}
        if outputs := _attempted(run, scaled):
            others.append(outputs)
    for name, array in single.items():
        for shape in (other[name].shape for other in others):
            if shape != array.shape:
                sizes = " and ".join(map(samples_file.spell, (array.shape, shape)))
                raise ParameterError(
                    f"The shape of the output '{name}' depends on the sample ({sizes}). "
                    "Pad it to a fixed shape in the model, or leave it out."
                )
    if not _are_close(others[0], single):
        raise CheckpointError(
            "The outputs of one sample change from run to run. Save the model in inference mode, "
            "as by .eval(), or make its random numbers an input."
        )


def _require_numbers(outputs: Arrays, are_drawn: bool) -> None:
    """Raise CheckpointError for outputs of NaN. Infinite ones may be meant, as where masked."""
    for name, array in outputs.items():
        wrong = int((array != array).reshape(len(array), -1).any(axis=1).sum())  # NaN is not itself
        if wrong:
            what = f"{wrong} of {len(array)} {'random inputs' if are_drawn else 'samples'}"
            advice = "Use --samples with inputs that it accepts" if are_drawn else "Correct them"
            raise CheckpointError(f"The output '{name}' is NaN for {what}. {advice}.")


def _require_batch(run: Run, two: Arrays, single: Arrays) -> None:
    """Raise ParameterError unless two samples in a batch give the outputs of two samples."""
    ask = "Use --batch 1 if the model takes one sample at a time, --batch none if it has no batch."
    try:
        outputs = run(two)
    except Exception as error:  # runtimes raise anything
        reason = one_line(error, 150)
        raise ParameterError(f"The model rejects two samples at once ({reason}). {ask}") from None
    for name, one in single.items():
        rows = np.asarray(outputs[name])
        if one.shape[:1] != (1,) or rows.shape != (TWO, *one.shape[1:]):
            shape = samples_file.spell(rows.shape)
            raise ParameterError(
                f"The output '{name}' of two samples has the shape {shape}, not a row each. {ask}"
            )
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0))
        if not np.allclose(rows[0], one[0], rtol=SAME, atol=SAME * largest, equal_nan=True):
            raise ParameterError(
                f"Output '{name}' changes when another sample is in the batch, so samples cannot "
                f"be batched. {ask}"
            )


def _doubled(model: InspectedModel, run: Run, one: Arrays) -> dict[str, Arrays]:
    """Run one sample with each free dimension doubled; leave out dimensions that fail."""
    results = {}
    for dimension in model.dimensions:
        wider = dict(one)
        for tensor in model.description.inputs:
            for axis, size in enumerate(tensor.shape, 1):
                if size == dimension:
                    wider[tensor.name] = np.concatenate([wider[tensor.name]] * 2, axis)
        if outputs := _attempted(run, wider):
            results[dimension] = outputs
    return results


def _output(
    model: InspectedModel, name: str, array: NDArray[Any], doubled: Mapping[str, Arrays]
) -> TensorSpec:
    """Describe an output, with the names of free dimensions where its sizes follow them."""
    if array.shape[:1] != (1,):
        raise ParameterError(
            f"The output '{name}' of one sample has the shape {samples_file.spell(array.shape)}. "
            "Use --batch none if the model has no batch dimension."
        )
    wider = {dimension: outputs[name].shape[1:] for dimension, outputs in doubled.items()}
    sizes = enumerate(array.shape[1:])
    shape = tuple(_part_of(model, axis, size, wider) for axis, size in sizes)
    return TensorSpec(name, str(array.dtype), shape)


def _part_of(
    model: InspectedModel, axis: int, size: int, wider: Mapping[str, tuple[int, ...]]
) -> int | str:
    """Return the free dimension, or the part of one, that an output's size equals; else the size.

    A dimension of the same axis comes first. `wider` has the output's shape after a dimension was
    doubled: a size that did not double is equal by chance.
    """
    at_axis = {tensor.shape[axis : axis + 1] for tensor in model.description.inputs}
    ordered = sorted(model.dimensions, key=lambda name: (name,) not in at_axis)
    for part, name in product(PARTS, ordered):
        grows = wider[name][axis : axis + 1] == (2 * size,) if name in wider else size > 1
        if model.dimensions[name] == size * part and grows:
            return f"{name}/{part}" if part > 1 else name
    return size


def _is_classes(name: str, array: NDArray[Any]) -> bool:
    """Guess whether an output has one score per class."""
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < 2:
        return False
    is_share = bool((array >= 0).all()) and abs(float(array[0].sum()) - 1) < CLASS_SUM
    return is_share or bool(CLASS_WORDS.search(name))


def _weight_shapes(network: Network, model: InspectedModel) -> list[tuple[int, ...]]:
    """Return the shapes of the weights, with the dimension of their results last."""
    if model.origin.kind == "onnx":  # of matrix multiplications and convolutions
        shapes = [shape for _, shape in graph.shapes_of(network.content.graph)]
        return [s if prod(s[:-1]) > prod(s[1:]) else s[::-1] for s in shapes]
    if model.origin.kind == "savedmodel":
        return cast(list[tuple[int, ...]], network.session.signature.shapes())
    if model.origin.framework == "torch":
        return [tuple(tensor.shape)[::-1] for tensor in (*network.parameters(), *network.buffers())]
    return [tuple(weight.shape) for weight in network.weights]
