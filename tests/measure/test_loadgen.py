"""LoadGen as a second meter: what it asks, what it records, and whether the answers are right."""

import itertools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from helpers.__main__ import main
from helpers.errors import ServerError
from helpers.measure import loadgen
from helpers.measure.loadgen import Test as Task
from helpers.measure.loadgen import Trial, compare, flat, judge, run, wrong_response
from helpers.measure.rows import Window
from helpers.store import ROOT
from tests.conftest import processes, wait_for

SAMPLES = [{"x": np.full((2, 3), index, np.float32)} for index in range(16)]
RIGHT = [flat({"y": 2 * each["x"]}, ["y"], 0, 2) for each in SAMPLES]
TOLERANCES = np.full(6, 0.1)


class Doubling:
    """A stand-in server, whose speed is known: it doubles what it gets."""

    def __init__(self, seconds=0.0):
        self.seconds, self.asked = seconds, []
        self.under_way = self.most = 0

    def answer(self, inputs):
        self.asked.append(inputs)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        time.sleep(self.seconds)
        self.under_way -= 1
        return {"y": 2 * inputs["x"]}

    def with_client(self, model, talk):
        return talk(self.answer)

    def load(self, *test, **fields):
        return run(self, "double", SAMPLES, ["y"], Task(*test, **fields))

    def indexes(self):
        return [int(sample[0]) for batch in self.asked for sample in batch["x"][::2]]


@pytest.mark.parametrize("scenario", ["SingleStream", "Server", "Offline"])
def test_each_sample_is_asked_once_and_a_tenth_of_the_answers_is_kept(scenario):
    server = Doubling()

    trial = server.load(scenario, 100, rate=2000, joined=8)

    assert len(trial.latencies_ms) == len(server.indexes()) == 100
    assert len(server.asked) == (13 if scenario == "Offline" else 100)
    assert 3 <= len(trial.answers) <= 25
    assert all((values == RIGHT[index]).all() for index, values in trial.answers)
    assert wrong_response(trial, RIGHT, TOLERANCES) == ""


def test_latencies_are_from_when_a_sample_was_due_and_offline_all_are_due_at_once():
    server = Doubling(0.02)
    trial = server.load("Offline", 40, joined=4)

    ends = trial.latencies_ms.reshape(10, 4)  # four samples in each of ten requests
    assert (np.ptp(ends, axis=1) < 10).all()
    assert (np.diff(ends[:, 0], prepend=0) >= 20).all()
    assert server.most == 1
    assert Doubling(0.01).load("SingleStream", 5).latencies_ms.min() >= 10


def test_a_stall_counts_for_every_sample_that_was_due_meanwhile():
    class Stalling(Doubling):
        def answer(self, inputs):
            found = super().answer(inputs)
            if len(self.asked) == 20:
                self.ends = time.monotonic() + 0.4
            time.sleep(max(0, getattr(self, "ends", 0) - time.monotonic()))
            return found

    trial = Stalling().load("Server", 100, rate=100)

    assert 0.25 < (trial.latencies_ms > 40).mean() < 0.7
    assert trial.latencies_ms.max() > 350


def test_a_server_has_several_requests_under_way():
    server = Doubling(0.05)
    server.load("Server", 30, rate=200)

    assert server.most > 2


def test_one_seed_asks_the_same_samples_again():
    first, again, other = Doubling(), Doubling(), Doubling()
    for server, seed in ((first, 1), (again, 1), (other, 2)):
        server.load("SingleStream", 50, seed)

    assert first.indexes() == again.indexes() != other.indexes()


def test_answers_swapped_within_a_request_are_found():
    class Swapping(Doubling):
        def answer(self, inputs):
            found = super().answer(inputs)["y"]
            return {"y": np.concatenate([found[2:4], found[:2], found[4:]])}

    trial = Swapping().load("Offline", 96, joined=8)

    assert "the reference is" in wrong_response(trial, RIGHT, TOLERANCES)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([6, 6, 6, 6, 6.2, 6], "value 4 of sample 3 is 6.2, the reference is 6 (tolerance 0.1)"),
        ([6, np.nan, 6, 6, 6, 6], "value 1 of sample 3 is nan, the reference is 6 (tolerance 0.1)"),
        ([6, 6, 6], "sample 3 has 3 values, the reference 6"),
        ([6.09, 6, 6, 6, 6, 5.91], ""),
    ],
)
def test_a_wrong_answer_is_described(values, words):
    trial = Trial(np.ones(1), [(2, RIGHT[2]), (3, np.array(values))])

    assert wrong_response(trial, RIGHT, TOLERANCES) == words


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["SingleStream", "Offline", "Server"])
def test_after_a_failed_request_no_other_is_sent_and_loadgen_ends(scenario):
    class Failing(Doubling):
        def answer(self, inputs):
            found = super().answer(inputs)
            if len(self.asked) > 4:
                raise ServerError("it has ended")
            return found

    server = Failing(0.01)
    with pytest.raises(ServerError, match="it has ended"):
        server.load(scenario, 40, rate=20, joined=2)
    assert len(server.asked) < 8  # others may be under way


