"""The batch command on a small model and the real server: order, skipping, blocking, sharing."""

import csv
import json
import os
import re
import shutil
from html import unescape
from typing import get_args
from urllib.parse import unquote

import numpy as np
import pytest

from helpers.results import Quality
from tests.conftest import PRIVATE
from tests.dummy import weights

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

STAGES = ["convert", "deploy", "perf_offline", "perf_online"]
EXPERIMENTS, SERVED = ("onnx-fp32", "openvino-fp32"), STAGES[1:]
MAKING = ("--stage", "export", "--stage", "convert", "--stage", "deploy")
OPENVINO = "openvino-fp32: {format: openvino, precision: fp32}"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_leaves_a_page_for_everything_and_one_shared_export(finished):
    folder = finished.target / "dummy"
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    stages = [f"{each}/{stage}.html" for each in EXPERIMENTS for stage in STAGES]
    assert pages == sorted(["onnx-fp32/export.html", *stages, "compare.html", "report.html"])
    index = (finished.target / "index.html").read_text()
    assert index.count("dummy/onnx-fp32/export.html") == 2
    assert "dummy/index.html" in (finished.root / "outputs/index.html").read_text()


def test_every_link_leads_to_a_file(finished):
    files = [
        page.parent / unquote(unescape(link))
        for page in (finished.root / "outputs").rglob("*.html")
        for link in re.findall('href="([^"#:]+)["#]', page.read_text())
    ]

    assert len(files) > 50
    assert [path for path in files if not path.exists()] == []


def test_no_file_of_a_run_is_open_to_others_if_the_umask_says_so(finished):
    paths = (finished.root / "outputs").rglob("*")
    found = {path.name for path in paths if path.stat().st_mode & PRIVATE}
    assert found <= {"serve.log"}  # which another test has made


