"""Post-training quantisation: int8 graphs whose scales are decided by training samples.

Weights have a scale for each output channel, activations one for each tensor (Jacob et al.,
arXiv 1712.05877; Nagel et al., arXiv 2106.08295).

A CPU without VNNI adds two products of 8 bits in 16, where they may not fit. There weights have 7
bits if 8 bits exceed the tolerances, or if there are no tolerances (ONNX Runtime's "reduce range",
NNCF's "overflow fix").
"""

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.formats import Array, Arrays, instructions

if TYPE_CHECKING:
    import onnx
    import openvino

Record = Callable[..., None]  # see `Build.record`
Sample = tuple[Arrays, tuple[Array, ...]]  # a batch, and what the fp32 graph computes of it
Item = tuple[tuple[Array, ...], tuple[Array, ...]]  # a batch's outputs in int8 and in fp32

# In a graph with convolutions every operator that can stays in int8. In others the rest loses more
# accuracy than it gains speed: a mask of -10,000 before a softmax takes a tensor's whole range.
PRODUCTS = ["MatMul", "Gemm"]
CHECKED = 16  # batches by which layers are chosen that go back to fp32
UNLIMITED = (inf, inf)
CONVOLUTIONS = {"Conv", "Convolution", "GroupConvolution"}  # in ONNX, in OpenVINO


def _ranges(tolerances: tuple[float, float]) -> list[bool]:
    """Return whether weights are to have 7 bits, in the order in which to try."""
    if instructions("int8"):
        return [False]
    return [True] if tolerances == UNLIMITED else [False, True]


