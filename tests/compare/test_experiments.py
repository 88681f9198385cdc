"""The comparison of experiments: what it decides on planted speeds and latencies."""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.compare import experiments
from helpers.compare.experiments import ExperimentGroup, candidates, memory_groups, workloads
from helpers.config import configure, read_file
from helpers.errors import MeasurementError, ServerError
from helpers.measure import Candidate, Window
from helpers.results import ComparedExperiment, Comparison, Estimate
from helpers.store import ROOT
from helpers.triton import Server
from tests import comparisons as planted


def planned(model="resnet50", **overrides):
    return configure(read_file(ROOT / "params/cpu.yaml"), model, "", "compare", overrides)


@dataclass
class Planted(ExperimentGroup):
    """Servers with planted request latencies (ms): a client's next request follows its last."""

    latencies_ms: dict = field(default_factory=dict)
    late: dict = field(default_factory=dict)  # the share of requests that take 1 s
    dying: str = ""
    clock: float = 0.0
    random: object = field(default_factory=lambda: np.random.default_rng(0))

    def serve(self, opened):
        for name, config in self.configs.items():
            if name not in self.latencies_ms:
                self.failures[name] = "Triton ended while it started"
                continue
            server = SimpleNamespace(processes=(), codec=None)
            self.running[name] = Candidate(server, config, self.clients)

    def load(self, candidate, seconds):
        name = candidate.config.experiment
        if name == self.dying and self.clock > 3:
            raise ServerError("Triton ended during the measurement")
        gap = self.latencies_ms[name] / candidate.clients * self.random.lognormal(0, 0.01)
        count = int(1000 * seconds / gap)
        spent = self.random.lognormal(np.log(self.latencies_ms[name]), 0.01, count)
        late = self.late.get((name, candidate.clients), self.late.get(name, 0.0))
        spent[self.random.random(count) < late] += 1000
        ends = gap * np.arange(1, count + 1) * 1e6
        self.clock += seconds
        requests = np.stack([ends - spent * 1e6, ends], axis=1).astype(np.int64)
        return Window(requests, candidate.config.online_batch_size, candidate.clients)


SPEEDS = {"onnx-fp32": 20.0, "openvino-fp32": 16.0, "openvino-int8": 5.0}


@pytest.fixture
def measured(monkeypatch):
    """Measure planted experiments on a clock that only their runs move."""
    monkeypatch.setattr(experiments, "wait_until_quiet", lambda: 0.0)

    def measure(latencies_ms=SPEEDS, budget_ms=200.0, late=None, dying="", seconds=90.0, **fields):
        config = planned(latency_budget_ms=budget_ms, **fields)
        by_name = {one.experiment.partition("~")[0]: one for one in config.candidates}
        configs = {n: by_name[n].model_copy(update={"experiment": n}) for n in SPEEDS}
        given = {"latencies_ms": latencies_ms, "late": late or {}, "dying": dying}
        group = Planted(configs, "onnx-fp32", 4, seconds, lambda _: None, **given)
        monkeypatch.setattr(experiments.time, "monotonic", lambda: group.clock)
        found = group.measure()
        about = {"baseline": "onnx-fp32", "clients": 4, "batch_size": 1}
        of = Comparison(**about, latency_budget_ms=budget_ms, experiments=tuple(found))
        return {one.experiment: one for one in found}, of

    return measure


def test_planted_speeds_have_ratios_with_intervals_that_hold_them(measured):
    found, comparison = measured()

    for name, right in (("openvino-int8", 4.0), ("openvino-fp32", 1.25)):
        ratio = found[name].ratio_to_baseline
        assert ratio.low < right < ratio.high
        assert ratio.value == pytest.approx(right, rel=0.02)
    assert found["onnx-fp32"].ratio_to_fastest.value == pytest.approx(1 / 4, rel=0.02)
    assert comparison.recommended.experiment == "openvino-int8"
    assert comparison.rivals == []
    for name, right in SPEEDS.items():  # of single requests
        p50, p90 = found[name].p50_latency_ms, found[name].p90_latency_ms
        assert p50.value == pytest.approx(right, rel=0.02)
        assert p50.low <= p50.value <= p50.high <= p90.high
    assert comparison.lowest_latency.experiment == "openvino-int8"


def test_the_fastest_is_measured_until_its_budget_is_met(measured, monkeypatch):
    looks, decide = [], experiments.check_budget
    monkeypatch.setattr(
        experiments, "check_budget", lambda ms, budget: looks.append(len(ms)) or decide(ms, budget)
    )
    found, _ = measured()

    assert len(looks) <= 3  # each look may decide wrongly
    (check,) = found["openvino-int8"].budgets
    assert (check.state, check.clients) == ("met", 4)
    assert check.requests >= 368  # what it takes with none that is late
    assert check.p99_latency_ms == pytest.approx(5, rel=0.1)
    assert found["openvino-fp32"].budgets == ()


