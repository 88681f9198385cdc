"""What can be made of a model's source: an experiment for each format and precision, and why others
are left out.
"""

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from helpers import formats
from helpers.errors import FormatError
from helpers.models import Graph
from helpers.own import rounding
from helpers.own.draft import Draft, drafted, fields

SHORT = {"tf-savedmodel": "savedmodel"}  # in names of experiments
AS_IT_IS = ("onnx", "savedmodel")  # kinds whose file is exported without a change
TRIED_BYTES = 500e6  # of a graph that is read by OpenVINO to see whether it can
# more than one path leads to some formats: the first of these that a framework has is exported
EXPORTS = ("onnx", "tf-savedmodel", "ts-trace", "ts-script")


@dataclass(frozen=True)
class Option:
    """An experiment that can be tried."""

    name: str
    fields: dict[str, str]


def options(
    found: Draft, device: str, calibrated: int, asked: float
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
    coarse = rounding.too_coarse(found.effects, found.apart, asked)
    options = []
    for name in sorted(formats.names(), key=lambda each: (each not in exports, each)):
        known = formats.get(name)
        sources = [each for each in exports if each == name or each in known.SOURCES]
        if not sources:
            continue
        if device not in known.PRECISIONS:
            other = next(iter(known.PRECISIONS))
            left_out[name] = f"it runs on a {other} alone: --device {other}"
        source = name if name in sources else sources[0]
        for precision in known.PRECISIONS.get(device, ()):
            called = f"{SHORT.get(name, name)}-{precision}"
            if precision == "int8" and not calibrated:
                left_out[called] = "its scales are decided by real samples, 32 at least: --samples"
            elif name == source and precision == "fp16" and found.origin.kind in AS_IT_IS:
                left_out[called] = "its file is exported as it is, in fp32"
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
        raise FormatError(f"nothing can be made of {place} here: {why}")
    return options, left_out


def _left_out(found: Draft) -> dict[str, str]:
    """Say of the formats that this model cannot become why, as far as trying is quick."""
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
            return {"openvino": f"OpenVINO refuses it: {' '.join(str(error).split())[-200:]}"}
        finally:
            logging.root.setLevel(level)  # after a failure it stays as OpenVINO set it
    return {}


def _of_torch(found: Draft) -> dict[str, str]:
    """Trace and script a module: what tracing would fix, and what scripting does not take."""
    import torch

    from helpers.models._own import data

    own, config, left_out = drafted("draft", found), fields(found), dict[str, str]()
    network = own.build(config, found.origin.path)  # what it returns is known by now
    below = {each.name: each.below for each in found.inputs}
    arrays = data.drawn(own.inputs(config), below, 1)
    arguments = tuple(torch.from_numpy(array) for array in arrays.values())
    with warnings.catch_warnings(record=True) as noticed, torch.no_grad():
        warnings.simplefilter("always")
        try:
            torch.jit.trace(network, arguments, check_trace=False)
        except Exception as error:  # the user's own code is run
            left_out["ts-trace"] = f"it is not traced: {' '.join(str(error).split())[:200]}"
    fixed = [
        each
        for each in noticed
        if "might cause the trace to be incorrect" in str(each.message)
        and not Path(each.filename).is_relative_to(Path(torch.__file__).parent)
    ]
    if fixed:
        place = f"{fixed[0].filename.rpartition('/')[2]}, line {fixed[0].lineno}"
        why = f"its control flow depends on values ({place}), which a trace or a graph would fix"
        left_out |= {"ts-trace": why, "onnx": why, "openvino": why}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.jit.script(network)
        except Exception as error:  # so says TorchScript's compiler
            reason = " ".join(str(error).split())[:120]
            left_out["ts-script"] = f"TorchScript does not compile it: {reason}"
    return left_out
