"""Post-training quantisation: int8 graphs whose scales are decided by training samples.

Weights have a scale for each output channel, activations one for each tensor (Jacob et al.,
arXiv 1712.05877; Nagel et al., arXiv 2106.08295).
"""

import io
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from helpers.formats import Array, Arrays

if TYPE_CHECKING:
    import openvino

Item = tuple[Arrays, tuple[Array, ...]]  # a batch, and what the fp32 graph computes of it

# In a graph with convolutions every operator that can stays in int8. In others the rest loses more
# accuracy than it gains speed: a mask of -10,000 before a softmax takes a tensor's whole range.
PRODUCTS = ["MatMul", "Gemm"]
CONVOLUTIONS = {"Conv", "Convolution", "GroupConvolution"}  # in ONNX, in OpenVINO


def quantise_onnx(
    source: Path, path: Path, calibration: Sequence[Arrays], symmetric: bool = False
) -> None:
    """Write the fp32 graph `source` with QuantizeLinear and DequantizeLinear around each tensor
    that is to be int8: ONNX Runtime computes in int8 what stands between two such pairs.

    An activation's range is what the samples reach. `symmetric` is what TensorRT reads: ranges with
    0 in their middle, and biases that stay in fp32.
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
        operators = {each.op_type for each in onnx.load(folded).graph.node}
        quantization.quantize_static(
            str(folded),
            str(path),
            Reader(),
            op_types_to_quantize=None if CONVOLUTIONS & operators else PRODUCTS,
            per_channel=True,
            # unsigned by signed is what AVX512-VNNI multiplies
            activation_type=kind.QInt8 if symmetric else kind.QUInt8,
            weight_type=kind.QInt8,
            extra_options={"ActivationSymmetric": symmetric, "QuantizeBias": not symmetric},
        )


def quantise_openvino(
    model: "openvino.Model", calibration: Sequence[Arrays], bounds: tuple[float, float]
) -> "openvino.Model":
    """Quantise by NNCF. While the outputs of the samples are further from those in fp32 than
    `bounds`, the layer that costs most accuracy goes back to fp32.

    `bounds` are the largest max and mean difference, in standard deviations of each output.
    """
    import openvino

    with _quiet():
        import nncf  # type: ignore[import-untyped, unused-ignore]
    exact = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    right = [tuple(exact(batch).values()) for batch in calibration]

    def measure(compiled: "openvino.CompiledModel", items: Iterable[Item]) -> tuple[float, None]:
        """Give how much of the bounds is left, as a metric: 1 is best, below 0 is too far."""
        used = []
        for batch, references in items:
            for found, reference in zip(compiled(batch).values(), references, strict=True):
                apart = np.abs(np.subtract(found, reference, dtype=np.float64))
                apart /= reference.std(dtype=np.float64)
                used.append((apart.max() / bounds[0], apart.mean() / bounds[1]))
        return 1 - float(max(np.max(used, axis=0)[0], np.mean(used, axis=0)[1])), None

    kinds = {each.get_type_name() for each in model.get_ops()}
    ignored = [] if CONVOLUTIONS & kinds else sorted(kinds - set(PRODUCTS))
    items: list[Item] = list(zip(calibration, right, strict=True))
    samples = nncf.Dataset(items, lambda item: item[0])
    with _quiet():
        return nncf.quantize_with_accuracy_control(
            model,
            samples,
            samples,
            measure,
            max_drop=1.0,
            subset_size=len(calibration),
            preset=nncf.QuantizationPreset.MIXED,  # a zero point for activations of both signs
            ignored_scope=nncf.IgnoredScope(types=ignored, validate=False),
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars, and what the quantisers say of their own steps."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