def test_the_next_is_measured_if_the_fastest_breaks_the_budget(measured):
    found, comparison = measured(late={"openvino-int8": 0.1})

    assert found["openvino-int8"].budgets[0].state == "not met"
    assert found["openvino-fp32"].met
    assert comparison.recommended.experiment == "openvino-fp32"
    assert "too slow: p99 is" in found["openvino-int8"].budgets[0].in_words(200)


def test_a_budget_that_nothing_meets_is_too_slow_for_each(measured):
    found, comparison = measured(budget_ms=1.0)

    assert {check.state for one in found.values() for check in one.budgets} == {"not met"}
    assert {check.clients for check in found["openvino-int8"].budgets} == {1, 4}
    assert comparison.recommended is None


def test_too_little_time_leaves_a_budget_unconfirmed_with_what_it_needs(measured):
    found, _ = measured(seconds=10.0, late={"openvino-int8": 0.01})

    check = found["openvino-int8"].budgets[0]
    assert check.state == "unconfirmed"
    assert check.needed > check.requests
    assert f"not confirmed: {check.requests:,} of {check.needed:,} requests" in check.in_words(200)


@pytest.mark.parametrize(("share", "state"), [(0.0098, "unconfirmed"), (0.1, "not met")])
def test_fewer_clients_are_tried_before_a_slower_experiment(share, state, measured):
    found, comparison = measured(late={("openvino-int8", 4): share})

    checks = found["openvino-int8"].budgets
    assert [(one.clients, one.state) for one in checks] == [(4, state), (1, "met")]
    assert found["openvino-fp32"].budgets == ()
    assert comparison.recommended.experiment == "openvino-int8"


def test_without_a_budget_only_speed_decides(measured):
    found, comparison = measured(budget_ms=None)

    assert all(one.budgets == () for one in found.values())
    assert comparison.recommended.experiment == "openvino-int8"


def test_an_experiment_whose_server_dies_has_the_reason_and_the_others_go_on(measured):
    found, comparison = measured(dying="openvino-int8")

    assert found["openvino-int8"].reason == "Triton ended during the measurement"
    assert found["openvino-int8"].throughput is None
    assert found["openvino-fp32"].ratio_to_baseline.value == pytest.approx(1.25, rel=0.02)
    assert comparison.recommended.experiment == "openvino-fp32"


def test_an_experiment_that_does_not_start_is_left_out_with_the_reason(measured):
    found, comparison = measured({"onnx-fp32": 20.0})

    ended = "Triton ended while it started"
    assert [one.reason for one in found.values()] == ["", ended, ended]
    assert comparison.recommended.experiment == "onnx-fp32"
    assert found["onnx-fp32"].met


def test_without_the_baseline_the_others_are_compared_with_the_first_of_them(measured):
    found, _ = measured({"openvino-fp32": 16.0, "openvino-int8": 8.0})

    assert found["openvino-int8"].ratio_to_baseline.value == pytest.approx(2, rel=0.02)
    lost = planted.compared(plain="died", first=1.0, second=2.0)
    assert experiments._measured_baseline(lost.experiments) == "first"
    assert experiments._measured_baseline(planted.compared(plain="died").experiments) == ""


def test_what_uses_too_much_memory_keeps_its_figures_and_is_not_recommended(measured, monkeypatch):
    peaks = iter([100.0, 100.0, 900.0])
    monkeypatch.setattr(experiments, "watch_bounded", lambda *_: partial(float, next(peaks)))
    found, comparison = measured(max_memory_mb=800)

    reason = "the server uses 900 MB, max_memory_mb is 800"
    assert [one.reason for one in found.values()] == ["", "", reason]
    assert found["openvino-int8"].throughput
    assert found["openvino-int8"].budgets == ()
    assert comparison.recommended.experiment == "openvino-fp32"


def test_a_price_gives_costs_and_counted_energy_is_per_inference(measured, monkeypatch):
    monkeypatch.setattr(experiments, "watch_energy", lambda _: lambda: 30.0)  # a run, in joules
    found, _ = measured(price_per_hour=3.6)

    for one in found.values():
        assert one.cost_per_million.value == pytest.approx(1000 / one.throughput.value)
        assert one.cost_per_million.low == pytest.approx(1000 / one.throughput.high)
        inferences = one.throughput.value * experiments.RUN_SECONDS
        assert one.joules_per_inference == pytest.approx(30 / inferences, rel=0.05)


def test_equal_speeds_are_rivals(measured):
    _, comparison = measured({"onnx-fp32": 20.0, "openvino-fp32": 5.0, "openvino-int8": 5.0})

    names = {comparison.recommended.experiment, *(one.experiment for one in comparison.rivals)}
    assert names == {"openvino-fp32", "openvino-int8"}


