"""The command line that a notebook prints is the one that the measurement runs."""

import shlex
from pathlib import Path

from helpers.config import Server, resolve
from helpers.measure import analyzer, command_line
from helpers.measure.analyzer import LoadPoint


def offline(model="resnet50", **fields):
    return resolve(model, "perf_offline").model_copy(update={"batch_sizes": [1, 4], **fields})


def online(**fields):
    given = {"concurrency": [1, 8], "request_count": 20, **fields}
    return resolve("resnet50", "perf_online").model_copy(update=given)


def words(text):
    return shlex.split(text.replace("\\\n", ""), comments=True)


def test_it_has_the_words_of_a_run_with_the_largest_batch():
    point = LoadPoint("resnet50", Path("inputs.json"), (), batch_size=4, shared_memory="system")
    _, *of_a_run = analyzer.arguments(point, "localhost:8000", Path("."))

    program, *found = words(command_line(offline()))

    assert program == "perf_analyzer"
    assert [word.removeprefix("./") for word in of_a_run] == found


def test_it_runs_as_it_is_pasted():
    first, *lines = command_line(offline()).splitlines()

    assert first == "# Batch size 4, 1 client. Other batch sizes change -b."
    assert [line.endswith(" \\") for line in lines] == [True] * (len(lines) - 1) + [False]


def test_memory_is_shared_only_offline_on_one_host():
    far = offline(server=Server(kind="remote", url="10.0.0.5:8000"))
    for config in (offline(shared_memory="none"), far, online(rates=[])):
        found = words(command_line(config))
        assert "--shared-memory" not in found
        assert (config.server.url or "localhost:8000") in found
    assert "--shared-memory system" in " ".join(words(command_line(offline())))


def test_over_grpc_it_names_the_port_of_the_protocol():
    far = Server(kind="remote", url="10.0.0.5:8000")
    for server, url in ((Server(), "localhost:8001"), (far, "10.0.0.5:8001")):
        found = words(command_line(offline(protocol="grpc", server=server)))
        assert found[found.index("-u") + 1 :][:3] == [url, "-i", "grpc"]


def test_online_has_a_command_for_each_mode_that_is_measured():
    clients, rate = command_line(online(rates=[0.5])).split("\n\n")

    assert clients.startswith("# Concurrency mode, 8 clients.")
    assert "--concurrency-range 8:8" in clients
    assert rate.startswith("# Request-rate mode.")
    assert "--request-intervals gaps --request-count 20 --async" in " ".join(words(rate))
    assert command_line(online(rates=[])) == clients


def test_a_request_of_a_parameter_server_is_one_sample_to_triton():
    found = words(command_line(offline("dlrm", lookup="hps", batch_sizes=[512])))

    assert found[found.index("-b") + 1] == "1"