@pytest.fixture
def compared(monkeypatch):
    """Compare both, where LoadGen sees so many rows a second and perf_analyzer 100, or others."""
    monkeypatch.setattr(loadgen.background, "wait_until_quiet", lambda *_: 0.0)
    noise = np.random.default_rng(0)

    def noisy(mean, count):
        return mean * noise.uniform(0.99, 1.01, count)

    def by_loadgen(rate):
        def load(test):  # of samples of 2 rows
            gaps = noisy(2000 / rate, test.count)
            return Trial(np.cumsum(gaps) if test.scenario == "Offline" else gaps, [])

        return load

    def open_loop(_, count):
        """Each answer is as late as LoadGen's would be on a server without queue."""
        due = np.arange(count) * 10**9
        return Window(np.stack([due, due + noisy(2e7, count).astype(int)], axis=1), 2, 0, due)

    def compare_at(rate, others, budget_ms):
        speeds = itertools.cycle(others)

        def closed_loop(rows):
            gaps = noisy(1e9 * rows / next(speeds), 100)
            ends = np.cumsum(gaps)
            return Window(np.stack([ends - gaps, ends], axis=1).astype(np.int64), rows, 1)

        return compare(by_loadgen(rate), closed_loop, open_loop, 2, 4, budget_ms)

    return compare_at


@pytest.mark.parametrize(
    ("slower", "quality"),
    [(1.0, "equivalent"), (1.09, "equivalent"), (1.2, "differ"), (0.8, "differ")],
)
def test_load_generators_are_equivalent_within_a_tenth(slower, quality, compared):
    single, offline, server = rows = compared(100 / slower, [100], 30 * slower)

    assert [row["quality"] for row in rows] == [quality] * 3
    assert [row["batch_size"] for row in rows] == [2, 8, 2]
    own, other = (float(single[name].split()[0]) for name in ("LoadGen", "perf_analyzer"))
    assert own / other == pytest.approx(slower, rel=0.01)
    assert float(offline["ratio"].split()[0]) == pytest.approx(1 / slower, rel=0.01)
    assert "90% CI" in server["ratio"]
    assert server["reason"].endswith(
        f"25 requests/s (Poisson arrivals); 100.0% of 500 requests within {30 * slower:g} ms"
    )
    where = "90% CI is within" if quality == "equivalent" else "95% CI is outside"
    assert single["reason"] == f"the ratio's {where} 0.91 to 1.10"


def test_noise_of_one_load_generator_leaves_it_undecided(compared):
    single, *_ = compared(130, [60, 140, 90, 110, 80], None)

    assert single["quality"] == "not decided"
    assert single["reason"] == "too noisy: the ratio's CI crosses 0.91 or 1.10"
    assert re.fullmatch(r"15\.\d+ \(15\.\d+ to 15\.\d+\)", single["LoadGen"])


@pytest.mark.parametrize("truth", [0.8, 0.91, 1, 1.05, 1.1001, 1.3])
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.2])
def test_the_verdict_is_that_of_two_one_sided_t_tests(truth, noise):
    for logs in np.random.default_rng(3).normal(np.log(truth), noise, (50, 5)):

        def chance(margin, side, logs=logs):
            return ttest_1samp(logs, np.log(margin), alternative=side).pvalue

        word, _ = judge(np.exp(logs))
        within = max(chance(1 / 1.1, "greater"), chance(1.1, "less")) <= 0.05
        outside = min(chance(1.1, "greater"), chance(1 / 1.1, "less")) <= 0.025
        assert word == ("equivalent" if within else "differ" if outside else "not decided")


def test_two_rounds_decide_nothing():
    assert judge([1.0, 1.0]) == ("not decided", "too few runs")


def crosscheck(*more):
    return main(["crosscheck", str(ROOT / "params/smoke.yaml"), "--model", "resnet50", *more])


