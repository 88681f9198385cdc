"""LoadGen as a second meter: what it asks, what it records, and whether the answers are right."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.__main__ import main
from helpers.errors import ServerError
from helpers.measure import loadgen
from helpers.measure.loadgen import Test as Task
from helpers.measure.loadgen import Trial, compare, flat, run, wrong_response
from helpers.measure.rows import Window
from helpers.models import Arrays
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.conftest import Project, processes, wait_for

SAMPLES = [{"x": np.full((2, 3), index, np.float32)} for index in range(16)]
RIGHT = [flat({"y": 2 * each["x"]}, ["y"], 0, 2) for each in SAMPLES]
TOLERANCES = np.full(6, 0.1)


class Doubling:
    """A stand-in server, whose speed is known: it doubles what it gets, one request at a time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked: list[Arrays] = []

    def answer(self, inputs: Arrays) -> Arrays:
        self.asked.append(inputs)
        time.sleep(self.seconds)
        return {"y": 2 * inputs["x"]}

    def with_client(self, model: str, talk: Any) -> Any:
        return talk(self.answer)

    def load(self, test: Task) -> Trial:
        server: Any = self
        return run(server, "double", SAMPLES, ["y"], test)

    def indexes(self) -> list[int]:
        return [int(sample[0]) for batch in self.asked for sample in batch["x"][::2]]


@pytest.mark.parametrize(
    ("test", "requests"),
    [
        (Task("SingleStream", 100), 100),
        (Task("Server", 100, rate=2000), 100),
        (Task("Offline", 100, joined=8), 13),
    ],
    ids=lambda each: getattr(each, "scenario", ""),
)
def test_each_sample_is_asked_once_and_a_tenth_of_the_answers_is_kept(
    test: Task, requests: int
) -> None:
    server = Doubling()

    trial = server.load(test)

    assert len(trial.latencies_ms) == len(server.indexes()) == 100
    assert len(server.asked) == requests
    assert 3 <= len(trial.answers) <= 25
    assert all((values == RIGHT[index]).all() for index, values in trial.answers)
    assert wrong_response(trial, RIGHT, TOLERANCES) == ""


def test_latencies_are_those_of_the_server() -> None:
    trial = Doubling(0.01).load(Task("SingleStream", 20))

    assert trial.latencies_ms.min() >= 10
    assert np.median(trial.latencies_ms) < 15


def test_offline_has_one_request_under_way_and_all_samples_due_at_once() -> None:
    trial = Doubling(0.02).load(Task("Offline", 40, joined=4))

    ends = trial.latencies_ms.reshape(10, 4)  # four samples in each of ten requests
    assert (np.ptp(ends, axis=1) < 10).all()
    assert (np.diff(ends[:, 0], prepend=0) >= 20).all()


def test_a_stall_counts_for_every_sample_that_was_due_meanwhile() -> None:
    class Stalling(Doubling):
        def answer(self, inputs: Arrays) -> Arrays:
            found = super().answer(inputs)
            if len(self.asked) == 20:
                self.ends = time.monotonic() + 0.4
            time.sleep(max(0, getattr(self, "ends", 0) - time.monotonic()))
            return found

    trial = Stalling().load(Task("Server", 100, rate=100))

    assert 0.25 < (trial.latencies_ms > 40).mean() < 0.7
    assert trial.latencies_ms.max() > 350


def test_a_server_has_several_requests_under_way() -> None:
    trial = Doubling(0.05).load(Task("Server", 60, rate=100))

    assert np.median(trial.latencies_ms) < 100  # one at a time takes three seconds for all


def test_one_seed_asks_the_same_samples_again() -> None:
    first, again, other = Doubling(), Doubling(), Doubling()
    for server, seed in ((first, 1), (again, 1), (other, 2)):
        server.load(Task("SingleStream", 50, seed))

    assert first.indexes() == again.indexes() != other.indexes()


