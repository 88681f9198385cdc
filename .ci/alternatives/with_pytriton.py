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


def tensor(of):
    return Tensor(name=of.name, dtype=np.float32, shape=of.shape[1:])


addresses = dict.fromkeys(("http_address", "grpc_address"), "127.0.0.1")
ports = {name: given[name] for name in ("http_port", "grpc_port")}
config = TritonConfig(**addresses, **ports, allow_metrics=False)
with Triton(config=config, workspace=given["workspace"]) as triton:
    triton.bind(
        model_name=given["model"],
        infer_func=infer,
        inputs=[tensor(session.input)],
        outputs=[tensor(session.output)],
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
