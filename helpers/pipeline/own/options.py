"""What can be made of a model's source: an experiment for each format and precision, and why others
are left out.
"""

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
TRIED_BYTES = 500e6  # of a graph that is read by OpenVINO to see whether it can
# Of a trace, and of others that it is compared on: the first samples, where it takes one at once
BATCHES = (slice(0, 2), slice(2, 5), slice(5, 6))
CLOSE = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}  # a trace and the network on the same batch
# more than one path leads to some formats: the first of these that a framework has is exported
EXPORTS = ("onnx", "tf-savedmodel", "ts-trace", "ts-script")


@dataclass(frozen=True)
class Option:
    """An experiment that can be tried."""

    name: str
    fields: dict[str, str]

    @property
    def changes_precision(self) -> bool:
        """Return whether `convert` has something to show: see `config.loading.configure`."""
        return self.fields["precision"] != self.fields["export_precision"]


def options(
    found: InspectedModel, device: str, calibrated: int, asked: float
) -> tuple[list[Option], dict[str, str]]:
    """List the experiments on a device, and why formats and precisions are left out.

    `calibrated` is how many samples there are to calibrate int8 by, and `asked` the share of
    decisions that must be kept.
    """
    framework = found.origin.framework
    if found.origin.backend:
        as_it_is = {"export_format": "triton", "export_precision": "fp32"}
        return [Option("as-it-is", as_it_is | {"format": "triton", "precision": "fp32"})], {}
    exports = [
        name
        for name in EXPORTS
        if framework in formats.get(name).SOURCES and device in formats.get(name).PRECISIONS
    ]
    if found.origin.kind == "savedmodel":
        exports = ["tf-savedmodel"]
    left_out = _left_out(found)
    coarse = rounding.rejected_precisions(found.effects, found.apart, asked)
    options = []
    for name in sorted(formats.names(), key=lambda each: (each not in exports, each)):
        known = formats.get(name)
        sources = [each for each in exports if each == name or each in known.SOURCES]
        if not sources:
            continue
        if device not in known.PRECISIONS:
            other = next(iter(known.PRECISIONS))
            left_out[name] = f"it runs only on a {other} (--device {other})"
        source = name if name in sources else sources[0]
        for precision in known.PRECISIONS.get(device, ()):
            called = f"{SHORT.get(name, name)}-{precision}"
            if precision == "int8" and not calibrated:
                left_out[called] = "it needs at least 32 real samples (--samples)"
            elif name == source and precision == "fp16" and found.origin.kind in AS_IT_IS:
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
        place = found.origin.function or found.origin.path
        raise FormatError(f"{place} cannot be converted to any format: {why}")
    return options, left_out


def _left_out(found: InspectedModel) -> dict[str, str]:
    """Return the formats that this model cannot become, and why, as far as trying is quick."""
    if found.origin.framework == "torch":
        return _of_torch(found)
    if not isinstance(found.network, Graph) or found.origin.kind != "onnx":
        return {}
    if found.network.content.ByteSize() > TRIED_BYTES:
        return {}
    formats.block_telemetry()

    import openvino

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(found.network.content.SerializeToString())
        level = logging.root.level
        try:
            openvino.convert_model(path)
        except Exception as error:  # front ends raise anything
            return {"openvino": f"OpenVINO rejects it: {' '.join(str(error).split())[-200:]}"}
        finally:
            logging.root.setLevel(level)  # after a failure it stays as OpenVINO set it
    return {}


def _of_torch(found: InspectedModel) -> dict[str, str]:
    """Trace and script a module: what tracing would fix, and what scripting does not take."""
    import torch

    own, config, left_out = Own("draft", found.description), fields(found), dict[str, str]()
    network = own.build(config, found.origin.path)  # what it returns is known by now
    chosen = BATCHES if found.description.is_batched else [slice(row, row + 1) for row in range(3)]
    tensors, traced = [torch.from_numpy(array) for array in found.samples.values()], None
    batches = [tuple(each[rows] for each in tensors) for rows in chosen]
    with warnings.catch_warnings(record=True) as noticed, torch.no_grad():
        warnings.simplefilter("always")
        try:
            traced = torch.jit.trace(network, batches[0], check_trace=False)
        except Exception as error:  # the user's own code is run
            left_out["ts-trace"] = f"tracing failed: {' '.join(str(error).split())[:200]}"
    warned = [
        f"{Path(each.filename).name}, line {each.lineno}"
        for each in noticed
        if "might cause the trace to be incorrect" in str(each.message)
        and not Path(each.filename).is_relative_to(Path(torch.__file__).parent)
    ]
    if warned and (
        why := _fixed(network, traced, batches, found.description.is_batched, warned[0])
    ):
        left_out |= dict.fromkeys(("ts-trace", "onnx", "openvino"), why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.jit.script(network)
        except Exception as error:  # so says TorchScript's compiler
            reason = " ".join(str(error).split())[:120]
            left_out["ts-script"] = f"TorchScript cannot compile it: {reason}"
    return left_out


def _fixed(
    network: Network, traced: Any, batches: Sequence[Any], is_batched: bool, warned: str
) -> str:
    """Return where values or the batch decide what a network computes, which a trace or a graph
    would fix; empty if they do not. PyTorch warns (at `warned`) of sizes that are compared too.
    """
    import torch

    batch = {0: torch.export.Dim("batch")} if is_batched else {}
    inside = Path(torch.__file__).parent
    logging.disable()  # it logs and prints the graph, up to what it refuses
    try:
        with redirect_stderr(StringIO()), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            shapes = tuple(batch for _ in batches[0])
            program = torch.export.export(network, batches[0], dynamic_shapes=shapes, strict=False)
            for given in batches:
                for made in (traced or network, program.module(check_guards=False)):
                    torch.testing.assert_close(made(*given), network(*given), **CLOSE)
    except Exception as error:  # of a comparison, or of the user's own code
        if "data-dependent" not in str(error):
            reason = " ".join(str(error).split())[:150]
            return f"a trace or a graph would be wrong for other batches ({warned}): {reason}"
        frames = traceback.extract_tb(error.__traceback__)
        last = [each for each in frames if not Path(each.filename).is_relative_to(inside)][-1]
        place = f"{Path(last.filename).name}, line {last.lineno}"
        return f"the control flow depends on values ({place}), and a trace or a graph would fix it"
    finally:
        logging.disable(logging.NOTSET)
    return ""
