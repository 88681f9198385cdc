"""Where the time of a model goes: by the runtimes' own profilers, and in words."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import formats
from helpers.formats import Arrays, Build, OperatorTime, instructions
from helpers.measure.operators import explain, grouped
from helpers.results import Operator, Profile

WIDTH, SAMPLES = 256, 64


def batch() -> Arrays:
    values = np.random.default_rng(0).standard_normal((SAMPLES, WIDTH))
    return {"x": values.astype(np.float32)}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three products with an activation between them, as ONNX."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    formats.get("onnx").make(network.eval(), path, Build("fp32", batch(), ("y",), opset=17))
    return path


def quantised(path: Path, inputs: Arrays) -> Path:
    """Quantise a graph to int8, by the extremes of one batch."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Once(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.batches: Iterator[Arrays] = iter([inputs])

        def get_next(self) -> Arrays | None:
            return next(self.batches, None)

    target = path.with_name(f"{path.stem}-int8.onnx")
    quantize_static(path, target, Once(), quant_format=QuantFormat.QDQ, per_channel=True)
    return target


def profiled(name: str, path: Path) -> list[OperatorTime]:
    profile = formats.get(name).profile
    assert profile
    return profile(path, 1, batch())


def converted(graph: Path, precision: str) -> Path:
    path = graph.with_name(f"{precision}.xml")
    formats.get("openvino").make(graph, path, Build(precision, batch(), ("y",)))
    return path


def test_onnx_runtime_tells_each_operators_time_and_precision(graph: Path) -> None:
    found = profiled("onnx", graph)

    products = [each for each in found if "Gemm" in each["kind"]]
    assert [(each["kernel"], each["precision"]) for each in products] == [("CPU", "fp32")] * 3
    assert all(each["ms"] > 0 for each in products)


def test_what_computes_in_int8_is_told_from_what_was_asked_for(graph: Path) -> None:
    found = grouped(profiled("onnx", quantised(graph, batch())))

    products = [each for each in found if "Gemm" in each.kind or "MatMul" in each.kind]
    assert {each.precision for each in products} == {"int8"}
    lines = explain(found, "int8", instructions("int8"))
    assert not any("requested precision" in line for line in lines)
    assert any("requested precision" in line for line in explain(found, "fp32", ()))


def test_the_conversions_of_a_quantised_graph_are_among_its_operators(tmp_path: Path) -> None:
    layers = [each for _ in range(4) for each in (torch.nn.Linear(8, 8), torch.nn.ELU())]
    network, path = torch.nn.Sequential(*layers).eval(), tmp_path / "model.onnx"
    inputs: Arrays = {"x": np.ones((2_000, 8), np.float32)}
    formats.get("onnx").make(network, path, Build("fp32", inputs, ("y",), opset=17))
    profile = formats.get("onnx").profile
    assert profile

    found = grouped(profile(quantised(path, inputs), 1, inputs))

    assert {"DequantizeLinear", "QuantizeLinear"} < {each.kind for each in found}
    before = explain(grouped(profile(path, 1, inputs)), "fp32", ("avx2",))
    assert not any("Conversions" in each for each in before)


@pytest.mark.parametrize(("ms", "lines"), [(4.0, 1), (0.1, 0)])
def test_a_graph_full_of_conversions_is_noticed(ms: float, lines: int) -> None:
    """By given times: how long a conversion takes beside a product depends on the processor."""
    product: OperatorTime = {"kind": "QGemm", "kernel": "CPU", "precision": "int8", "ms": 6.0}
    conversion: OperatorTime = {**product, "kind": "DequantizeLinear", "ms": ms}

    found = explain(grouped([product, conversion]), "int8", ("avx512_vnni",))

    assert [each for each in found if "Conversions" in each] == [
        "Conversions between precisions and layouts take 40% of the time: DequantizeLinear 40%. "
        "Keep the operators between two matrix multiplications in one precision."
    ] * lines


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_openvino_tells_the_precision_of_the_execution_graph(graph: Path, precision: str) -> None:
    found = profiled("openvino", converted(graph, precision))

    products = [each for each in found if each["kind"] == "FullyConnected"]
    computed = precision if instructions(precision) else "fp32"  # bf16 without hardware falls back
    assert [each["precision"] for each in products] == [computed] * 3
    assert all(each["kernel"] and each["ms"] >= 0 for each in products)
    lines = explain(grouped(found), precision, instructions(precision))
    assert any("requested precision" in line for line in lines) == (computed != precision)


