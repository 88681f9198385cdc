"""Serve one ONNX file by this package, by plain PyTriton and by MLServer, and measure them in turn.

    python .ci/alternatives/compare.py

The file is that of a deployed experiment of a parameter file; the batch command runs its stages
first where they are missing. ONNX Runtime has the same options and threads everywhere, and each
server joins requests as the experiment says. One client asks them all, over HTTP, with different
real samples, whose request bodies it encodes before. MLServer's endpoint does not take the
protocol's binary tensors: it gets numbers, and in a turn of its own bytes in base64. What ONNX
Runtime does without a server shows how much there is to gain.

PyTriton and MLServer have environments of their own, which are made on the first run and kept in
$PYTRITON_ENVIRONMENT and $MLSERVER_ENVIRONMENT, by default in the user's cache. Nobody is measured
whose answers differ.
"""

import argparse
import http.client
import itertools
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import tritonclient.http as triton_http

from helpers import models
from helpers.config import configure, read_file
from helpers.inference import open_dataset, requests, require, threads
from helpers.measure.checks import difference
from helpers.measure.statistics import geometric_mean, log_interval
from helpers.store import OUTPUTS_VARIABLE, temporary_folder
from helpers.triton import SETTINGS, last_lines, serve, supervised
from helpers.triton.server import reserved_ports

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WANTED = {  # what the other servers' environments install
    "mlserver": ("mlserver==1.7.1", "uvloop<0.22"),  # with a newer one its workers end at once
    "pytriton": ("nvidia-pytriton==0.7.0",),  # which wants an old numpy
}
READY_SECONDS = 120.0
NO_SERVER = "ONNX Runtime, no server"


class Refused(Exception):
    """Servers that cannot be compared, and why."""


class Tensors(NamedTuple):
    """The names of the model, its input and its output."""

    model: str
    input: str
    output: str


class Candidate(NamedTuple):
    """A server at a port of 127.0.0.1, and how it is asked."""

    name: str
    port: int
    encode: Callable  # gives a request's body and headers for a sample


def binary(tensors):
    """Encode a sample as the protocol's extension for binary tensors does, for both directions."""

    def encode(sample):
        given = triton_http.InferInput(tensors.input, sample.shape, "FP32")
        given.set_data_from_numpy(sample)
        wanted = triton_http.InferRequestedOutput(tensors.output)
        make = triton_http.InferenceServerClient.generate_request_body
        body, size = make([given], outputs=[wanted])
        return body, {"Inference-Header-Content-Length": str(size)}

    return encode


def as_json(**given):
    return json.dumps({"inputs": [given]}).encode(), {"Content-Type": "application/json"}


def numbers(tensors):
    return lambda sample: as_json(
        name=tensors.input, shape=sample.shape, datatype="FP32", data=sample.ravel().tolist()
    )


def base64(tensors):
    """Encode a sample as a string of its bytes, which MLServer's codec of that name reads."""
    given = {"name": tensors.input, "shape": [1, 1], "datatype": "BYTES"}
    given["parameters"] = {"content_type": "base64"}
    return lambda sample: as_json(**given, data=[b64encode(sample).decode()])


class Connection:
    """One client: a connection that sends one request after the other."""

    def __init__(self, candidate, model):
        self.http = http.client.HTTPConnection("127.0.0.1", candidate.port, timeout=60)
        self.path = f"/v2/models/{model}/infer"

    def ask(self, body, headers):
        """Send a request; give the answer's body and the length of its JSON if more follows."""
        self.http.request("POST", self.path, body, dict(headers))
        answer = self.http.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise Refused(f"HTTP {answer.status}: {content[:300].decode(errors='replace')}")
        length = answer.headers.get("Inference-Header-Content-Length")
        return content, int(length) if length else None

    def close(self):
        self.http.close()


def answers(candidate, tensors, samples, clients):
    """Send every sample once, from several clients at a time; give the outputs in order."""
    encoded = [candidate.encode(sample) for sample in samples]
    found, parse = {}, triton_http.InferenceServerClient.parse_response_body

    def client(start):
        with closing(Connection(candidate, tensors.model)) as connection:
            for place in range(start, len(samples), clients):
                content, length = connection.ask(*encoded[place])
                found[place] = parse(content, header_length=length).as_numpy(tensors.output)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return np.concatenate([found[place] for place in range(len(samples))])