def test_answers_swapped_within_a_request_are_found() -> None:
    class Swapping(Doubling):
        def answer(self, inputs: Arrays) -> Arrays:
            found = super().answer(inputs)["y"]
            return {"y": np.concatenate([found[2:4], found[:2], found[4:]])}

    trial = Swapping().load(Task("Offline", 96, joined=8))

    assert "the reference is" in wrong_response(trial, RIGHT, TOLERANCES)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            np.array([6, 6, 6, 6, 6.2, 6]),
            "value 4 of sample 3 is 6.2, the reference is 6 (tolerance 0.1)",
        ),
        (
            np.array([6, np.nan, 6, 6, 6, 6]),
            "value 1 of sample 3 is nan, the reference is 6 (tolerance 0.1)",
        ),
        (np.full(3, 6.0), "sample 3 has 3 values, the reference 6"),
        (np.array([6.09, 6, 6, 6, 6, 5.91]), ""),
    ],
)
def test_a_wrong_answer_is_described(values: Any, words: str) -> None:
    trial = Trial(np.ones(1), [(2, RIGHT[2]), (3, values)])

    assert wrong_response(trial, RIGHT, TOLERANCES) == words


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["SingleStream", "Offline", "Server"])
def test_after_a_failed_request_no_other_is_sent_and_loadgen_ends(scenario: Any) -> None:
    class Failing(Doubling):
        def answer(self, inputs: Arrays) -> Arrays:
            found = super().answer(inputs)
            if len(self.asked) > 4:
                raise ServerError("it has ended")
            return found

    server = Failing(0.01)
    with pytest.raises(ServerError, match="it has ended"):
        server.load(Task(scenario, 40, rate=20, joined=2))
    assert len(server.asked) < 8  # others may be under way


def closed_loop(rate: float, noise: Any) -> Any:
    """perf_analyzer's part: 100 requests at a speed, of so many rows."""

    def load(rows: int) -> Window:
        gaps = 1e9 * rows / rate * noise.uniform(0.99, 1.01, 100)
        ends = np.cumsum(gaps).astype(np.int64)
        return Window(np.stack([ends - gaps.astype(np.int64), ends], axis=1), rows, 1)

    return load


def open_loop(noise: Any) -> Any:
    """perf_analyzer's part: each answer as late as LoadGen's would be on a server without queue."""

    def load(_: float, count: int) -> Window:
        due = np.arange(count) * 10**9
        ends = due + (2e7 * noise.uniform(0.99, 1.01, count)).astype(np.int64)
        return Window(np.stack([due, ends], axis=1), 2, 0, due)

    return load


def loadgen_at(rate: float, noise: Any) -> Any:
    """LoadGen's part, of samples of 2 rows."""

    def load(test: Task) -> Trial:
        gaps = 1000 * 2 / rate * noise.uniform(0.99, 1.01, test.count)
        return Trial(np.cumsum(gaps) if test.scenario == "Offline" else gaps, [])

    return load


@pytest.mark.parametrize(
    ("slower", "quality"),
    [(1.0, "consistent"), (1.09, "consistent"), (1.2, "differ"), (0.8, "differ")],
)
def test_load_generators_are_consistent_within_a_tenth(
    slower: float, quality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadgen.background, "wait_until_quiet", lambda *_: 0.0)
    noise = np.random.default_rng(0)

    single, offline, server = compare(
        loadgen_at(100 / slower, noise),
        closed_loop(100, noise),
        open_loop(noise),
        2,
        4,
        30 * slower,
    )

    assert [row["quality"] for row in (single, offline, server)] == [quality] * 3
    assert [row["batch_size"] for row in (single, offline, server)] == [2, 8, 2]
    own, other = (float(str(single[name]).split()[0]) for name in ("LoadGen", "perf_analyzer"))
    assert own / other == pytest.approx(slower, rel=0.01)
    assert str(server["reason"]).endswith(
        f"25 requests/s (Poisson arrivals); 100.0% of 200 requests within {30 * slower:g} ms"
    )
    assert bool(single["reason"]) == (quality == "consistent")


def test_load_generators_are_consistent_where_their_intervals_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loadgen.background, "wait_until_quiet", lambda *_: 0.0)
    noise = np.random.default_rng(0)
    speeds = iter([60, 140, 90, 110, 80] * 2)

    def uneven(rows: int) -> Window:
        window: Window = closed_loop(next(speeds), noise)(rows)
        return window

    single, *_ = compare(loadgen_at(130, noise), uneven, open_loop(noise), 2, 4, None)

    assert (single["quality"], single["reason"]) == ("consistent", "95% CIs overlap")
    assert single["LoadGen"] == "15.5 (15.49 to 15.52)"


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def crosscheck(outputs: Path, *more: str) -> int:
    path = str(ROOT / "params/smoke.yaml")
    return main(["crosscheck", path, "--model", "resnet50", *more, "--outputs", str(outputs)])


def test_without_loadgen_one_line_names_what_to_install(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)

    assert crosscheck(outputs) == 1
    assert capsys.readouterr().err == (
        "error: LoadGen is not installed. Run: pip install 'mlcommons-loadgen>=6.0.17,<7'\n"
    )
    assert not outputs.exists()


