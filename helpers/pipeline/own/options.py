"""List the experiments of a new model: its formats and precisions, and why others are left out."""

import logging
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from helpers import formats
from helpers.errors import FormatError, one_line
from helpers.measure import QUANTISED
from helpers.models import Arrays, Graph
from helpers.models._arrays import take
from helpers.models._own.data import spell
from helpers.pipeline.own import rounding
from helpers.pipeline.own.draft import InspectedModel

SHORT = {"tf-savedmodel": "savedmodel"}  # in names of experiments
AS_IT_IS = ("onnx", "savedmodel")  # kinds whose file is exported without a change
TRIED_BYTES = 500e6  # the largest source whose formats are tried
# The batch that exporters see, and batches of other sizes for the check; without a batch, samples
BATCHES = (slice(0, 2), slice(2, 5), slice(5, 6))
CLOSE = 1e-3  # relative to the largest value: a format in fp32 and the source on the same batch
# a framework may have several of these: the first is exported
EXPORTS = ("onnx", "tf-savedmodel", "ts-trace", "ts-script")


class Option(NamedTuple):
    """An experiment of a new model."""

    name: str
    fields: dict[str, str]


def options(
    model: InspectedModel, device: str, calibration_count: int, min_match_rate: float
) -> tuple[list[Option], dict[str, str]]:
    """List the experiments on a device, and why formats and precisions are left out.

    `calibration_count` is the number of samples that calibrate int8. `min_match_rate` is the share
    of decisions that rounding must not change.
    """
    framework = model.origin.framework
    if model.origin.backend:
        as_it_is = {"export_format": "triton", "export_precision": "fp32"}
        return [Option("as-it-is", as_it_is | {"format": "triton", "precision": "fp32"})], {}
    exports = [
        name
        for name in EXPORTS
        if framework in formats.get(name).SOURCES and device in formats.get(name).PRECISIONS
    ]
    if model.origin.kind == "savedmodel":
        exports = ["tf-savedmodel"]
    left_out = dict[str, str]()
    if framework == "torch" and (why := _decides_by_values(model)):
        left_out |= dict.fromkeys(("ts-trace", "onnx", "openvino"), why)
    coarse = rounding.rejected_precisions(model.effects, model.apart, min_match_rate)
    options = []
    for name in sorted(formats.names(), key=lambda entry: (entry not in exports, entry)):
        file_format = formats.get(name)
        sources = [export for export in exports if export == name or export in file_format.SOURCES]
        if not sources:
            continue
        if device not in file_format.PRECISIONS:
            other = next(iter(file_format.PRECISIONS))
            left_out[name] = f"it runs only on a {other} (--device {other})"
        source = name if name in sources else sources[0]
        for precision in file_format.PRECISIONS.get(device, ()):
            called = f"{SHORT.get(name, name)}-{precision}"
            if precision == "int8" and not calibration_count:
                left_out[called] = "it needs at least 32 real samples (--samples)"
            elif name == source and precision == "fp16" and model.origin.kind in AS_IT_IS:
                left_out[called] = "the file is exported unchanged, in fp32"
            elif precision in coarse:
                left_out[called] = coarse[precision]
            if {called, name, source} & set(left_out):
                continue
            is_own = source == name and precision != "int8"
            chosen = {"export_format": source, "export_precision": precision if is_own else "fp32"}
            chosen |= {"format": name, "precision": precision}
            options.append(Option(called, chosen))
    if device == "cpu" and model.weight_bytes < TRIED_BYTES:
        failures = _tried(model, options)
        kept = {option.fields["format"] for option in options if option.name not in failures}
        for name, fields in options:
            if name in failures:  # a format of which nothing is left has one line
                of = fields["format"]
                left_out.setdefault(name if of in kept else of, failures[name])
        options = [option for option in options if option.name not in failures]
    if not options:
        why = "; ".join(dict.fromkeys(why for why in left_out.values() if "only on" not in why))
        location = model.origin.function or model.origin.path
        raise FormatError(f"{location} cannot be converted to any format: {why}")
    return options, left_out


