"""List the experiments of a new model: its formats and precisions, and why others are left out."""

import logging
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helpers import formats
from helpers.errors import FormatError
from helpers.models import Graph, Network
from helpers.models._own import Own
from helpers.pipeline.own import rounding
from helpers.pipeline.own.draft import InspectedModel, fields

SHORT = {"tf-savedmodel": "savedmodel"}  # in names of experiments
AS_IT_IS = ("onnx", "savedmodel")  # kinds whose file is exported without a change
TRIED_BYTES = 500e6  # the largest graph whose conversion OpenVINO tries
# The batch of a trace, and batches of other sizes for its check; without a batch, single samples
BATCHES = (slice(0, 2), slice(2, 5), slice(5, 6))
CLOSE = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}  # a trace and the network on the same batch
# a framework may have several of these: the first is exported
EXPORTS = ("onnx", "tf-savedmodel", "ts-trace", "ts-script")


@dataclass(frozen=True)
class Option:
    """An experiment of a new model."""

    name: str
    fields: dict[str, str]

    @property
    def changes_precision(self) -> bool:
        """Return whether `convert` has something to show: see `config.loading.configure`."""
        return self.fields["precision"] != self.fields["export_precision"]


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
    left_out = _left_out(model)
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
    if not options:
        why = "; ".join(dict.fromkeys(left_out[name] for name in left_out if name in exports))
        location = model.origin.function or model.origin.path
        raise FormatError(f"{location} cannot be converted to any format: {why}")
    return options, left_out


def _left_out(model: InspectedModel) -> dict[str, str]:
    """Return the formats that this model cannot be converted to, and why, by quick trials."""
    if model.origin.framework == "torch":
        return _of_torch(model)
    if not isinstance(model.network, Graph) or model.origin.kind != "onnx":
        return {}
    if model.network.content.ByteSize() > TRIED_BYTES:
        return {}
    formats.block_telemetry()

    import openvino

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.network.content.SerializeToString())
        level = logging.root.level
        try:
            openvino.convert_model(path)
        except Exception as error:  # front ends raise anything
            return {"openvino": f"OpenVINO rejects it: {' '.join(str(error).split())[-200:]}"}
        finally:
            logging.root.setLevel(level)  # OpenVINO does not reset it after a failure
    return {}


def _of_torch(model: InspectedModel) -> dict[str, str]:
    """Trace and script a module; return the formats that fail, and why."""
    import torch

    own_model, config, left_out = Own("draft", model.description), fields(model), dict[str, str]()
    network = own_model.build(config, model.origin.path)
    chosen = BATCHES if model.description.is_batched else [slice(row, row + 1) for row in range(3)]
    tensors, traced = [torch.from_numpy(array) for array in model.samples.values()], None
    batches = [tuple(tensor[rows] for tensor in tensors) for rows in chosen]
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        try:
            traced = torch.jit.trace(network, batches[0], check_trace=False)
        except Exception as error:  # the user's code raises anything
            left_out["ts-trace"] = f"tracing failed: {' '.join(str(error).split())[:200]}"
    warned = [
        f"{Path(warning.filename).name}, line {warning.lineno}"
        for warning in caught
        if "might cause the trace to be incorrect" in str(warning.message)
        and not Path(warning.filename).is_relative_to(Path(torch.__file__).parent)
    ]
    if warned and (
        why := _fixed(network, traced, batches, model.description.is_batched, warned[0])
    ):
        left_out |= dict.fromkeys(("ts-trace", "onnx", "openvino"), why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.jit.script(network)
        except Exception as error:  # TorchScript's compiler raises anything
            reason = " ".join(str(error).split())[:120]
            left_out["ts-script"] = f"TorchScript cannot compile it: {reason}"
    return left_out


def _fixed(
    network: Network, traced: Any, batches: Sequence[Any], is_batched: bool, warned: str
) -> str:
    """Return why a trace or a graph would be wrong for other inputs; empty if it would not.

    It is wrong where the control flow depends on values or on the batch. PyTorch warns (at
    `warned`) of comparisons of sizes too.
    """
    import torch

    batch = {0: torch.export.Dim("batch")} if is_batched else {}
    inside = Path(torch.__file__).parent
    logging.disable()  # the exporter logs and prints the graph up to an unsupported operator
    try:
        with redirect_stderr(StringIO()), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = tuple(batch for _ in batches[0])
            program = torch.export.export(network, batches[0], dynamic_shapes=shapes, strict=False)
            for inputs in batches:
                for module in (traced or network, program.module(check_guards=False)):
                    torch.testing.assert_close(module(*inputs), network(*inputs), **CLOSE)
    except Exception as error:  # from a comparison or the user's code
        if "data-dependent" not in str(error):
            reason = " ".join(str(error).split())[:150]
            return f"a trace or a graph would be wrong for other batches ({warned}): {reason}"
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if not Path(frame.filename).is_relative_to(inside)][-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        return f"the control flow depends on values ({where}), and a trace or a graph would fix it"
    finally:
        logging.disable(logging.NOTSET)
    return ""