def test_without_loadgen_one_line_names_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)

    assert crosscheck() == 1
    assert capsys.readouterr().err == (
        "error: LoadGen is not installed. Run: pip install 'mlcommons-loadgen>=6.0.17,<7'\n"
    )


def test_what_cannot_be_checked_is_one_line(capsys):
    assert crosscheck("--experiment", "mine") == 2
    error = "params/smoke.yaml has no experiment 'mine'. Use one of onnx-fp32, openvino-bf16."
    assert capsys.readouterr().err == f"error: {error}\n"
    assert crosscheck() == 1
    assert capsys.readouterr().err == (
        "error: resnet50 onnx-fp32 has no deploy result yet. Run: triton-notebooks run "
        "params/smoke.yaml --model resnet50 --experiment onnx-fp32 --stage deploy\n"
    )


COMMAND = ("crosscheck", "params/dummy.yaml", "--model", "dummy", "--experiment", "onnx-fp32")


def shorten(project, rounds=3):
    path = project.root / "helpers/measure/loadgen.py"
    text = path.read_text().replace("ROUNDS = 5", f"ROUNDS = {rounds}")
    path.write_text(text.replace("SECONDS = 2.0", "SECONDS = 0.3").replace("= 4.0, 16", "= 1.0, 4"))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_both_meters_measure_one_server_and_the_report_shows_it(project):
    shorten(project)

    answer = project.run(*COMMAND)

    *_, single, offline, server = answer.output.splitlines()
    latency, throughput = "p90 latency (ms), LoadGen ", "throughput (samples/s), LoadGen "
    assert single.startswith(f"scenario SingleStream, batch_size 1, metric {latency}")
    assert offline.startswith(f"scenario Offline, batch_size 4, metric {throughput}")
    assert server.startswith(f"scenario Server, batch_size 1, metric {latency}")
    # a request of tritonclient takes 0.3 ms longer than one of perf_analyzer, which is much here
    assert answer.code == int("quality differ" in answer.output), answer.output
    facts = json.loads((project.target / "dummy/onnx-fp32/crosscheck.json").read_text())
    assert facts["answers_compared"] > 50
    assert project.run("run", "params/dummy.yaml", "--stage", "report").code == 0
    page = (project.target / "dummy/report.html").read_text()
    again = "run triton-notebooks crosscheck params/dummy.yaml --model dummy --experiment openvino"
    for words in ("Two load generators", "SingleStream", again):
        assert words in page


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_an_answer_unlike_the_frameworks_fails_with_both_values(project):
    shorten(project)
    (path,) = project.root.glob("outputs/data/dummy-reference-*/samples.npz")
    with np.load(path) as arrays:
        logits = arrays["logits"].copy()
    before = logits[:, 2].copy()
    logits[:, 2] += 0.5
    np.savez(path, logits=logits)

    answer = project.run(*COMMAND)

    line = answer.output.splitlines()[-1]
    start = "error: dummy onnx-fp32: wrong response in LoadGen's scenario SingleStream: value 2 of"
    assert answer.code == 1
    sample = int(re.match(rf"{start} sample (\d+) ", line)[1])
    assert f"is {before[sample]:.4g}"[:-1] in line
    assert f"the reference is {logits[sample, 2]:.4g}"[:-1] in line
    assert not (project.target / "dummy/onnx-fp32/crosscheck.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", [signal.SIGKILL, signal.SIGINT], ids=["server", "Ctrl-C"])
def test_an_end_in_the_middle_is_one_line_and_leaves_nothing(project, name):
    shorten(project, rounds=1000)
    process = project.start(*COMMAND)

    def perf_analyzers():
        return processes(str(project.root), "/perf_analyzer -m") or process.poll() is not None

    first = wait_for(perf_analyzers)
    wait_for(lambda: perf_analyzers() not in ([], first))  # LoadGen had a turn
    assert (project.target / "dummy/onnx-fp32/crosscheck_server.log").exists()
    if name == signal.SIGINT:
        os.killpg(process.pid, signal.SIGINT)
    else:
        for pid in processes(str(project.root), "tritonserver --model-repository"):
            if "supervisor.py" not in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, name)
    output, _ = process.communicate(timeout=600)

    assert "Traceback" not in output
    words = r"Interrupted\." if name == signal.SIGINT else "error: .*Triton"
    assert re.match(words, output.splitlines()[-1])
    assert process.returncode == (130 if name == signal.SIGINT else 1)
    assert not (project.target / "dummy/onnx-fp32/crosscheck.json").exists()