def test_experiments_that_differ_in_the_protocol_alone_have_one_server(monkeypatch, tmp_path):
    starts = []

    @contextmanager
    def served(config):
        starts.append((config.experiment, config.protocol))
        grpc = "127.0.0.1:2" if config.protocol == "grpc" else ""
        yield Server("127.0.0.1:1", "", tmp_path, grpc_address=grpc)

    warm = SimpleNamespace(warm=lambda server, config, clients: server.protocol)
    monkeypatch.setattr(experiments, "served", served)
    monkeypatch.setattr(experiments, "prepared_requests", lambda *_: nullcontext(warm))
    by_name = {one.experiment: one for one in planned().candidates}
    chosen = ("onnx-fp32", "openvino-fp32", "onnx-fp32-grpc")
    group = ExperimentGroup({n: by_name[n] for n in chosen}, "onnx-fp32", 1, 9.0, print)

    with ExitStack() as opened:
        group.serve(opened)

    assert starts == [("onnx-fp32", "grpc"), ("openvino-fp32", "http")]
    assert group.running == dict(zip(chosen, ("http", "http", "grpc"), strict=True))


def test_servers_that_do_not_fit_in_memory_run_in_groups_with_the_baseline():
    needs = {"base": 100.0, "a": 300.0, "b": 300.0, "c": 500.0, "d": 5000.0}

    assert memory_groups(needs, 1e6, "base") == [["base", "a", "b", "c", "d"]]
    assert memory_groups(needs, 800, "base") == [["base", "a", "b"], ["base", "c"], ["base", "d"]]
    assert memory_groups({"base": 1.0}, 0.5, "base") == [["base"]]


def test_too_little_memory_gives_groups_whose_ratios_go_through_the_baseline(monkeypatch):
    ticks = count(0.0, 0.05)
    monkeypatch.setattr(experiments.time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(experiments, "wait_until_quiet", lambda: 0.0)
    monkeypatch.setattr(experiments, "free_memory", lambda: 1e9)
    monkeypatch.setattr(experiments, "require", lambda *_: SimpleNamespace(size_mb=100.0))
    monkeypatch.setattr(experiments, "fault", lambda _: "")
    monkeypatch.setattr(experiments, "ExperimentGroup", partial(Planted, latencies_ms=SPEEDS))
    config = planned()
    chosen = tuple(one for one in config.candidates if one.experiment in SPEEDS)

    config = config.model_copy(update={"candidates": chosen})
    (found,) = experiments.compare_experiments(config, lambda _: None)

    assert found.groups == 2
    assert [one.group for one in found.experiments] == [0, 0, 1]
    assert [one.experiment for one in found.ranked] == [*reversed(SPEEDS)]
    middle = found.ranked[1].ratio_to_fastest
    assert middle.value == pytest.approx(5 / 16, rel=0.03)
    assert middle.low < middle.value < middle.high
    assert found.recommended.experiment == "openvino-int8"
    assert found.rivals == []


def test_ratios_of_groups_are_related_by_the_baseline():
    ratios = Estimate(value=2, low=1.6, high=2.5), Estimate(value=4, low=3.2, high=5)
    ones = [ComparedExperiment(experiment="", ratio_to_baseline=ratio) for ratio in ratios]

    first, second = (one.ratio_to_fastest for one in experiments._related(ones))

    reach = np.exp(np.hypot(np.log(2.5 / 1.6), np.log(5 / 3.2)) / 2)
    assert (first.value, first.low) == pytest.approx((0.5, 0.5 / reach))
    assert second == Estimate(value=1.0)


def test_experiments_of_other_data_or_tensors_are_other_workloads():
    one, *others = planned("tft").candidates
    traffic = one.model_copy(update={"experiment": "other", "variant": "traffic"})

    groups = workloads({each.experiment: each for each in (one, traffic, *others)})

    assert list(groups) == ["electricity", "traffic"]
    assert [each.experiment for each in groups["traffic"]] == ["other"]
    assert list(workloads({"a": one})) == [""]


def test_an_experiment_whose_checks_did_not_pass_is_left_out(monkeypatch):
    config = planned()
    wrong = {"openvino-int8": "deploy failed: top-1 is 0.1"}
    monkeypatch.setattr(experiments, "fault", lambda one: wrong.get(one.experiment, ""))

    passed, reasons = candidates(config)

    assert reasons == wrong
    assert list(passed) == [
        *("onnx-fp32", "openvino-fp32", "openvino-bf16", "ts-trace-fp32", "onnx-fp32-grpc")
    ]


def test_without_any_experiment_the_error_says_why():
    with pytest.raises(MeasurementError, match=r"no experiment can be compared: export has not"):
        candidates(planned())
    with pytest.raises(MeasurementError, match="every experiment has compare: false"):
        candidates(planned(compare=False))