def test_results_csv_has_the_published_columns_and_ours(finished):
    with (finished.root / "params/published/resnet50.csv").open() as file:
        published = next(csv.reader(file))
    with (finished.target / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[: len(published)] == published
    names = ("experiment", "scenario", "batch_size", "concurrency")
    points = [("offline", "1", "1"), ("offline", "4", "1"), ("online", "1", "1")]
    points += [("online", "1", "4"), ("request rate", "1", "0")]
    found = [tuple(row[name] for name in names) for row in rows]
    assert found == [(name, *point) for name in EXPERIMENTS for point in points]
    assert {row["gpu"] for row in rows} == {"CPU (dummy)"}
    for row in rows:
        assert row["quality"] in get_args(Quality)
        assert row["quality"] not in ("failed", "unstable")
        overheads = {bool(row[name]) for name in ("noop_latency_ms", "residual_overhead_ms")}
        assert overheads == {row["scenario"] == "offline"}
        # a supervisor, Triton and one or two Pythons that load a runtime
        assert 60 < float(row["server_peak_memory_mb"]) < 2000
        if row["rate"]:
            assert float(row["p50_sent_ms"]) <= float(row["p50_latency_ms"])
            assert not row["throughput_low"]
        elif row["quality"] == "stable":
            assert float(row["throughput_low"]) < float(row["throughput"])
            assert float(row["throughput"]) < float(row["throughput_high"])


def test_each_row_has_its_share_of_a_peak_that_its_stage_measured(finished):
    flop, io_bytes = 2 * 16 * 4, 4 * (16 + 4)  # of a sample of the one layer
    for name in EXPERIMENTS:
        converted = finished.result(name, "convert").profile
        assert len(converted.operators) >= 1
        assert converted.findings[0].startswith("Matrix multiplications and ")
        for stage in ("perf_offline", "perf_online"):
            measurement = finished.result(name, stage).measurement
            for row in measurement.rows:
                batch = row.average_batch_size or row.batch_size
                intensity = flop / (io_bytes + 4 * 16 * 4 / batch)
                most = intensity * measurement.peaks.memory_gb_s
                assert (row.roofline_bound, row.intensity) == ("memory", pytest.approx(intensity))
                share = (row.throughput or 0) * flop / 1e9 / most
                assert row.roofline_share == pytest.approx(share)
    report = (finished.target / "dummy/report.html").read_text()
    assert 'alt="Highest share of the roofline' in report
    assert 'href="roofline.csv"' in report


def test_a_second_run_executes_nothing_within_three_seconds(finished):
    before = os.times()
    answer = finished.run("run", "params/dummy.yaml")
    after = os.times()

    assert (answer.code, answer.executed()) == (0, [])
    # CPU time, because other tests run beside this one. It hardly waits, either
    cpu_seconds = after.children_user + after.children_system
    assert cpu_seconds - before.children_user - before.children_system < 3
    assert after.elapsed - before.elapsed < 30


CHANGED = ('"""', '# changed\n"""')
SERVING = [f"dummy {each} {stage}" for each in EXPERIMENTS for stage in SERVED]
CHANGES = {  # of a file: what would run, and why if not because the file changed
    "params/dummy.yaml": (
        *("openvino-fp32: {", "openvino-fp32: {batch_sizes: [2], "),
        ["dummy openvino-fp32 perf_offline", "dummy report"],
        "its configuration changed (batch_sizes)",
    ),
    "helpers/report/figures.py": (*CHANGED, ["dummy report"], ""),
    **{  # copied or started, and not imported
        f"helpers/triton/{name}.py": (*CHANGED, [*SERVING, "dummy compare", "dummy report"], "")
        for name in ("adapter", "supervisor")
    },
}


def test_a_change_makes_stale_what_it_changes_and_nothing_else(project):
    for name, (old, other, expected, why) in CHANGES.items():
        path = project.root / name
        text = path.read_text()
        path.write_text(text.replace(old, other, 1))
        answer = project.run("run", "params/dummy.yaml", "--dry-run")
        path.write_text(text)
        lines = [line for line in answer.output.splitlines() if "would run (" in line]
        assert sorted(line.partition(":")[0] for line in lines) == sorted(expected), answer.output
        assert f"would run ({why or f'{name} changed'}, about " in lines[0]
    only = ("--force", "--experiment", "openvino-fp32", "--stage", "convert", "--dry-run")
    answer = project.run("run", "params/dummy.yaml", *only)
    assert answer.output.count("would run (") == 1
    assert "dummy openvino-fp32 convert: would run (--force, about " in answer.output


def test_a_changed_notebook_runs_again_and_what_depends_on_its_output_only(project):
    path = project.root / "notebooks/dummy/convert.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] = ["# Another title"]
    path.write_text(json.dumps(notebook))
    answer = project.run("run", "params/dummy.yaml", "--experiment", "onnx-fp32")
    assert answer.executed() == ["dummy onnx-fp32 convert", "dummy report"], answer.output


def test_a_failed_check_fails_its_stage_and_blocks_what_depends_on_it(project):
    network = project.root / "helpers/models/dummy/__init__.py"
    edit(network, '"fp32": (1e-4, 1e-5)', '"fp32": (-1, -1)')
    edit(project.params, OPENVINO, "")
    answer = project.run("run", "params/dummy.yaml", *MAKING)
    assert answer.code == 1
    first, *said = answer.output.splitlines()
    assert first == "pages: outputs/index.html (updated after every stage)"
    failed, *blocked = [line for line in said if line.startswith("[") and "running" not in line]
    words = "[1/3] dummy onnx-fp32 export: failed: exported fp32: output logits differs"
    assert failed.startswith(words)
    assert blocked[:2] == [
        "[2/3] dummy onnx-fp32 convert: blocked: export failed",
        "[3/3] dummy onnx-fp32 deploy: blocked: convert was blocked",
    ]
    result = project.result("onnx-fp32", "export")
    assert result.state == "failed"
    assert result.checks[0].failure
    assert project.result("onnx-fp32", "deploy").state == "blocked"


def test_the_parity_checks_of_an_experiment_say_what_was_compared_with_what(finished):
    def checks(experiment, stage):
        found = finished.result(experiment, stage).checks
        return [(each.name, each.reference, each.samples, each.note) for each in found]

    exported = "same file as the export, not compared again"
    assert checks("onnx-fp32", "convert") == [("converted", "reference", 0, exported)]
    assert checks("openvino-fp32", "convert") == [("converted", "reference", 64, "")]
    for experiment in EXPERIMENTS:
        assert checks(experiment, "deploy") == [
            ("served", "reference", 64, ""),
            ("served", "converted model", 64, ""),
            ("served under load", "reference", 96, ""),
        ]
        _, alone, _ = finished.result(experiment, "deploy").checks
        assert [each.max_difference for each in alone.differences] == [0.0]


FAULTS = {  # of an adapter that answers one request at a time rightly
    "swapped": "responses[:2] = responses[1::-1]",
    "wrong": "outputs['logits'][0] += 1; responses[0] = pb.InferenceResponse("
    "[pb.Tensor('logits', outputs['logits'][:1])])",
    "missing": "responses[0] = pb.InferenceResponse([pb.Tensor('logits', outputs['logits'][:0])])",
}


def test_an_adapter_that_answers_wrongly_under_load_fails_deploy(project):
    adapter = project.root / "helpers/triton/adapter.py"
    right = adapter.read_text()
    edit(project.params, "pairs: 2", "pairs: 2\n      max_queue_delay_us: 20000")
    only = ("--experiment", "onnx-fp32", "--stage", "deploy")

    def reason(fault):
        adapter.write_text(right)
        code = f"        if len(responses) > 1:\n            {FAULTS[fault]}\n"
        edit(adapter, "        return responses\n", f"{code}        return responses\n")
        answer = project.run("run", "params/dummy.yaml", *only)
        assert answer.code == 1
        (line,) = [line for line in answer.output.splitlines() if "deploy: failed: " in line]
        return line.partition("failed: ")[2]

    missing = r"sample (\d+) has no response: Triton sent 0 values of logits for samples \1 to \1"
    assert re.fullmatch(missing, reason("missing"))
    x = np.random.default_rng(1).standard_normal((96, 16)).astype(np.float32)
    logits = x @ weights().T
    words = "served under load fp32: output logits differs from the reference by up to .*; "
    for fault in ("swapped", "wrong"):
        line = reason(fault)
        found = re.fullmatch(words + r"sample (\d+) of 96 is (\S+) instead of (\S+)", line)
        assert found, line
        sample, value, expected = int(found[1]), float(found[2]), float(found[3])
        assert np.isclose(logits[sample], expected).any()
        assert not np.isclose(logits[sample], value).any()
    *_, loaded = project.result("onnx-fp32", "deploy").checks
    assert (loaded.name, loaded.samples) == ("served under load", 96)


def test_a_new_format_is_one_module_and_one_failed_experiment_does_not_stop_it(fresh):
    formats = fresh.root / "helpers/formats"
    shutil.copyfile(formats / "openvino.py", formats / "dummy.py")
    convert = "model = openvino.convert_model(source)"
    edit(formats / "openvino.py", convert, 'raise RuntimeError("on purpose")')
    others = "openvino-bf16: {format: openvino, precision: bf16}\n"
    others += "      dummy-fp32: {format: dummy, precision: fp32}"
    edit(fresh.params, OPENVINO, others)
    edit(fresh.params, "      onnx-fp32: {format: onnx, precision: fp32}\n", "")
    answer = fresh.run("run", "params/dummy.yaml", *MAKING)
    assert answer.code == 1
    ended = ["openvino-bf16 export", "dummy-fp32 convert", "dummy-fp32 deploy"]
    assert answer.executed() == [f"dummy {each}" for each in ended]
    assert "dummy cannot be built as openvino bf16: RuntimeError: on purpose" in answer.output
    assert (fresh.target / "dummy/openvino-bf16/convert.ipynb").exists()
    assert "on purpose" in (fresh.target / "index.html").read_text()
    assert not fresh.result("dummy-fp32", "deploy").scores[0].failure


def test_what_the_machine_cannot_run_is_skipped_before_any_kernel_starts(fresh):
    edit(fresh.params, "device: cpu", "device: gpu")
    answer = fresh.run("run", "params/dummy.yaml", "--stage", "export", "--stage", "deploy")
    assert answer.code == 0
    reason = "skipped: it needs CPU (dummy), but this machine has no NVIDIA driver"
    assert answer.output.count(reason) == 3
    assert not list(fresh.target.rglob("*.ipynb"))


def test_publish_writes_every_page_again_byte_for_byte(project):
    pages = {path: path.read_bytes() for path in (project.root / "outputs").rglob("*.html")}
    for path in pages:
        path.unlink()
    assert project.run("publish").code == 0
    assert {path: path.read_bytes() for path in pages} == pages


def test_status_prints_every_stage(finished):
    answer = finished.run("status")
    assert answer.code == 0
    assert answer.output.splitlines()[0] == "dummy: 11 done"
    assert "  dummy onnx-fp32              deploy        done     accuracy 1.0000" in answer.output
    online = next(line for line in answer.output.splitlines() if "perf_online" in line)
    whole, measuring = map(int, re.findall(r"; (\d+) s \((\d+) s of measurements\)$", online)[0])
    assert 0 < measuring < whole
