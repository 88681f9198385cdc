"""The text of an error in one line is its reason, without the insides of a runtime."""

import pytest

from helpers.errors import one_line

ONNX_RUNTIME = (
    "[ONNXRuntimeError] : 1 : FAIL : Load model from x.onnx failed:/onnxruntime_src/onnxruntime/"
    "core/graph/model.cc:181 onnxruntime::Model::Model(onnx::ModelProto&&, const std::string&) "
    "ONNX Runtime only supports opset 25."
)
OPENVINO = (
    "Check 'false' failed at src/frontends/report.cpp:151:\nFrontEnd API failed with "
    "OpConversionFailure:\nModel wasn't fully converted."
)


@pytest.mark.parametrize(
    ("text", "length", "line"),
    [
        ("one\n  two", None, "one two"),
        ("no source of <function f at 0x7f52fa30d620>.", None, "no source of <function f>."),
        (ONNX_RUNTIME, 100, "Load model from x.onnx failed:ONNX Runtime only supports opset 25."),
        (OPENVINO, 100, "OpConversionFailure: Model wasn't fully converted."),
        ("\x1b[96mThis\x1b[0m is step 2.", 100, "This is step 2."),
        ("The first sentence is whole. The second one is not.", 40, "The first sentence is whole."),
        ("No. " + "word " * 20, 30, "No. word word word word wor..."),
    ],
)
def test_a_reason_is_whole_sentences(text, length, line):
    assert one_line(text, length) == line