def require_right(name, found, reference, tolerances):
    """Raise `Refused` where answers differ from ONNX Runtime's own by more than the tolerances."""
    apart = difference(name, found, reference, tolerances)
    if apart.max_difference is None:
        raise Refused(f"{name} answers {found.shape}, not finite {reference.shape}")
    if not apart.ok:
        raise Refused(
            f"{name} answers otherwise: by {apart.max_difference:.2g} deviations at most and "
            f"{apart.mean_difference:.2g} on average. The tolerances are {tolerances[0]:.2g} "
            f"and {tolerances[1]:.2g}"
        )


def throughput(candidate, tensors, samples, clients, seconds):
    """Load a server for that long; give the answers per second, without each client's first."""
    encoded = [candidate.encode(sample) for sample in samples]
    ready = threading.Barrier(clients)

    def client(number):
        ends = []
        with closing(Connection(candidate, tensors.model)) as connection:
            ready.wait()
            places = itertools.count(number, clients)
            while not ends or ends[-1] < ends[0] + seconds:
                connection.ask(*encoded[next(places) % len(encoded)])
                ends.append(time.perf_counter())
        return (len(ends) - 1) / (ends[-1] - ends[0])

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(client, range(clients)))


def in_process(run, samples, clients, seconds):
    """Give the samples per second without any server, in batches of a sample of each client."""
    joined = np.concatenate([*samples, *samples[:clients]])
    batches = [joined[start : start + clients] for start in range(len(samples))]
    run(batches[0])
    done, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        run(batches[done % len(batches)])
        done += 1
    return done * clients / passed


def in_turn(names, points, rounds, measure):
    """Measure at each number of clients: A B C, C B A, and so on. The first round is for warmth."""
    found = {clients: {name: [] for name in names} for clients in points}
    for clients, number in itertools.product(points, range(rounds + 1)):
        for name in names if number % 2 else reversed(names):
            figure = measure(name, clients)
            if number:
                found[clients][name].append(figure)
    return found


def rows(found):
    """Give clients, name, median answers/s, and how often the first server's that of the other is,
    round by round, with its 95% interval.
    """
    for clients, figures in found.items():
        first, *_ = figures
        for name, own in figures.items():
            ratios = [ours / theirs for ours, theirs in zip(figures[first], own, strict=True)]
            interval = log_interval(ratios) if name != first else None
            yield clients, name, median(own), geometric_mean(ratios), interval


def table(found):
    lines = ["| clients | server | samples/s | this package's, times that |", "|" + "---|" * 4]
    for clients, name, own, ratio, interval in rows(found):
        times = f"{ratio:.2f} ({interval.low:.2f} to {interval.high:.2f})" if interval else ""
        lines.append(f"| {clients} | {name} | {own:.1f} | {times} |")
    return "\n".join(lines)


def environment(name):
    own = CACHE / f"triton-notebooks/{WANTED[name][0]}-onnxruntime-{version('onnxruntime')}"
    return Path(os.environ.get(f"{name.upper()}_ENVIRONMENT") or own)


def install(folder, wanted):
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "--quiet", *wanted], check=True)
        (folder / "done").touch()


@contextmanager
def other_server(name, port, tensors, command):
    """Run another server until the block ends. Raises `Refused` with its last lines if it does not
    become ready.
    """
    # PyTriton's stub must find the library of the Python that it runs, not another of its version
    paths = f"{sysconfig.get_config_var('LIBDIR')}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    own = {"PYTHONPATH": str(HERE), "LD_LIBRARY_PATH": paths.rstrip(":")}
    environment = {**os.environ, **SETTINGS, **own}
    with temporary_folder() as folder:
        path = folder / "log"
        with path.open("wb") as log, supervised(command, log=log, env=environment) as process:
            deadline = time.monotonic() + READY_SECONDS
            while not _is_ready(port, tensors.model):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Refused(f"{name} does not serve: {last_lines(path)}")
                time.sleep(0.2)
            yield


