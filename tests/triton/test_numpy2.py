"""A model of the embedded server has numpy 2, for which Triton's bindings were not built."""

import numpy as np
import pytest

from helpers.errors import ServerError
from helpers.triton import embedded

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

ARRAYS = {
    "FP64": np.array([[0.1, -2.0]]),
    "FP32": np.array([[[1.5, np.inf]], [[-0.0, 3e38]]], np.float32),
    "FP16": np.array([[65504, 6e-8]], np.float16),
    "INT64": np.array([[2**62, -1]]),
    "INT8": np.array([[-128, 127]], np.int8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "BOOL": np.array([[True, False, True]]),
}
MODEL = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([self.turned(each)]) for each in requests]
    def turned(self, request):
        array = pb.get_input_tensor_by_name(request, "x").as_numpy()
        array[...] = array[..., ::-1].copy()  # a model may write to what it was given
        tensor = pb.Tensor("y", array[..., ::-1])  # and answer with what is not one block
        assert isinstance(tensor, pb.Tensor) and (tensor.as_numpy() == array[..., ::-1]).all()
        return pb.Tensor("y", array)
"""
CONFIG = """
backend: "python"
input {{ name: "x" data_type: TYPE_{0} dims: {1} }}
output {{ name: "y" data_type: TYPE_{0} dims: {1} }}
instance_group {{ kind: KIND_CPU }}
"""


def write_model(repository, dtype, shape):
    folder = repository / dtype
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(MODEL, encoding="utf-8")
    (folder / "config.pbtxt").write_text(CONFIG.format(dtype, list(shape)), encoding="utf-8")


def test_arrays_of_every_type_come_and_go_bit_by_bit(tmp_path):
    for dtype, array in ARRAYS.items():
        write_model(tmp_path / "models", dtype, array.shape)

    with embedded.serve(tmp_path / "models", log=tmp_path / "log") as server:
        answers = {dtype: server.infer(dtype, {"x": ARRAYS[dtype]})["y"] for dtype in ARRAYS}

    for dtype, array in ARRAYS.items():
        expected = array[..., ::-1]
        assert (answers[dtype].dtype, answers[dtype].tobytes()) == (array.dtype, expected.tobytes())
    assert "incorrect name" not in (tmp_path / "log").read_text(encoding="utf-8")


def test_text_is_refused_in_one_line_and_the_server_goes_on(tmp_path):
    write_model(tmp_path / "models", "STRING", [2])
    write_model(tmp_path / "models", "FP32", [2])

    why = "Text tensors need numpy 1. Set server.kind to docker"
    with embedded.serve(tmp_path / "models", log=tmp_path / "log") as server:
        with pytest.raises(ServerError, match=why):
            server.infer("STRING", {"x": np.array([b"a", b"bc"], object)})
        answer = server.infer("FP32", {"x": np.array([1, 2], np.float32)})

    assert answer["y"].tolist() == [2, 1]
