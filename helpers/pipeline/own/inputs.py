"""Determine the type, batch and sizes of a model's inputs before it runs.

They come from the source, the samples and the options; errors name the option that is missing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError, ParameterError
from helpers.models import Arrays
from helpers.models._own import TensorSpec
from helpers.models._own import data as samples_file
from helpers.pipeline.own.origin import ModelSource, SourceTensor

# Operators that pass the values of an input on
PASSING = ("Cast", "Reshape", "Expand", "Unsqueeze", "Squeeze", "Identity")


@dataclass(frozen=True)
class Inputs:
    """The inputs of a model, and its batch."""

    axes: tuple[TensorSpec, ...]
    dimensions: dict[str, int]  # the size of each that is free
    has_batch: bool
    is_batched: bool  # whether the batch is free


def sizes_of(options: Sequence[str]) -> dict[str, int]:
    """Read sizes as the command line has them, "height=320"; raise ParameterError."""
    sizes = {}
    for option in options:
        name, _, size = option.partition("=")
        if not size.isdigit() or int(size) < 1 or not name:
            raise ParameterError(
                f"Invalid --dimension {option}. Use a name and a size, such as height=320."
            )
        sizes[name] = int(size)
    return sizes


def known_inputs(
    origin: ModelSource, samples: Path | None, batch: str, sizes: Mapping[str, int]
) -> Inputs:
    """Return the inputs; raise ParameterError if a type, size or batch is missing.

    Raises DataError for samples of other names, types or shapes.
    """
    arrays = samples_file.load(samples) if samples else origin.example or {}
    if samples:
        samples_file.check_names(samples, arrays, [port.name for port in origin.inputs])
    arrays = _as_rows(arrays, batch, bool(samples))
    ports = tuple(_complete(port, arrays, batch, origin) for port in origin.inputs)
    has_batch, is_batched = _batch(origin, ports, batch)
    axes, dimensions = _dimensions(ports, arrays, sizes, has_batch)
    return Inputs(axes, dimensions, has_batch, is_batched)


def _as_rows(arrays: Arrays, batch: str, are_samples: bool) -> Arrays:
    """Return examples with one row per sample."""
    if batch == "none" and not are_samples:
        return {name: array[np.newaxis] for name, array in arrays.items()}
    return arrays


def _complete(port: SourceTensor, arrays: Arrays, batch: str, origin: ModelSource) -> SourceTensor:
    """Complete the type and sizes of an input from its samples."""
    if port.sizes is not None and port.dtype:
        if port.name in arrays and origin.example is None:
            _check_rank(port, arrays[port.name], batch)
        return port
    if port.name not in arrays:
        raise ParameterError(
            f"{origin.path} does not declare type and shape of its input '{port.name}'. Use "
            "--samples, with one row per sample."
        )
    array = arrays[port.name]
    sizes: tuple[int | str, ...] = array.shape[1:] if batch == "none" else ("", *array.shape[1:])
    return SourceTensor(port.name, str(array.dtype), sizes)


def _check_rank(port: SourceTensor, array: NDArray[Any], batch: str) -> None:
    assert port.sizes is not None
    declared = port.sizes if batch == "none" else port.sizes[1:]
    fits = array.ndim == len(declared) + 1 and all(
        not isinstance(size, int) or size == sample_size
        for size, sample_size in zip(declared, array.shape[1:], strict=False)
    )
    if not fits:
        expected = " x ".join(["rows", *(str(size or "any") for size in declared)])
        shape = samples_file.spell(array.shape)
        raise DataError(f"the samples of '{port.name}' are {shape}, but the input takes {expected}")


def _batch(origin: ModelSource, ports: Sequence[SourceTensor], batch: str) -> tuple[bool, bool]:
    """Return whether tensors have a batch and whether it is free; raise if that is unknown."""
    if batch == "none":
        return False, False
    if batch == "1":
        for port in ports:
            if not port.sizes or (port.sizes[0] not in (1, "") and isinstance(port.sizes[0], int)):
                size = port.sizes[0] if port.sizes else "missing"
                raise ParameterError(
                    f"--batch 1 does not match the input '{port.name}', whose first dimension is "
                    f"{size}. Use --batch none if that is not a batch."
                )
        return True, False
    if batch:
        raise ParameterError(f"Invalid --batch {batch}. Use 1 or none.")
    for port in ports:
        assert port.sizes is not None
        shape = samples_file.spell([size or "any" for size in port.sizes])  # type: ignore[misc]
        if not port.sizes:
            raise ParameterError(
                f"The input '{port.name}' has no batch dimension. Use --batch none: each request "
                "is then one sample."
            )
        if isinstance(port.sizes[0], int) and origin.example is None:
            raise ParameterError(
                f"The input '{port.name}' is {shape}, with a fixed first dimension. Export the "
                "model with a free one. Or use --batch 1 for a batch of one sample, --batch none "
                "for no batch."
            )
    return True, True


def _dimensions(
    ports: Sequence[SourceTensor], arrays: Arrays, user_sizes: Mapping[str, int], has_batch: bool
) -> tuple[tuple[TensorSpec, ...], dict[str, int]]:
    """Return the free dimensions by name, with the size that samples or the user's options give."""
    dimensions: dict[str, int] = {}
    axes = []
    free: list[tuple[str, str]] = []
    for port in ports:
        assert port.sizes is not None
        shape: list[int | str] = []
        first = int(has_batch)
        for index, size in enumerate(port.sizes[first:]):
            if isinstance(size, int):
                shape.append(size)
                continue
            name = size if size.isidentifier() else re.sub(r"\W", "_", f"{port.name}_{index + 1}")
            if port.name in arrays:
                size_here = arrays[port.name].shape[index + 1]
                if dimensions.setdefault(name, size_here) != size_here:
                    one, other = dimensions[name], size_here
                    raise DataError(f"The samples have two sizes of '{name}', {one} and {other}")
                if user_sizes.get(name, size_here) != size_here:
                    fault = f"--dimension {name}={user_sizes[name]} does not match the samples"
                    raise ParameterError(f"{fault}, in which it is {size_here}. Leave it out.")
            elif name in user_sizes:
                dimensions[name] = user_sizes[name]
            else:
                free.append((port.name, name))
            shape.append(name)
        axes.append(TensorSpec(port.name, port.dtype, tuple(shape)))
    missing = sorted({name for _, name in free} - set(dimensions))
    if missing:
        names = ", ".join(missing)
        options = " ".join(f"--dimension {name}=SIZE" for name in missing)
        raise ParameterError(
            f"The input '{free[0][0]}' has free dimensions: {names}. Use --samples, whose shapes "
            f"set them, or {options}"
        )
    if unknown := sorted(set(user_sizes) - set(dimensions)):
        has = ", ".join(dimensions) or "none"
        raise ParameterError(f"Unknown --dimension {unknown[0]}. The free dimensions are {has}.")
    return tuple(axes), dimensions