def quantise_onnx(
    source: Path,
    path: Path,
    calibration: Sequence[Arrays],
    tolerances: tuple[float, float] = UNLIMITED,
    symmetric: bool = False,
    record: Record = lambda *_, **__: None,
) -> None:
    """Write the fp32 graph `source` with QuantizeLinear and DequantizeLinear around each tensor
    that is to be int8: ONNX Runtime computes in int8 what stands between two such pairs.

    An activation's range is that of the samples. While their outputs exceed `tolerances`, as in
    `quantise_openvino`, the layer that costs most accuracy goes back to fp32. `symmetric` is what
    TensorRT reads: ranges with 0 in their middle, and biases in fp32. `record` records the call.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self._batches = iter(calibration)

        def get_next(self) -> Arrays | None:
            return next(self._batches, None)

    kind = quantization.QuantType
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".int8-") as folder, _quiet():
        folded = Path(folder) / path.name  # batch normalisation within the convolution before it
        quant_pre_process(str(source), str(folded), skip_symbolic_shape=True)
        exact = onnx.load(folded)
        has_convolutions = bool(CONVOLUTIONS & {node.op_type for node in exact.graph.node})
        ranges = [False] if symmetric else _ranges(tolerances)  # on a GPU nothing overflows
        samples = calibration[:: ceil(len(calibration) / CHECKED)]
        expected = [] if tolerances == UNLIMITED else _outputs(exact, samples)

        def used(graph: "onnx.ModelProto") -> float:
            outputs = zip(_outputs(graph, samples), expected, strict=True)
            return _tolerance_usage_of(outputs, tolerances)

        for reduced in ranges:
            options = {
                "op_types_to_quantize": None if has_convolutions else PRODUCTS,
                "per_channel": True,
                "reduce_range": reduced,
                # unsigned by signed is what AVX512-VNNI multiplies
                "activation_type": kind.QInt8 if symmetric else kind.QUInt8,
                "weight_type": kind.QInt8,
                "extra_options": {
                    "ActivationSymmetric": symmetric,
                    "QuantizeBias": not symmetric,
                    # a product's result is rounded only where the next one takes it, logits not
                    "OpTypesToExcludeOutputQuantization": PRODUCTS,
                },
            }
            quantization.quantize_static(str(folded), str(path), Reader(), **options)
            quantised = onnx.load(path)
            if not has_convolutions:  # other operators take a product's input unrounded
                others = [node.name for node in exact.graph.node if node.op_type not in PRODUCTS]
                quantised = _revert_to_fp32(quantised, exact, others)
            if reduced == ranges[-1] or used(quantised) <= 1:
                break
        record("onnxruntime.quantization.quantize_static", "source", "target", "samples", **options)
        if tolerances != UNLIMITED and used(quantised) > 1:
            quantised = _with_accuracy_control(quantised, exact, used)
        onnx.save(quantised, path)


def _with_accuracy_control(
    quantised: "onnx.ModelProto",
    exact: "onnx.ModelProto",
    used: "Callable[[onnx.ModelProto], float]",
) -> "onnx.ModelProto":
    """Return `quantised` with the fewest fp32 layers, from `exact`, whose outputs are within the
    tolerances: `used` is at most 1. The layers that cost most on their own are the first.
    """

    def reverted(names: Iterable[str]) -> "onnx.ModelProto":
        return _revert_to_fp32(quantised, exact, names)

    layers = [node.name for node in exact.graph.node if node.op_type in {*PRODUCTS, *CONVOLUTIONS}]
    costliest = sorted(layers, key=lambda name: used(reverted([name])))
    for count in range(1, len(layers)):
        if used(graph := reverted(costliest[:count])) <= 1:
            return graph
    return reverted(layers)


def _outputs(graph: "onnx.ModelProto", samples: Iterable[Arrays]) -> list[tuple[Array, ...]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [tuple(session.run(None, batch)) for batch in samples]


def _revert_to_fp32(
    quantised: "onnx.ModelProto", exact: "onnx.ModelProto", names: Iterable[str]
) -> "onnx.ModelProto":
    """Return a copy of `quantised` whose nodes `names` have their inputs in `exact`."""
    from onnx import ModelProto

    reverted = ModelProto()
    reverted.CopyFrom(quantised)
    graph, inputs = reverted.graph, {node.name: list(node.input) for node in exact.graph.node}
    chosen = set(names) - {""}
    for node in graph.node:
        if node.name in chosen:
            node.input[:] = inputs[node.name]
    results, idle = {output.name for output in graph.output}, list(graph.node)
    while idle:
        read = results.union(*(node.input for node in graph.node))
        idle = [node for node in graph.node if not read & set(node.output)]
        for node in idle:
            graph.node.remove(node)
    # of biases too, from their int32
    read -= {name for node in graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in (*exact.graph.initializer, *graph.initializer)}
    del graph.initializer[:]
    graph.initializer.extend(tensor for name, tensor in stored.items() if name in read)
    return reverted


def _tolerance_usage_of(items: Iterable[Item], tolerances: tuple[float, float]) -> float:
    """Return the share of `tolerances` that outputs of some batches use; up to 1 is within them.

    An output that is constant within a batch is scaled by its deviation over all batches.
    """
    batches = list(items)
    outputs = zip(*(expected for _, expected in batches), strict=True)
    overall = [_deviation(np.concatenate([*map(np.ravel, output)])) for output in outputs]
    used = []
    for batch in batches:
        for quantised, reference, fallback in zip(*batch, overall, strict=True):
            difference = np.abs(np.subtract(quantised, reference, dtype=np.float64))
            difference /= reference.std(dtype=np.float64) or fallback
            used.append((difference.max() / tolerances[0], difference.mean() / tolerances[1]))
    return float(max(np.max(used, axis=0)[0], np.mean(used, axis=0)[1]))


def _deviation(output: Array) -> float:
    """Return the standard deviation of an output; the size of one that is constant, or 1."""
    return float(output.std(dtype=np.float64) or np.abs(output).max() or 1)


def quantise_openvino(
    model: "openvino.Model",
    calibration: Sequence[Arrays],
    tolerances: tuple[float, float],
    record: Record = lambda *_, **__: None,
) -> "openvino.Model":
    """Quantise by NNCF. While the outputs of the samples exceed `tolerances`, the layer that costs
    most accuracy goes back to fp32.

    `tolerances` are the largest max and mean difference, in standard deviations of each output.
    `record` records the call.
    """
    import openvino

    with _quiet():
        import nncf  # type: ignore[import-untyped, unused-ignore]
        from nncf.quantization import range_estimator  # type: ignore[import-untyped, unused-ignore]
    exact = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    items = [(batch, tuple(exact(batch).values())) for batch in calibration]

    def measure(compiled: "openvino.CompiledModel", items: Iterable[Sample]) -> tuple[float, None]:
        """Return how much of the tolerances is left, as a metric: 1 is best, below 0 is too far."""
        outputs = ((tuple(compiled(batch).values()), expected) for batch, expected in items)
        return 1 - _tolerance_usage_of(outputs, tolerances), None

    kinds = {node.get_type_name() for node in model.get_ops()}
    ignored = [] if CONVOLUTIONS & kinds else sorted(kinds - set(PRODUCTS))
    samples = nncf.Dataset(items, lambda item: item[0])
    # not the mean of what each batch reaches
    reached = range_estimator.RangeEstimatorParametersSet.MINMAX
    options = {
        "subset_size": len(calibration),
        "preset": nncf.QuantizationPreset.MIXED,  # a zero point for activations of both signs
        "ignored_scope": nncf.IgnoredScope(types=ignored, validate=False),
    }
    recorded = {"subset_size": len(calibration), "preset": options["preset"]}
    scope = f"ignored_scope=nncf.IgnoredScope(types={ignored})"
    with _quiet():
        for reduced in _ranges(tolerances):
            advanced = nncf.AdvancedQuantizationParameters(
                overflow_fix=nncf.OverflowFix.ENABLE if reduced else None,
                activations_range_estimator_params=reached if ignored else None,
            )
            quantised = nncf.quantize(model, samples, advanced_parameters=advanced, **options)
            if measure(openvino.Core().compile_model(quantised, "CPU"), items)[0] >= 0:
                record("nncf.quantize", "model", "samples", scope, **recorded)
                return quantised
        # rarely needed: this quantises once more, and runs the fp32 graph over all samples
        of = "nncf.quantize_with_accuracy_control"
        record(of, "model", "samples", "samples", "measure", scope, max_drop=1.0, **recorded)
        options |= {"advanced_quantization_parameters": advanced, "max_drop": 1.0}
        return nncf.quantize_with_accuracy_control(model, samples, samples, measure, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars, and the messages of the quantisers on their steps."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
