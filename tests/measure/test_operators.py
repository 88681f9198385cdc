"""Where the time of a model goes: by the runtimes' own profilers, and in words."""

import numpy as np
import pytest
import torch

from helpers import formats
from helpers.formats import Build, instructions
from helpers.measure.operators import explain, grouped
from helpers.results import Operator, Profile

WIDTH, SAMPLES = 256, 64


def batch():
    values = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH))
    return {"x": values.astype(np.float32)}


def exported(folder, inputs, *layers):
    network, path = torch.nn.Sequential(*layers).eval(), folder / "model.onnx"
    formats.get("onnx").make(network, path, Build("fp32", inputs, ("y",), opset=17))
    return path


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Three products with an activation between them, as ONNX."""
    torch.manual_seed(0)
    first, second, third = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
    layers = (first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)
    return exported(tmp_path_factory.mktemp("graph"), batch(), *layers)


def quantised(path, inputs):
    """Quantise a graph to int8, by the extremes of one batch."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Once(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([inputs])

        def get_next(self):
            return next(self.batches, None)

    target = path.with_name(f"{path.stem}-int8.onnx")
    quantize_static(path, target, Once(), quant_format=QuantFormat.QDQ, per_channel=True)
    return target


def profiled(name, path, inputs=None):
    return formats.get(name).profile(path, 1, inputs or batch())


def test_onnx_runtime_tells_each_operators_time_and_precision(graph):
    found = profiled("onnx", graph)

    products = [each for each in found if "Gemm" in each["kind"]]
    told = [(each["kernel"], each["precision"], each["ms"] > 0) for each in products]
    assert told == [("CPU", "fp32", True)] * 3


def test_what_computes_in_int8_is_told_from_what_was_asked_for(graph):
    found = grouped(profiled("onnx", quantised(graph, batch())))

    products = [each for each in found if "Gemm" in each.kind or "MatMul" in each.kind]
    assert {each.precision for each in products} == {"int8"}
    for asked in ("int8", "fp32"):
        lines = "".join(explain(found, asked, instructions(asked)))
        assert ("requested precision" in lines) == (asked == "fp32")


def test_the_conversions_of_a_quantised_graph_are_among_its_operators(tmp_path):
    layers = [each for _ in range(4) for each in (torch.nn.Linear(8, 8), torch.nn.ELU())]
    inputs = {"x": np.ones((2_000, 8), np.float32)}
    path = exported(tmp_path, inputs, *layers)

    found = grouped(profiled("onnx", quantised(path, inputs), inputs))

    assert {"DequantizeLinear", "QuantizeLinear"} < {each.kind for each in found}
    before = explain(grouped(profiled("onnx", path, inputs)), "fp32", ("avx2",))
    assert not any("Conversions" in each for each in before)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_openvino_tells_the_precision_of_the_execution_graph(graph, precision):
    path = graph.with_name(f"{precision}.xml")
    formats.get("openvino").make(graph, path, Build(precision, batch(), ("y",)))
    found = profiled("openvino", path)

    products = [each for each in found if each["kind"] == "FullyConnected"]
    computed = precision if instructions(precision) else "fp32"  # bf16 without hardware falls back
    assert [each["precision"] for each in products] == [computed] * 3
    assert all(each["kernel"] and each["ms"] >= 0 for each in products)
    lines = "".join(explain(grouped(found), precision, instructions(precision)))
    assert ("requested precision" in lines) == (computed != precision)


def times(*calls):
    """Group calls of operators: kind, precision and milliseconds."""
    names = ("kind", "precision", "ms")
    return grouped([{"kernel": "k", **dict(zip(names, call, strict=True))} for call in calls])


def test_calls_of_one_kernel_are_put_together_and_the_longest_comes_first():
    assert times(("Relu", "fp32", 1), ("Conv", "fp32", 2), ("Conv", "fp32", 3)) == (
        Operator(kind="Conv", kernel="k", precision="fp32", calls=2, ms=5),
        Operator(kind="Relu", kernel="k", precision="fp32", calls=1, ms=1),
    )


def test_products_and_what_takes_the_rest_are_named_with_their_speed():
    def said(rest_ms, **speeds):
        found = times(("Conv", "fp32", 8), ("MaxPool", "fp32", rest_ms))
        (line,) = explain(found, "fp32", ("avx2",), **speeds)
        return line.removeprefix("Matrix multiplications and convolutions take ")

    start, rest = "80% of the time, at 500 GFLOP/s", ". The rest: MaxPool 20%."
    assert said(2, operations=4e9) == f"{start}{rest}"
    share = " (50% of the measured fp32 GEMM rate)"
    assert said(2, operations=4e9, peak=1000) == f"{start}{share}{rest}"
    assert said(0.01) == "100% of the time. No other operator takes 1% or more."


def test_a_bf16_that_falls_back_is_said_with_the_processors_part_in_it():
    found = times(("FullyConnected", "fp32", 9), ("Convolution", "bf16", 1))

    _, line = explain(found, "bf16", ())
    assert line == (
        "The requested precision is bf16, but they compute in fp32 90%, bf16 10%. This CPU has no "
        "instructions for bf16: it gains no speed."
    )
    assert "This CPU" not in explain(found, "bf16", ("amx_bf16",))[1]


def test_an_int8_graph_full_of_dequantisations_is_noticed():
    """By given times: how long a conversion takes beside a product depends on the processor."""
    products = ("QLinearConv", "int8", 5), ("DynamicQuantizeMatMul", "int8", 10)
    others = ("DequantizeLinear", "int8", 3), ("QuantizeLinear", "fp32", 1), ("Reorder", "fp32", 1)
    found = times(*products, *others)

    shares = "DequantizeLinear 15%, QuantizeLinear 5%, Reorder 5%."
    assert explain(found, "int8", ("avx512_vnni",)) == (
        f"Matrix multiplications and convolutions take 75% of the time. The rest: {shares}",
        f"Conversions between precisions and layouts take 25% of the time: {shares} Keep the "
        "operators between two matrix multiplications in one precision.",
    )
    few = times(("QLinearConv", "int8", 10), ("DequantizeLinear", "int8", 1))
    assert len(explain(few, "int8", ("avx512_vnni",))) == 1


def test_a_table_has_the_longest_and_all_others_together():
    operators = times(*((f"Op{i}", "fp32", 10 - i) for i in range(4)))
    profile = Profile(batch_size=8, threads=2, operators=operators)

    rows = profile.rows(most=2)

    shares = {"Op0": 10 / 34, "Op1": 9 / 34, "others": 15 / 34}
    assert {row["operator"]: row["share"] for row in rows} == shares
    assert rows[2]["calls"] == 2
    assert profile.caption == "Profile of one run: 8 samples, 2 threads"
    assert Profile(reason="not profiled: x").caption == "not profiled: x"
