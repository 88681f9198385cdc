"""What a user of PyTriton writes: one function around ONNX Runtime, bound to a server."""

import json
import sys
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from session import Session

given = json.loads(Path(sys.argv[1]).read_text())
session = Session(given["file"], given["threads"])


@batch
def infer(**inputs):
    return {session.output.name: session.run(inputs[session.input.name])}


config = TritonConfig(
    http_address="127.0.0.1",
    http_port=given["http_port"],
    grpc_address="127.0.0.1",
    grpc_port=given["grpc_port"],
    allow_metrics=False,
)
with Triton(config=config, workspace=given["workspace"]) as triton:
    triton.bind(
        model_name=given["model"],
        infer_func=infer,
        inputs=[Tensor(name=session.input.name, dtype=np.float32, shape=session.input.shape[1:])],
        outputs=[
            Tensor(name=session.output.name, dtype=np.float32, shape=session.output.shape[1:])
        ],
        config=ModelConfig(
            max_batch_size=given["max_batch_size"],
            batcher=DynamicBatcher(
                max_queue_delay_microseconds=given["max_queue_delay_us"],
                preferred_batch_size=given["preferred_batch_sizes"],
            ),
        ),
        strict=False,
    )
    triton.serve()
