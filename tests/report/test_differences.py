"""Two outputs folders: a change that was planted is found, and one that was not is seldom seen."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from helpers.__main__ import main
from helpers.measure.statistics import geometric_mean, log_interval
from helpers.report import compare_folders
from helpers.results import Row, Score
from helpers.store import ROOT
from tests.report import builders

NOISE, RUNS = 0.03, 6
OLD = ROOT / "tests/results/data/schema_2.json"
CONFIG = {"dataset": "generated", "variant": "", "threads": 1, "distinct_rows": 64}
LOADS = (1, 2, 4, 8)
SLOW = (80, 81, 79)


def a_row(runs=(100, 101, 99), **fields):
    interval = log_interval(runs)
    known = {"throughput_low": interval.low, "throughput_high": interval.high}
    known |= {"throughput": geometric_mean(runs), "quality": "stable", "machine_gflops": 100.0}
    row = Row(batch_size=1, concurrency=1, scenario="online", **known)
    return row.model_copy(update=fields)


def a_result(stage="perf_online", **fields):
    made_from = builders.fingerprint(**CONFIG | fields.pop("config", {}))
    usual = {"model": "resnet50", "experiment": "onnx-fp32", "fingerprint": made_from}
    return builders.result(stage, **usual | fields)


def measured(*rows, **fields):
    return a_result(measurement=builders.measurement(*rows), **fields)


def scored(accuracy, **fields):
    score = Score(metric="accuracy", framework=0.9, served=accuracy, bound=0.8, better="higher")
    return a_result("deploy", scores=(score,), **fields)


def write(folder, *results, target="cpu"):
    for result in results:
        path = folder / target / result.model / result.experiment / f"{result.stage}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result.model_dump_json())
    return folder


def compared(tmp_path, before, after, limit=None):
    folders = write(tmp_path / "a", before), write(tmp_path / "b", after)
    return compare_folders(*folders, limit)


def outcomes(comparison):
    return [(finding.outcome, finding.reason) for finding in comparison.findings]


def a_run(folder, random, slow=1.0):
    """Twenty rows of five experiments; the throughput of the first is multiplied by `slow`."""
    for number, speed in enumerate((100 * slow, 100, 100, 100, 100)):
        runs = [(clients, speed * random.lognormal(0, NOISE, RUNS)) for clients in LOADS]
        rows = [a_row(each, concurrency=clients) for clients, each in runs]
        write(folder, measured(*rows, experiment=f"e{number}"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "count"), [(1.0, 200), (0.85, 100)])
def test_equal_folders_pass_and_one_slower_experiment_fails_in_19_of_20(slow, count, tmp_path):
    random, (a, b) = np.random.default_rng(0), (tmp_path / "a", tmp_path / "b")
    found = [compare_folders(a_run(a, random), a_run(b, random, slow), 0.05) for _ in range(count)]

    assert {len(each.findings) for each in found} == {20}
    assert sum(each.is_failure == (slow < 1) for each in found) >= 0.95 * count
    judged = [{finding.outcome for finding in each.findings} for each in found]
    wrong = sum(bool(outcomes & {"faster", "slower"}) for outcomes in judged)
    assert slow < 1 or wrong <= 0.05 * count + 2 * (0.05 * 0.95 * count) ** 0.5


def test_a_row_fails_only_if_its_whole_interval_is_slower_than_the_limit(tmp_path):
    runs = (100, 101, 99), (93, 94, 92)
    before, after = (measured(a_row(each)) for each in runs)

    found = [compared(tmp_path, before, after, limit) for limit in (None, 0.0, 0.02, 0.05)]

    assert [each.findings[0].outcome for each in found] == ["slower"] * 4
    assert [each.is_failure for each in found] == [False, True, True, False]
    ratio = found[0].findings[0].ratio
    assert ratio.value == pytest.approx(0.93, abs=0.001)
    margins = [log_interval(each) for each in runs]
    reach = np.hypot(*(np.log(each.high / each.low) / 2 for each in margins))
    assert ratio.low == pytest.approx(ratio.value * np.exp(-reach))


def test_a_change_that_the_speed_of_one_machine_explains_is_not_significant(tmp_path):
    usual, slow = measured(a_row()), a_row((93, 94, 92), machine_gflops=92.0)
    another = measured(slow, machine={"host_processor_vcpu_count": 4})

    same = compared(tmp_path, usual, measured(slow), 0.01)
    back = compared(tmp_path, measured(slow), usual)
    other, faster = compared(tmp_path, usual, another, 0.01), compared(tmp_path, another, usual)

    alike = [("no significant difference", f"machine speed {ratio}×") for ratio in ("0.92", "1.09")]
    assert outcomes(same) + outcomes(back) == alike
    assert not same.is_failure
    assert outcomes(other) + outcomes(faster) == [("slower", ""), ("faster", "")]
    assert "machine.host_processor_vcpu_count: unset -> 4" in other.notes


@pytest.mark.parametrize("accuracy", [0.91, 0.889, 0.90001])
def test_a_changed_metric_is_always_a_failure(accuracy, tmp_path):
    comparison = compared(tmp_path, scored(0.9), scored(accuracy))

    assert [(each.outcome, each.what) for each in comparison.findings] == [("changed", "accuracy")]
    assert comparison.is_failure


USUAL, RATE = measured(a_row()), measured(a_row(scenario="request rate", rate=50.0))
BROKEN = {"quality": "failed", "reason": "server ended"}


@pytest.mark.parametrize(
    ("before", "after", "outcome", "reason"),
    [
        (scored(0.9), scored(0.9), "unchanged", ""),  # no row tells about speed
        (scored(0.9), a_result("deploy"), "only in A", ""),  # a metric is lost
        (USUAL, measured(a_row(), state="failed", reason="no memory"), "failed", "no memory"),
        (USUAL, measured(a_row(**BROKEN)), "failed", "server ended"),
        (USUAL, measured(a_row((50, 51, 49), quality="noisy")), "not compared", "noisy in B"),
        (USUAL, measured(a_row(throughput_low=None)), "not compared", "no 95% CI in B"),
        (RATE, RATE, "not compared", "each run has its own request rates"),
        (USUAL, USUAL, "no significant difference", ""),
    ],
)
def test_each_outcome_has_a_reason_and_what_is_not_known_fails_where_a_limit_is_set(
    before, after, outcome, reason, tmp_path
):
    comparison = compared(tmp_path, before, after, 0.05)

    assert (outcome, reason) in outcomes(comparison)
    assert comparison.is_failure == (outcome != "no significant difference")
    is_worse = outcome in ("failed", "only in A")
    assert compared(tmp_path, before, after).is_failure == is_worse


def test_a_parity_check_that_changed_is_listed_and_one_in_the_last_digit_is_not(tmp_path):
    first, near, far = (
        a_result("deploy", checks=(builders.parity(each),)) for each in (1e-5, 2e-5, 0.05)
    )

    assert outcomes(compared(tmp_path, first, near)) == [("unchanged", "")]
    changed = compared(tmp_path, first, far)
    (finding,) = changed.findings
    assert (finding.outcome, finding.figures) == ("changed", ("0.0001", "0.5"))
    assert not changed.is_failure


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": "imagenet"}, "dataset: generated -> imagenet"),
        ({"variant": "large"}, "variant: unset -> large"),
        ({"distinct_rows": 8}, "distinct_rows: 64 -> 8"),
        ({"threads": 2}, ""),
    ],
)
def test_rows_and_metrics_of_different_work_are_refused_with_the_reason(changes, reason, tmp_path):
    pairs = (USUAL, measured(a_row(), config=changes)), (scored(0.9), scored(0.9, config=changes))
    for before, after in pairs:
        comparison = compared(tmp_path / before.stage, before, after)
        ((outcome, why),) = outcomes(comparison)
        assert (outcome == "not compared", why) == (bool(reason), reason)
        assert (reason or "threads: 1 -> 2") in comparison.notes


def test_what_only_one_folder_has_is_listed(tmp_path):
    a = write(tmp_path / "a", measured(a_row(), a_row(concurrency=4)), scored(0.9))
    new = measured(a_row(), experiment="new")
    b = write(tmp_path / "b", measured(a_row(), a_row(concurrency=8)), new)

    lines = list(compare_folders(a, b).lines())

    assert "cpu resnet50 onnx-fp32 accuracy; online 4 clients: only in A" in lines
    assert "cpu resnet50 onnx-fp32 online 8 clients: only in B" in lines
    assert "cpu resnet50 new online 1 client: only in B" in lines
    assert lines[-1] == "passed: 1 no significant difference, 2 only in A, 2 only in B"


def test_one_target_of_two_machines_is_compared_whatever_its_name(tmp_path):
    a = write(tmp_path / "a", USUAL, target="old-machine")
    b = write(tmp_path / "b", measured(a_row((200, 201, 202))), target="new-machine")

    comparison = compare_folders(a, b)

    assert comparison.findings[0].outcome == "faster"
    assert "target: old-machine -> new-machine" in comparison.notes


def test_settings_that_all_experiments_share_have_one_line(tmp_path):
    def of(name, **config):
        return measured(a_row(), experiment=name, config=config)

    a = write(tmp_path / "a", of("one"), of("two"))
    b = write(tmp_path / "b", of("one", threads=2, format="openvino"), of("two", threads=2))

    notes = compare_folders(a, b).notes

    assert [note for note in notes if "->" in note] == [
        "threads: 1 -> 2",
        "format: unset -> openvino (cpu resnet50 one)",
    ]
    write(b, of("two"))
    assert "threads: 1 -> 2 (cpu resnet50 one)" in compare_folders(a, b).notes


# The command


def command(tmp_path, *options):
    return main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), *options])


@pytest.fixture
def planted(tmp_path):
    """A folder in which b is slower, is noisy, and has another accuracy."""
    name = "a|b&<i>"
    noisy = a_row(concurrency=4, quality="noisy")
    write(tmp_path / "a", measured(a_row(), a_row(concurrency=4)), scored(0.9, experiment=name))
    write(tmp_path / "b", measured(a_row(SLOW), noisy), scored(0.85, experiment=name))
    return tmp_path


def test_the_exit_code_is_1_for_a_slow_row_only_with_the_option(tmp_path, capsys):
    compared(tmp_path, measured(a_row()), measured(a_row(SLOW)))

    assert command(tmp_path) == 0
    first, *_, last, written = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"cpu resnet50 onnx-fp32 online 1 client: slower, 0\.80× \(95% CI 0\.\d\d to 0\.\d\d\), "
        r"100 samples/s -> 80 samples/s",
        first,
    )
    assert (last, written) == ("passed: 1 slower", f"wrote {tmp_path / 'b/diff.html'}")
    assert command(tmp_path, "--fail-if-slower", "5%") == 1
    assert "failed: 1 slower" in capsys.readouterr().out
    assert command(tmp_path, "--fail-if-slower", "25%") == 0


def test_junit_has_a_test_case_markdown_a_line_and_the_page_a_row_for_each_finding(planted):
    xml, markdown, page = (planted / name for name in ("j.xml", "c.md", "page.html"))
    options = ("--junit", str(xml), "--html", str(page))

    assert command(planted, "--fail-if-slower", "5%", *options) == 1
    command(planted, "--markdown", str(markdown))

    suite = ElementTree.parse(xml).getroot()
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert (suite.tag, counts) == ("testsuite", ["3", "2", "0", "1"])
    tags = [[child.tag for child in case] for case in suite]
    assert tags == [["failure"], ["failure"], ["skipped"]]
    cases = {(case.get("classname"), case.get("name")): [*case] for case in suite}
    (failure,) = cases["cpu.resnet50.a|b&<i>", "accuracy"]
    assert failure.get("message") == "changed 0.9 0.85"
    lines = markdown.read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert lines[0] == "**failed: 1 slower, 1 changed, 1 not compared**"
    assert [line.count("|") for line in table] == [8] * (2 + 3)  # nothing breaks a cell
    assert "accuracy" in table[2]  # the failure is first
    text = page.read_text()
    assert all(said in text for said in ("a|b&amp;&lt;i&gt;", "noisy in B", "100 samples/s"))
    assert not any(part in text for part in ("<i>", "index.html"))
    assert 'href="index.html"' in (planted / "b/diff.html").read_text()


def test_a_folder_that_cannot_be_compared_is_one_line(tmp_path, capsys):
    a, b = write(tmp_path / "a", measured(a_row())), tmp_path / "b"

    def check(line):
        assert (command(tmp_path), *capsys.readouterr()) == (1, "", f"error: {line}\n")

    run = "Run: triton-notebooks run"
    check(f"{b} has no results, so it is not an outputs folder. {run}")
    place = b / "cpu/resnet50/onnx-fp32/perf_online.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"schema": 1}')
    check(f"{b} has only results of another schema. {run}")
    place.unlink()
    write(b, measured(a_row(), experiment="other"))
    check(f"{a} and {b} have no measurement or metric in common.")
    assert not (b / "diff.html").exists()


def test_results_of_an_older_schema_are_read_as_far_as_they_go(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, scored(0.9))
        place = tmp_path / name / "cpu/resnet50/onnx-fp32/perf_offline.json"
        place.write_bytes(OLD.read_bytes())
    (tmp_path / "a/cpu/resnet50/onnx-fp32/perf_online.json").write_text("{}")

    comparison = compare_folders(tmp_path / "a", tmp_path / "b", 0.05)

    assert {outcome for outcome, _ in outcomes(comparison)} == {"not compared", "unchanged"}
    assert any(note.endswith("is of another schema and was not read") for note in comparison.notes)


@pytest.mark.parametrize("given", ["5", "0.05", "-5%", "x%", "100%"])
def test_a_limit_is_a_percentage(given, tmp_path, capsys):
    assert command(tmp_path, "--fail-if-slower", given) == 2
    assert capsys.readouterr().err == (
        f"error: --fail-if-slower {given} is not a percentage such as 5%.\n"
    )
