"""Rows, results, reports and pages that several tests of reports read."""

from html.parser import HTMLParser

import numpy as np
from pandas import DataFrame

from helpers.config import resolve
from helpers.display import Table
from helpers.report import Answer, analysis
from helpers.report.site import StageState
from helpers.results import LATENCY_COMPONENTS, Difference, Measurement, ParityCheck, Result, Row
from helpers.results.types import Fingerprint
from helpers.store import outputs
from tests.comparisons import TOO_SLOW, check, compared

PARTS = dict(zip(LATENCY_COMPONENTS, (0.1, 0.4, 2.0, 0.1, 7.0, 0.2, 0.2), strict=True))


def report(name="tft", budget=None, **fields):
    config = resolve(name, "report")
    return config.model_copy(update={"latency_budget_ms": budget, **fields})


def result(stage, **fields):
    """A stage of an experiment that was done on a CPU, unless `fields` say otherwise."""
    usual = {"model": "tft", "experiment": "mine", "gpu": "CPU", "state": "done"}
    return Result(**usual | {"stage": stage} | fields)


def measurement(*rows, **fields):
    return Measurement(rows=rows, distinct_rows=8, background_before=0.1, **fields)


def fingerprint(**config):
    return Fingerprint(config=config, notebook="0" * 64, versions={}, inputs={})


def parity(difference, name="served", output="y"):
    """A check with a difference of so many standard deviations, where 0.1 are allowed."""
    own = {"output": output, "max_difference": difference, "mean_difference": 0.0}
    one = Difference(max_bound=0.1, mean_bound=0.1, **own)
    return ParityCheck(name=name, precision="FP32", samples=64, differences=(one,))


def row(throughput=100, relative=0.02, **fields):
    """A row known to about ±2%, or as `relative` says."""
    ends = {"low": throughput / (1 + relative), "high": throughput * (1 + relative)}
    usual = {f"throughput_{end}": value for end, value in ends.items()}
    usual |= {"batch_size": 8, "concurrency": 1, "quality": "stable", "throughput": throughput}
    usual |= {"p99_latency_ms": 20.0, "requests": 100, "scenario": "online"}
    return Row(**usual, experiment="onnx").model_copy(update={"dataset": "generated", **fields})


def results_of(rows, model="tft"):
    """The results of the experiments whose rows these are."""
    found = {}
    for each in rows:
        stage = "perf_offline" if each.scenario == "offline" else "perf_online"
        found.setdefault(each.experiment, {}).setdefault(stage, []).append(each)
    return {
        name: {
            stage: result(stage, model=model, experiment=name, measurement=measurement(*rows))
            for stage, rows in stages.items()
        }
        for name, stages in found.items()
    }


def frame(*rows, budget=None, open_loop=False):
    return analysis.frame(report(budget=budget), results_of(rows), open_loop=open_loop)


def keep_requests(experiment, runs):
    """Keep the start and end of the requests of some runs where a report looks for them."""
    path = outputs() / report().target / "tft" / experiment / "perf_online_requests.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, **runs)


def stage_rows(*given):
    """Rows of a stage that are stable and known to ±2% unless they say otherwise."""
    found = []
    for fields in given:
        rate = fields.get("throughput", 100.0)
        usual = {"batch_size": 1, "concurrency": 1, "quality": "stable", "throughput": rate}
        usual |= {"throughput_low": 0.98 * rate, "throughput_high": 1.02 * rate}
        usual |= {"p50_latency_ms": 10.0, "avg_latency_ms": 10.0, **PARTS}
        found.append(Row.model_validate(usual | fields))
    return found


def stage_frame(*given):
    rows = [each.model_dump() for each in stage_rows(*given)]
    return DataFrame(rows, columns=list(Row.model_fields))


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def words(figure):
    found = [text for legend in figure.legends for text in texts(legend)]
    return " | ".join(found + [text.get_text() for axes in figure.axes for text in axes.texts])


def captions(shown):
    """Those of the tables that were displayed."""
    return [each.caption for each in shown if isinstance(each, Table)]


class Page(HTMLParser):
    """Collects a page's tags with their attributes, and its text outside of style."""

    def __init__(self, html):
        super().__init__()
        self.tags = []
        self.texts = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] != "style":
            self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def stage(name, state, *, experiment="onnx", **more):
    return StageState("bert", experiment, name, state, **more)


def stages():
    """BERT's stages, one or more in each state of a run that has ended."""
    blocked = {"reason": "deploy failed"}
    return [
        stage("export", "done", headline="436 MB", href="bert/onnx/export.html", seconds=125.0),
        stage("convert", "skipped", reason="needs a GPU"),
        stage("deploy", "failed", reason="<script>alert(1)</script>", href="bert/onnx/deploy.html"),
        stage("perf_offline", "blocked", **blocked),
        stage("perf_online", "blocked", **blocked),
        stage("export", "done", experiment="second", finished="2025-03-04 11:20"),
        *(stage(name, "missing", experiment="second") for name in ("convert", "deploy")),
        stage("report", "done", experiment="", headline="10 samples/s", href="bert/report.html"),
    ]


def answers():
    """BERT's, of two workloads: of one it is known what to deploy, and the other is too slow."""
    budgets = {"onnx <fp32>": check(), "int8": TOO_SLOW}
    workloads = {
        "small": compared(200, budgets, **{"onnx <fp32>": 1.0, "near": 0.98, "int8": 4.0}),
        "large": compared(200, {"onnx": TOO_SLOW}, onnx=1.0),
    }
    named = (one.model_copy(update={"workload": name}) for name, one in workloads.items())
    return {"bert": [Answer(one) for one in named]}