def _tried(model: InspectedModel, chosen: Sequence[Option]) -> dict[str, str]:
    """Make each option once of a few samples, and run it; return why those that fail are left out.

    In fp32 its outputs must be the source's for batches of other sizes than that which it saw.
    """
    failures = dict[str, str]()
    rows = BATCHES if model.description.is_batched else [slice(row, row + 1) for row in range(3)]
    batches = [take(model.samples, each) for each in rows]
    right = [model.run(batch) for batch in batches]
    network = model.network.content if isinstance(model.network, Graph) else model.network
    formats.block_telemetry()
    with TemporaryDirectory() as folder, _silence():
        made: dict[tuple[str, str], Path | str] = {}  # files, or why there is none
        for option in chosen:
            fields = option.fields
            export = fields["export_format"], fields["export_precision"]
            served = fields["format"], fields["precision"]
            for key in dict.fromkeys((export, served)):
                if key in made or isinstance(made.get(export), str):
                    continue
                source: Any = made.get(export, network)
                place = Path(folder) / "-".join(key)
                try:
                    path = made[key] = _make(*key, source, place, batches[0], right[0])
                    session = formats.get(key[0]).load(path, 1, "cpu")
                    for batch, outputs in zip(batches, right, strict=True):
                        _compare(session.run(batch), outputs, key[1])
                except Exception as error:  # exporters and runtimes raise anything
                    made[key] = one_line(error, 200)
            if isinstance(why := made.get(served, made[export]), str):
                failures[option.name] = why
    return failures


def _make(
    name: str, precision: str, source: Any, folder: Path, batch: Arrays, outputs: Arrays
) -> Path:
    """Make a file of a format; raise an error if int8 quantised nothing."""
    file_format = formats.get(name)
    folder.mkdir()
    path, calibration = folder / file_format.FILE, [batch] if precision == "int8" else []
    build = formats.Build(precision, batch, tuple(outputs), calibration=calibration)
    file_format.make(source, path, build)
    if precision == "int8" and file_format.describe:
        kinds = file_format.describe(path)["operators"]
        if not any(kind in kinds for kind in QUANTISED):
            raise FormatError("nothing in it can be quantised")
    return path


def _compare(found: Arrays, right: Arrays, precision: str) -> None:
    """Raise an error if outputs have other shapes than the source's, or in fp32 other values."""
    for name, array in right.items():
        if found[name].shape != array.shape:
            raise FormatError(f"the output '{name}' has the shape {spell(found[name].shape)}")
        scale = np.abs(array[np.isfinite(array)]).max(initial=0)
        near = np.isclose(found[name], array, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)
        if precision == "fp32" and array.dtype.kind == "f" and not near.all():
            share = 1 - float(near.mean())
            raise FormatError(f"{share:.0%} of the output '{name}' differ from the source's")


def _decides_by_values(model: InspectedModel) -> str:
    """Return where the control flow of a PyTorch module depends on values; empty if nowhere."""
    import torch

    is_batched, inside = model.description.is_batched, Path(torch.__file__).parent
    batch = {0: torch.export.Dim("batch")} if is_batched else {}
    rows = BATCHES[0] if is_batched else slice(1)
    tensors = tuple(torch.from_numpy(array[rows]) for array in model.samples.values())
    shapes = tuple(batch for _ in tensors)
    try:
        with _silence(), torch.no_grad():
            torch.export.export(model.network, tensors, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # from the exporter or the user's code
        if "data-dependent" in str(error):
            frames = traceback.extract_tb(error.__traceback__)
            last = [each for each in frames if not Path(each.filename).is_relative_to(inside)][-1]
            where = f"{Path(last.filename).name}, line {last.lineno}"
            fault = f"the control flow depends on values ({where})"
            return f"{fault}, and a trace or a graph would fix it"
    return ""


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what exporters log, warn of and print: a failure is said once, by the caller."""
    level = logging.root.level
    logging.disable()
    try:
        with (
            formats.silent_stderr(),
            redirect_stderr(StringIO()),
            redirect_stdout(StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)
        logging.root.setLevel(level)  # OpenVINO does not reset it after a failure
