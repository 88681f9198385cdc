"""What a graph needs of arithmetic and memory, against PyTorch's own count and closed forms."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.formats import Build, onnx, tf_savedmodel, ts_trace
from helpers.inference import work
from helpers.inference.work import GraphCost
from helpers.models.bert.network import QuestionAnswering
from helpers.models.resnet50.network import ResNet50

OPSET = 17  # by the older exporter, which takes a tenth of the time
RESNET50_GMAC = 4.09  # torchvision's documentation of ResNet50_Weights, "GFLOPS"


def exported(network, inputs, path, outputs=1):
    """An ONNX file of a network, or with the suffix .pt a TorchScript file."""
    names = tuple(f"out_{i}" for i in range(outputs))
    make = ts_trace.make if path.suffix == ".pt" else onnx.make
    make(network.eval(), path, Build("fp32", inputs, names, opset=OPSET))
    return path


def flop_by_torch(network, inputs):
    """Operations of a sample as PyTorch counts them while it computes."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(*map(torch.from_numpy, inputs.values()))
    return counter.get_total_flops() / len(next(iter(inputs.values())))


@pytest.mark.slow
def test_resnet50_needs_what_pytorch_counts_and_what_is_published(tmp_path):
    network, inputs = ResNet50().eval(), {"image": np.zeros((2, 3, 224, 224), np.float32)}

    found = work.count(exported(network, inputs, tmp_path / "model.onnx"), inputs)

    assert found.flop == flop_by_torch(network, inputs)
    assert round(found.flop / 2e9, 2) == RESNET50_GMAC
    in_batch_norms = 2 * 26_560  # folded into the convolutions
    weights, io_bytes = 25_557_032 - in_batch_norms, 4 * (3 * 224 * 224 + 1000)  # as published
    assert found == GraphCost(found.flop, weights, embedding_reads=0, io_bytes=io_bytes)


@pytest.mark.slow
def test_a_layer_of_bert_needs_its_closed_form(tmp_path):
    tokens = 48
    names = ("input__0", "input__1", "input__2")
    inputs = {name: np.ones((2, tokens), np.int32) for name in names}
    network = QuestionAnswering("small").eval()
    config = network.bert.config
    layers, width, wide = config.num_hidden_layers, config.hidden_size, config.intermediate_size

    found = work.count(exported(network, inputs, tmp_path / "model.onnx", 2), inputs)

    layer = 2 * tokens * (4 * width**2 + 2 * tokens * width + 2 * width * wide)
    assert found.flop == layers * layer + 2 * tokens * width * 2
    # a row of two tables for each token, and no table
    assert found.embedding_reads >= 2 * tokens * width
    assert found.weights < 4 * (4 * width**2 + 2 * width * wide) * 1.05


def test_an_embedding_is_read_by_rows_and_a_product_whole(tmp_path):
    reading = (torch.nn.Embedding(1000, 16), torch.nn.Flatten())
    layers = (torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    network = torch.nn.Sequential(*reading, *layers)
    inputs = {"ids": np.ones((2, 2), np.int64)}

    found = work.count(exported(network, inputs, tmp_path / "model.onnx"), inputs)

    flop, weights = 2 * (32 * 64 + 64), 32 * 64 + 64 + 64 + 1
    assert found == GraphCost(flop, weights, embedding_reads=32, io_bytes=2 * 8 + 4)
    assert found.bytes("fp32", batch=8) == 4 * (2177 / 8 + 32) + 20
    assert found.bytes("int8", batch=8) == 2177 / 8 + 32 + 20


def test_an_lstm_needs_its_four_gates_at_each_step(tmp_path):
    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(8, 16, batch_first=True)

        def forward(self, series):
            return self.lstm(series)[0][:, -1]

    inputs = {"series": np.zeros((2, 10, 8), np.float32)}

    for name in ("model.onnx", "model.pt"):
        found = work.count(exported(Last(), inputs, tmp_path / name), inputs)
        assert found.flop == 10 * 2 * 4 * 16 * (8 + 16)


def test_convolutions_of_other_shapes_need_what_pytorch_counts(tmp_path):
    for network, shape in (
        (torch.nn.Conv1d(4, 8, 3), (2, 4, 20)),
        (torch.nn.Conv2d(8, 8, 3, groups=4), (2, 8, 10, 10)),
    ):
        inputs = {"x": np.zeros(shape, np.float32)}
        found = work.count(exported(network, inputs, tmp_path / "model.onnx"), inputs)
        assert found.flop == flop_by_torch(network, inputs)


def test_a_loop_is_refused_with_its_kind(tmp_path):
    network, inputs = torch.nn.GRU(8, 16), {"x": np.zeros((4, 2, 8), np.float32)}

    with pytest.raises(ValueError, match="the cost of the operator GRUSequence is unknown"):
        work.count(exported(network, inputs, tmp_path / "model.onnx", 2), inputs)


@pytest.mark.slow
def test_dlrms_dense_half_as_a_savedmodel_needs_what_its_onnx_needs(tmp_path):
    import keras

    first = keras.Input((13,), name="numerical")
    x = keras.layers.Dense(64, "relu", bias_initializer="ones")(first)
    network = keras.Model({"numerical": first}, keras.layers.Dense(1, bias_initializer="ones")(x))
    inputs = {"numerical": np.zeros((2, 13), np.float32)}
    build = Build("fp32", inputs, ("scores",))
    saved, converted = tmp_path / tf_savedmodel.FILE, tmp_path / onnx.FILE
    tf_savedmodel.make(network, saved, build)
    onnx.make(saved, converted, build)

    found = work.count(saved, inputs)

    assert found == work.count(converted, inputs)
    assert found == GraphCost(2 * (13 * 64 + 64), 13 * 64 + 64 + 64 + 1, 0, 13 * 4 + 4)