def test_an_unknown_experiment_is_wrong_usage(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crosscheck(outputs, "--experiment", "mine") == 2
    assert capsys.readouterr().err == (
        "error: params/smoke.yaml has no experiment 'mine'. Use one of onnx-fp32, openvino-bf16.\n"
    )


def test_what_is_not_deployed_yet_is_one_line(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert crosscheck(outputs) == 1
    assert capsys.readouterr().err == (
        "error: resnet50 onnx-fp32 has no deploy result yet. Run: triton-notebooks run "
        "params/smoke.yaml --model resnet50 --experiment onnx-fp32 --stage deploy\n"
    )


COMMAND = ("crosscheck", "params/dummy.yaml", "--model", "dummy", "--experiment", "onnx-fp32")


def shorten(project: Project, rounds: int = 3) -> None:
    path = project.root / "helpers/measure/loadgen.py"
    text = path.read_text().replace("ROUNDS = 5", f"ROUNDS = {rounds}")
    path.write_text(text.replace("SECONDS = 2.0", "SECONDS = 0.3").replace("= 8.0, 16", "= 1.0, 4"))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_both_meters_measure_one_server_and_the_report_shows_it(project: Project) -> None:
    shorten(project)

    answer = project.run(*COMMAND)

    *_, single, offline, server = answer.output.splitlines()
    assert single.startswith(
        "scenario SingleStream, batch_size 1, metric p90 latency (ms), LoadGen"
    )
    assert offline.startswith(
        "scenario Offline, batch_size 4, metric throughput (samples/s), LoadG"
    )
    assert server.startswith("scenario Server, batch_size 1, metric p90 latency (ms), ")
    # a request of tritonclient takes 0.3 ms longer than one of perf_analyzer, which is much here
    assert answer.code == int("quality differ" in answer.output), answer.output
    facts = json.loads((project.target / "dummy/onnx-fp32/crosscheck.json").read_text())
    assert facts["answers_compared"] > 50
    report = project.run("run", "params/dummy.yaml", "--stage", "report")
    assert report.executed() == ["dummy report"]
    page = (project.target / "dummy/report.html").read_text()
    assert "Two load generators" in page
    assert "SingleStream" in page
    again = "run triton-notebooks crosscheck params/dummy.yaml --model dummy --experiment openvino"
    assert again in page


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_an_answer_unlike_the_frameworks_fails_with_both_values(project: Project) -> None:
    shorten(project)
    (path,) = project.root.glob("outputs/data/dummy-reference-*/samples.npz")
    with np.load(path) as arrays:
        logits = arrays["logits"].copy()
    before = logits[:, 2].copy()
    logits[:, 2] += 0.5
    np.savez(path, logits=logits)

    answer = project.run(*COMMAND)

    line = answer.output.splitlines()[-1]
    start = "error: dummy onnx-fp32: wrong response in LoadGen's scenario SingleStream: "
    start += "value 2 of sample "
    assert answer.code == 1
    assert line.startswith(start)
    sample = int(line.removeprefix(start).split()[0])
    assert f"is {before[sample]:.4g}"[:-1] in line
    assert f"the reference is {logits[sample, 2]:.4g}"[:-1] in line
    assert not (project.target / "dummy/onnx-fp32/crosscheck.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGINT], ids=["server", "Ctrl-C"])
def test_an_end_in_the_middle_is_one_line_and_leaves_nothing(
    project: Project, name: signal.Signals
) -> None:
    shorten(project, rounds=1000)
    process = project.start(*COMMAND)
    log = project.target / "dummy/onnx-fp32/crosscheck_server.log"
    wait_for(
        lambda: processes(str(project.root), "/perf_analyzer -m") or process.poll() is not None
    )
    time.sleep(3)
    assert log.exists()
    if name == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)
    else:
        found = processes(str(project.root), "tritonserver --model-repository")
        for pid in found:
            if "supervisor.py" not in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, name)
    output, _ = process.communicate(timeout=60)

    assert "Traceback" not in output
    line = output.splitlines()[-1]
    if name == signal.SIGINT:
        assert (process.returncode, line.partition(".")[0]) == (130, "Interrupted")
    else:
        assert process.returncode == 1
        assert line.startswith("error: ")
        assert "Triton" in line
    assert not (project.target / "dummy/onnx-fp32/crosscheck.json").exists()
