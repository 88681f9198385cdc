"""The client in a model repository: a sample, and a short program that sends it.

    repository/sample.npz    a request, and the data to interpret its response
    repository/client.py     sends it to the server on this machine, and prints the response

The program needs numpy and tritonclient, and nothing of this package.
"""

import io
from contextlib import chdir, redirect_stdout
from pathlib import Path

import numpy as np

from helpers import models
from helpers.config import DeployConfig
from helpers.inference import ensemble, open_dataset, request
from helpers.store import Artifact
from helpers.triton.server import Server
from helpers.triton.serving import docker_command

SAMPLE, CLIENT = "sample.npz", "client.py"
# of the container that `docker_command` starts
ADDRESSES = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}
TEXT = """\
import numpy as np
import tritonclient.{protocol} as {protocol}

sample = np.load("{sample}")  # a file of the model repository
client = {protocol}.InferenceServerClient("{address}")
inputs = []
for tensor in client.get_model_metadata("{model}"{as_json})["inputs"]:
    array = sample[tensor["name"]]
    inputs.append({protocol}.InferInput(tensor["name"], list(array.shape), tensor["datatype"]))
    inputs[-1].set_data_from_numpy(array)
response = client.infer("{model}", inputs)

{reading}"""


def write_client(config: DeployConfig, repository: Path) -> None:
    """Write the two files into the folder of a model repository."""
    most = config.max_batch_size
    example = models.get(config.model).example(config, open_dataset(config), most)
    sent = request(config, example.batch)
    if codec := ensemble.codec_of(config, repository):
        sent = codec.encode(sent)
    np.savez_compressed(repository / SAMPLE, allow_pickle=False, **(example.beside | sent))
    protocol = config.protocol
    fields = {"sample": SAMPLE, "address": ADDRESSES[protocol], "model": config.model}
    fields |= {"protocol": protocol, "as_json": ", as_json=True" * (protocol == "grpc")}
    (repository / CLIENT).write_text(TEXT.format(**fields, reading=example.reading))


def show_client(config: DeployConfig, repository: Artifact, server: Server) -> None:
    """Run the client; display its output and, folded, the program and how to serve a copy."""
    from IPython.display import Markdown, display

    program, printed = (repository.folder / CLIENT).read_text(), io.StringIO()
    code = compile(
        program.replace(ADDRESSES[config.protocol], server.inference_url), CLIENT, "exec"
    )
    # in this process, since another one would take a second to start
    with chdir(repository.folder), redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    summary = f"<code>{CLIENT}</code>, in the folder of <code>{SAMPLE}</code>"
    elsewhere = "The command that serves a copy of the repository on another machine"
    folded = "<details><summary>{}</summary>\n\n{}\n\n</details>"
    for text in (
        f"Its output:\n\n{_block('text', printed.getvalue())}",
        folded.format(summary, _block("python", program)),
        folded.format(elsewhere, _block("bash", docker_command(config))),
    ):
        display(Markdown(text))  # type: ignore[no-untyped-call]


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"