def time_of(kind: str, precision: str, ms: float) -> OperatorTime:
    return {"kind": kind, "kernel": "k", "precision": precision, "ms": ms}


def test_calls_of_one_kernel_are_put_together_and_the_longest_comes_first() -> None:
    found = grouped(
        [time_of("Relu", "fp32", 1), time_of("Conv", "fp32", 2), time_of("Conv", "fp32", 3)]
    )

    assert found == (
        Operator(kind="Conv", kernel="k", precision="fp32", calls=2, ms=5),
        Operator(kind="Relu", kernel="k", precision="fp32", calls=1, ms=1),
    )


def test_products_and_what_takes_the_rest_are_named_with_their_speed() -> None:
    found = grouped([time_of("Conv", "fp32", 8), time_of("MaxPool", "fp32", 2)])

    assert explain(found, "fp32", ("avx2",), operations=4e9) == (
        "Matrix multiplications and convolutions take 80% of the time, at 500 GFLOP/s. The rest: "
        "MaxPool 20%.",
    )
    assert explain(found, "fp32", ("avx2",), operations=4e9, peak=1000) == (
        "Matrix multiplications and convolutions take 80% of the time, at 500 GFLOP/s (50% of the "
        "measured fp32 GEMM rate). The rest: MaxPool 20%.",
    )
    alone = grouped([time_of("Conv", "fp32", 8), time_of("MaxPool", "fp32", 0.01)])
    assert explain(alone, "fp32", ("avx2",)) == (
        "Matrix multiplications and convolutions take 100% of the time. No other operator takes 1% "
        "or more.",
    )


def test_a_bf16_that_falls_back_is_said_with_the_processors_part_in_it() -> None:
    found = grouped([time_of("FullyConnected", "fp32", 9), time_of("Convolution", "bf16", 1)])

    _, line = explain(found, "bf16", ())
    assert line == (
        "The requested precision is bf16, but they compute in fp32 90%, bf16 10%. This CPU has no "
        "instructions for bf16: it gains no speed."
    )
    assert "This CPU" not in explain(found, "bf16", ("amx_bf16",))[1]


def test_an_int8_graph_full_of_dequantisations_is_noticed() -> None:
    found = grouped(
        [
            time_of("QLinearConv", "int8", 5),
            time_of("DequantizeLinear", "int8", 3),
            time_of("QuantizeLinear", "fp32", 1),
            time_of("Reorder", "fp32", 1),
            time_of("DynamicQuantizeMatMul", "int8", 10),
        ]
    )

    assert explain(found, "int8", ("avx512_vnni",)) == (
        "Matrix multiplications and convolutions take 75% of the time. The rest: DequantizeLinear "
        "15%, QuantizeLinear 5%, Reorder 5%.",
        "Conversions between precisions and layouts take 25% of the time: DequantizeLinear 15%, "
        "QuantizeLinear 5%, Reorder 5%. Keep the operators between two matrix multiplications in "
        "one precision.",
    )
    few = [time_of("QLinearConv", "int8", 10), time_of("DequantizeLinear", "int8", 1)]
    assert len(explain(grouped(few), "int8", ("avx512_vnni",))) == 1


def test_a_table_has_the_longest_and_all_others_together() -> None:
    operators = grouped([time_of(f"Op{i}", "fp32", 10 - i) for i in range(4)])
    profile = Profile(batch_size=8, threads=2, operators=operators)

    rows = profile.rows(most=2)

    assert [row["operator"] for row in rows] == ["Op0", "Op1", "others"]
    assert [row["share"] for row in rows] == [10 / 34, 9 / 34, 15 / 34]
    assert rows[2]["calls"] == 2
    assert profile.caption == "Profile of one run: 8 samples, 2 threads"
    assert Profile(reason="not profiled: x").caption == "not profiled: x"