def _is_ready(port, model):
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", f"/v2/models/{model}/ready")
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def started_servers(config, repository, file, tensors):
    """Start all servers; each waits without a spinning thread while another is measured."""
    with reserved_ports(*[0] * 6) as ports:
        ours, http_port, grpc_port, *its_ports = ports
    own = {
        "model": tensors.model,
        "file": str(file),
        "threads": threads(config, "online"),
        "max_batch_size": config.max_batch_size,
        "max_queue_delay_us": config.max_queue_delay_us,
        "preferred_batch_sizes": list(config.preferred_batch_sizes),
    }
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        its = {"http_port": http_port, "grpc_port": grpc_port, "workspace": f"{folder}/pytriton"}
        (folder / "pytriton.json").write_text(json.dumps(own | its))
        write_mlserver(folder / "mlserver", own, its_ports)
        serving = serve(config, repository, "online", log=folder / "log", http_port=ours)
        stack.enter_context(serving)
        python, mlserver = environment("pytriton") / "bin/python", environment("mlserver") / "bin"
        for name, port, command in (
            ("PyTriton", http_port, [python, HERE / "with_pytriton.py", folder / "pytriton.json"]),
            ("MLServer", its_ports[0], [mlserver / "mlserver", "start", folder / "mlserver"]),
        ):
            stack.enter_context(other_server(name, port, tensors, [*map(str, command)]))
        yield [
            Candidate("this package", ours, binary(tensors)),
            Candidate("PyTriton", http_port, binary(tensors)),
            Candidate("MLServer, base64", its_ports[0], base64(tensors)),
            Candidate("MLServer, numbers", its_ports[0], numbers(tensors)),
        ]


def write_mlserver(folder, own, ports):
    """Write MLServer's two settings files, as its documentation names the fields."""
    folder.mkdir()
    names = ("http_port", "grpc_port", "metrics_port")
    settings = {"host": "127.0.0.1", "debug": False, "metrics_dir": str(folder / "metrics")}
    settings |= dict(zip(names, ports, strict=True))
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": own["model"], "implementation": "with_mlserver.Runtime"}
    model |= {"max_batch_size": own["max_batch_size"]}
    model |= {"max_batch_time": own["max_queue_delay_us"] / 1e6}
    model |= {"parameters": {"extra": {"file": own["file"], "threads": own["threads"]}}}
    (folder / "model-settings.json").write_text(json.dumps(model))


def prepare(arguments):
    """Let the batch command run the stages up to `deploy` where they are missing."""
    chosen = ["--model", arguments.model, "--experiment", arguments.experiment]
    chosen += ["--outputs", str(arguments.outputs)]
    chosen += ["--stage", "export", "--stage", "convert", "--stage", "deploy"]
    command = [sys.executable, "-m", "helpers", "run", arguments.params, *chosen]
    subprocess.run(command, check=True)
    os.environ[OUTPUTS_VARIABLE] = str(arguments.outputs)
    given = read_file(Path(arguments.params))
    config = configure(given, arguments.model, arguments.experiment, "deploy")
    return config, require(config, "deploy")


def compare(config, repository, points, rounds, seconds, distinct):
    """Start the servers, check their answers, and measure them in turn. Raises `Refused`."""
    from session import Session  # beside this script

    (given,) = models.get(config.model).inputs(config)
    (output,) = models.get(config.model).outputs(config)
    tensors = Tensors(config.model, given.name, output.name)
    file = repository.folder / config.model / "1/model.onnx"
    (batch,) = requests(config, open_dataset(config), distinct, distinct)
    samples = np.split(batch[given.name], len(batch[given.name]))
    session = Session(str(file), threads(config, "online"))
    reference = np.concatenate([session.run(sample) for sample in samples])
    tolerances = models.get(config.model).TOLERANCES["fp32"]
    with started_servers(config, repository, file, tensors) as found:
        for each in found:
            right = answers(each, tensors, samples, clients=4)
            require_right(each.name, right, reference, tolerances)
        by_name = {each.name: each for each in found}

        def measure(name, clients):
            if name == NO_SERVER:
                return in_process(session.run, samples, clients, seconds)
            return throughput(by_name[name], tensors, samples, clients, seconds)

        return in_turn([*by_name, NO_SERVER], points, rounds, measure)


def experiment_parser(description):
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--params", default="params/cpu.yaml")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--experiment", default="onnx-fp32")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    return parser


def main():
    parser = experiment_parser(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn")
    parser.add_argument("--samples", type=int, default=16, help="different ones")
    arguments = parser.parse_args()
    arguments.outputs = arguments.outputs.absolute()
    for name, wanted in WANTED.items():
        install(environment(name), [*wanted, f"onnxruntime=={version('onnxruntime')}"])
    config, repository = prepare(arguments)
    try:
        chosen = arguments.clients, arguments.rounds, arguments.seconds, arguments.samples
        found = compare(config, repository, *chosen)
    except Refused as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
