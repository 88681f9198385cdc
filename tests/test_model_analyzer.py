"""The comparison with Model Analyzer: what is read of its results, and the table."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import with_model_analyzer
from compare import Refused
from with_model_analyzer import Found

from helpers.config import resolve, results_folder
from helpers.results import Estimate

MODEL = {  # as Model Analyzer 1.58 writes it
    "name": "dummy",
    "maxBatchSize": 4,
    "instanceGroup": [{"count": 3, "kind": "KIND_CPU"}],
    "dynamicBatching": {"maxQueueDelayMicroseconds": "1000"},
    "parameters": {"threads": {"stringValue": "2"}},
    "backend": "python",
}


def measurement(clients, throughput):
    figures = [["perf_latency_p99", {"_value": 80 * clients}]]
    figures += [["perf_throughput", {"_value": throughput}]]
    load = {"batch-size": 1, "concurrency-range": clients}
    one = {"_model_specific_pa_params": load, "_non_gpu_data": figures}
    return {"_model_config_measurements": [one]}


def variant(model, *measurements):
    run = {"_model_run_configs": [{"_model_config_variant": {"model_config": model}}]}
    return [run, {f"-m dummy {number}": each for number, each in enumerate(measurements)}]


def test_each_measurement_of_each_variant_is_read(tmp_path):
    variants = {
        "dummy_config_default": variant(MODEL, measurement(8, 12.5), measurement(16, 13.5)),
        "dummy_config_0": variant({**MODEL, "maxBatchSize": 1}, measurement(2, 40.25)),
    }
    path = tmp_path / "0.ckpt"
    path.write_text(json.dumps({"ResultManager.results": {"_results": {"dummy": variants}}}))

    trials = with_model_analyzer.measured(path)

    assert [trial[1:] for trial in trials] == [(8, 12.5, 640), (16, 13.5, 1280), (2, 40.25, 160)]
    assert [with_model_analyzer.fields(model) for model, *_ in trials] == [
        *[{"instances": 3, "max_batch_size": 4, "max_queue_delay_us": 1000}] * 2,
        {"instances": 3, "max_batch_size": 1, "max_queue_delay_us": 1000},
    ]
    assert trials[0][0].parameters["threads"].string_value == "2"


def test_a_search_that_would_resume_is_refused(tmp_path):
    config = resolve("resnet50", "tune")
    journal = results_folder(config) / "tune_journal.log"
    journal.parent.mkdir(parents=True)
    journal.touch()

    with pytest.raises(Refused, match=f"Remove {journal}"):
        with_model_analyzer.tune(Namespace(), config, tmp_path)


def found(search, winner, clients, config=None):
    return Found(search, 5, 3.04, winner, clients, 20.04, config, Path())


def test_the_table_has_a_row_for_each_search_and_the_ratios_of_the_winners():
    searches = [
        found("quick", {}, 16),
        found("brute", {"instances": 2, "threads": 1}, 8),
        found("tune", {"format": "openvino"}, 4),
    ]
    ratios = {
        4: {"quick": Estimate.of(3.5, (3.25, 3.75)), "brute": Estimate(value=3.0)},
        16: {"quick": Estimate.of(4.0, (3.5, 4.5)), "brute": Estimate.of(2.0, (1.5, 2.5))},
    }

    head, _, *rows = with_model_analyzer.table(searches, ratios).splitlines()

    assert head.endswith("| tune's ÷ this, 4 clients | tune's ÷ this, 16 clients |")
    assert rows == [
        "| quick | 5 | 3.0 | as deployed | 16 | 20.0 | 3.50 (3.25 to 3.75) | 4.00 (3.50 to 4.50) |",
        "| brute | 5 | 3.0 | instances 2, threads 1 | 8 | 20.0 | 3.00 | 2.00 (1.50 to 2.50) |",
        "| tune | 5 | 3.0 | format openvino | 4 | 20.0 |  |  |",
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    not (with_model_analyzer.ENVIRONMENT / "done").exists(),
    reason="Model Analyzer's environment is not made "
    "(python .ci/alternatives/with_model_analyzer.py)",
)
@pytest.mark.usefixtures("nothing_left")
def test_all_three_search_and_their_winners_are_compared(project):
    chosen = ("--params", "params/dummy.yaml", "--model", "dummy", "--minutes", "0.7")
    env = {**os.environ, "PYTHONPATH": str(project.path)}
    done = subprocess.run(
        [sys.executable, with_model_analyzer.__file__, *chosen],
        **{"cwd": project.root, "env": env, "capture_output": True, "text": True, "timeout": 600},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ")[0] for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows == ["| search", "| quick", "| brute", "| tune"]
