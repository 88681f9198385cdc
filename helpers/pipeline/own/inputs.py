"""Determine the type, batch and sizes of a model's inputs by its source, samples and options."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError, ParameterError
from helpers.models import Arrays
from helpers.models._own import TensorSpec
from helpers.models._own import data as samples_file
from helpers.pipeline.own.origin import ModelSource


@dataclass(frozen=True)
class NewOptions:
    """The options of the command line, without name and source."""

    samples: Path | None = None
    labels: Path | None = None
    metric: str = ""
    batch: str = ""
    dimensions: Sequence[str] = ()
    device: str = "cpu"
    before: str = ""


def sizes_of(options: Sequence[str]) -> dict[str, int]:
    """Read sizes as the command line has them, "height=320"; raise ParameterError."""
    sizes = {}
    for option in options:
        match = re.fullmatch(r"([^=]+)=(\d*[1-9]\d*)", option)
        if not match:
            raise ParameterError(
                f"Invalid --dimension {option}. Use a name and a size, such as height=320."
            )
        sizes[match[1]] = int(match[2])
    return sizes


def known_inputs(
    origin: ModelSource, samples: Path | None, batch: str, sizes: Mapping[str, int]
) -> tuple[tuple[TensorSpec, ...], dict[str, int], bool, bool]:
    """Return the inputs, the sizes of their free dimensions, and whether they have a batch and it
    is free.

    Raises ParameterError if a type, size or batch is missing, and DataError for samples of other
    names, types or shapes.
    """
    arrays = origin.example or {}
    if samples:
        arrays = samples_file.load(samples)
        samples_file.check_names(samples, arrays, [port.name for port in origin.inputs])
    elif batch == "none":  # the example is one sample
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    ports = [_complete(port, arrays, batch, origin) for port in origin.inputs]
    has_batch, is_batched = _batch(origin, ports, batch)
    axes, dimensions = _dimensions(ports, arrays, sizes, has_batch, bool(samples))
    return axes, dimensions, has_batch, is_batched


def _complete(port: TensorSpec, arrays: Arrays, batch: str, origin: ModelSource) -> TensorSpec:
    """Complete the type and sizes of an input from its samples."""
    if port.dtype:
        if port.name in arrays and origin.example is None:
            _check_rank(port, arrays[port.name], batch)
        return port
    if port.name not in arrays:
        raise ParameterError(
            f"{origin.path} does not declare type and shape of its input '{port.name}'. Use "
            "--samples, with one row per sample."
        )
    array = arrays[port.name]
    free_batch = () if batch == "none" else ("",)
    return TensorSpec(port.name, str(array.dtype), (*free_batch, *array.shape[1:]))


def _check_rank(port: TensorSpec, array: NDArray[Any], batch: str) -> None:
    declared = port.shape if batch == "none" else port.shape[1:]
    fits = array.ndim == len(declared) + 1 and all(
        isinstance(size, str) or size == sample_size
        for size, sample_size in zip(declared, array.shape[1:], strict=True)
    )
    if not fits:
        expected = " x ".join(["rows", *(str(size or "any") for size in declared)])
        shape = samples_file.spell(array.shape)
        raise DataError(f"the samples of '{port.name}' are {shape}, but the input takes {expected}")


def _batch(origin: ModelSource, ports: Sequence[TensorSpec], batch: str) -> tuple[bool, bool]:
    """Return whether tensors have a batch and whether it is free; raise if that is unknown."""
    if batch == "none":
        return False, False
    if batch not in ("", "1"):
        raise ParameterError(f"Invalid --batch {batch}. Use 1 or none.")
    for port in ports:
        first = port.shape[0] if port.shape else "missing"
        is_fixed = isinstance(first, int)
        if batch and (not port.shape or (is_fixed and first != 1)):
            raise ParameterError(
                f"--batch 1 does not match the input '{port.name}', whose first dimension is "
                f"{first}. Use --batch none if that is not a batch."
            )
        if not port.shape:
            raise ParameterError(
                f"The input '{port.name}' has no batch dimension. Use --batch none: each request "
                "is then one sample."
            )
        if is_fixed and not batch and origin.example is None:
            shape = samples_file.spell([size or "any" for size in port.shape])
            raise ParameterError(
                f"The input '{port.name}' is {shape}, with a fixed first dimension. Export the "
                "model with a free one. Or use --batch 1 for a batch of one sample, --batch none "
                "for no batch."
            )
    return True, not batch


def _dimensions(
    ports: Sequence[TensorSpec],
    arrays: Arrays,
    user_sizes: Mapping[str, int],
    has_batch: bool,
    are_samples: bool,
) -> tuple[tuple[TensorSpec, ...], dict[str, int]]:
    """Return the free dimensions by name, with the size that samples or the user's options give."""
    dimensions: dict[str, int] = {}
    axes, free = [], dict[str, str]()
    for port in ports:
        shape = list(port.shape[int(has_batch) :])
        for index, size in enumerate(shape):
            if isinstance(size, int):
                continue
            name = size if size.isidentifier() else re.sub(r"\W", "_", f"{port.name}_{index + 1}")
            shape[index] = name
            if port.name in arrays and (are_samples or name not in user_sizes):
                here = arrays[port.name].shape[index + 1]
                if (other := dimensions.setdefault(name, here)) != here:
                    raise DataError(f"The samples have two sizes of '{name}', {other} and {here}")
                if user_sizes.get(name, here) != here:
                    fault = f"--dimension {name}={user_sizes[name]} does not match the samples"
                    raise ParameterError(f"{fault}, in which it is {here}. Leave it out.")
            elif name in user_sizes:
                dimensions[name] = user_sizes[name]
            else:
                free.setdefault(name, port.name)
        axes.append(replace(port, shape=tuple(shape)))
    if missing := sorted(set(free) - set(dimensions)):
        options = " ".join(f"--dimension {name}=SIZE" for name in missing)
        raise ParameterError(
            f"The input '{free[missing[0]]}' has free dimensions: {', '.join(missing)}. Use "
            f"--samples, whose shapes set them, or {options}"
        )
    if unknown := sorted(set(user_sizes) - set(dimensions)):
        has = ", ".join(dimensions) or "none"
        raise ParameterError(f"Unknown --dimension {unknown[0]}. The free dimensions are {has}.")
    return tuple(axes), dimensions
