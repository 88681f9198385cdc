"""What a user of MLServer writes: a runtime class around ONNX Runtime. It takes numbers, or a
sample's bytes in base64.
"""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceResponse
from session import Session


class Runtime(MLModel):
    async def load(self):
        extra = self.settings.parameters.extra
        self.session = Session(extra["file"], extra["threads"])
        return True

    async def predict(self, payload):
        (given,) = payload.inputs
        if given.datatype == "BYTES":
            joined = b"".join(Base64Codec.decode_input(given))
            array = np.frombuffer(joined, np.float32)
        else:
            array = NumpyCodec.decode_input(given)
        found = self.session.run(array.reshape(-1, *self.session.input.shape[1:]))
        output = NumpyCodec.encode_output(self.session.output.name, found)
        return InferenceResponse(model_name=self.name, outputs=[output])
