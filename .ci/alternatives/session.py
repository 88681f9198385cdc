"""One ONNX file in ONNX Runtime, with the options of this package's own session."""

from __future__ import annotations

import numpy as np
import onnxruntime


class Session:
    """Run a model of one input, fixed but for the batch."""

    def __init__(self, file, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        provider = ["CPUExecutionProvider"]
        self.onnx = onnxruntime.InferenceSession(file, options, provider)
        (self.input,), (self.output,) = self.onnx.get_inputs(), self.onnx.get_outputs()

    def run(self, array):
        found = self.onnx.run([self.output.name], {self.input.name: array})
        return np.asarray(found[0])