def with_tables(origin: ModelSource, axes: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Set the upper bound of random integer inputs: the rows of the table that they index."""
    rows = _table_rows(origin) if origin.kind == "onnx" else {}
    bounded = []
    for tensor in axes:
        if np.dtype(tensor.dtype).kind in "iu":
            below = min(rows.get(tensor.name, TensorSpec.below), np.iinfo(tensor.dtype).max)
            bounded.append(replace(tensor, below=int(below)))
        else:
            bounded.append(tensor)
    return tuple(bounded)


def _table_rows(origin: ModelSource) -> dict[str, int]:
    """Return the rows of each table that an input of an ONNX graph indexes.

    A graph looks rows up, or compares the input with all row numbers, as a one-hot encoding does.
    """
    from onnx.numpy_helper import to_array

    from helpers.models._own import graph

    model = graph.read_onnx(origin.path)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    same = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in PASSING}
    table_rows: dict[str, int] = {}
    for node in model.graph.node:
        table = next((weights[name] for name in node.input[:2] if name in weights), None)
        if table is None:
            continue
        if node.op_type == "Gather" and node.input[0] == table.name:
            name, rows = node.input[1], table.dims[0]
        elif node.op_type == "OneHot":
            name, rows = node.input[0], int(to_array(table).max())
        elif node.op_type == "Equal" and _counts_up(to_array(table)):
            name, rows = node.input[0], prod(table.dims)
        else:
            continue
        while name in same:
            name = same[name]
        table_rows[name] = min(rows, table_rows.get(name, rows))
    return table_rows


def _counts_up(array: NDArray[Any]) -> bool:
    flat = array.reshape(-1)
    return flat.size > 1 and bool((flat == np.arange(flat.size)).all())
