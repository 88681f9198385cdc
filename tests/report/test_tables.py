"""The tables of a report: experiments, checks and metrics, load generators, the GPU's state."""

import json
from types import SimpleNamespace

from helpers.config import configure, read_file, results_folder
from helpers.report import text
from helpers.report.tables import configurations, gpu_state, load_generators, metrics, parity
from helpers.results import GpuState, Row, Score
from helpers.results.types import ArtifactFacts
from helpers.store import ROOT
from tests.report import builders
from tests.report.builders import fingerprint, measurement, result


def test_stages_that_were_not_done_for_one_reason_say_it_once():
    skipped, failed = {"state": "skipped", "reason": "no driver"}, {"state": "failed"}
    stages = {"deploy": skipped, "convert": failed | {"reason": "a bad weight"}}
    stages |= {"export": {}, "perf_offline": skipped}
    found = {"mine": {name: result(name, **told) for name, told in stages.items()}, "other": {}}

    rows = configurations(SimpleNamespace(experiments=tuple(found)), found)

    assert [row["not done"] for row in rows] == [
        "convert failed: a bad weight; deploy, perf_offline skipped: no driver",
        "nothing has run yet",
    ]


def test_experiments_show_the_precision_of_their_tables_their_size_and_the_peak_memory():
    found, shown = {}, []
    for name, size_mb, *peaks_mb in (("fp32", 86, 450, 500, None), ("int8", 29, None)):
        same = {"batch_size": 1, "concurrency": 1, "quality": "stable"}
        rows = [Row(server_peak_memory_mb=each, **same) for each in peaks_mb]
        artifact = ArtifactFacts(folder="", sha256="", size_mb=size_mb, files={})
        made_from = fingerprint(lookup="mapped", table_precision=name)
        measured = {"fingerprint": made_from, "measurement": measurement(*rows)}
        found[name] = {
            "convert": result("convert", artifact=artifact),
            "perf_offline": result("perf_offline", **measured),
        }
        own = {"experiment": name, "lookup": "mapped", "table_precision": name, "size_mb": size_mb}
        shown.append(own | {"server_peak_memory_mb": {"fp32": 500}.get(name)})

    assert configurations(SimpleNamespace(experiments=tuple(found)), found) == shown


def test_equal_checks_and_metrics_share_a_row_that_names_them_all():
    score = Score(metric="top-1", framework=0.9, served=0.9, bound=0.8, better="higher")
    found = {
        name: {
            "export": result("export", checks=(builders.parity(0.1, "exported"),)),
            "deploy": result("deploy", checks=(builders.parity(served),), scores=(score,)),
        }
        for name, served in (("one", 0.1), ("two", 0.1), ("three", 0.2))
    }

    assert [(row["experiment"], row["check"], row["max_difference"]) for row in parity(found)] == [
        ("one, two", "exported, served", 0.1),
        ("three", "exported", 0.1),
        ("three", "served", 0.2),
    ]
    assert [row["experiment"] for row in metrics(found)] == ["one, two, three"]


def test_the_answer_says_whether_checks_failed_passed_or_did_not_run():
    def said(state, *differences, reason=""):
        checks = tuple(builders.parity(each, "export") for each in differences)
        ended = {"state": state, "reason": reason}
        stages = {"export": result("export", checks=checks, **ended)}
        found = {"mine": stages | {"deploy": result("deploy", **ended)}}
        return text.accuracy(found).removeprefix("Nothing was served. ")

    assert said("done", 0.05) == "All parity checks that ran passed."
    assert said("skipped", reason="no GPU") == "No parity check has run."
    assert said("blocked", 0.05, 0.5) == (
        "Failed: mine (export FP32: output y differs from the reference by up to 0.5 standard "
        "deviations (tolerance 0.1) and 0 on average (tolerance 0.1))."
    )
    assert said("failed", reason="the server stopped") == "Failed: mine (the server stopped)."
    assert text.accuracy({"mine": {}}) == "Nothing was served. No parity check has run."


def test_an_earlier_deployments_meters_are_not_shown_and_the_command_is_named():
    row = {"scenario": "SingleStream", "LoadGen": "1.5", "perf_analyzer": "1.4", "ratio": "1.07"}
    config = configure(read_file(ROOT / "params/smoke.yaml"), "resnet50", "", "report")
    artifact = ArtifactFacts(folder="a", sha256="12", size_mb=1, files={})
    names = ("now", "before", "older rule", "never")
    found = {name: {"deploy": result("deploy", artifact=artifact)} for name in names}
    for name in names[:3]:
        kept = row | {"quality": "equivalent"}
        if name == "older rule":
            del kept["ratio"]
        path = results_folder(config) / name / "crosscheck.json"
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({"deployed": "34" if name == "before" else "12", "rows": [kept]})
        )

    command = "run triton-notebooks crosscheck params/smoke.yaml --model resnet50 --experiment"
    assert load_generators(config, found | {"nothing": {}}) == [
        {"experiment": "now", **row, "result": "equivalent"},
        *(
            {"experiment": name, "result": "not measured", "reason": f"{command} {name}"}
            for name in (*names[1:], "nothing")
        ),
    ]


def on_a_gpu(finished, temperature, utilisation, *changes):
    record = {"temperature_c": temperature, "sm_clock_mhz": 1155}
    state = GpuState(start=record, end=record, changes=changes, load_from=("NVML",))
    used = {"gpu_utilisation": utilisation, "gpu_memory_mb": 3500.0}
    row = Row(batch_size=1, concurrency=1, quality="stable", **used)
    return result("perf_online", finished=finished, measurement=measurement(row, gpu=state))


def test_the_report_has_the_gpus_state_before_during_and_after():
    late = on_a_gpu("2026-02-02", 70, 0.5, "ecc changed", "and more")
    early = on_a_gpu("2026-01-01", 30, 0.75)

    assert gpu_state({"late perf_online": late, "early perf_online": early}) == {
        "GPU before the first measurement": {"temperature (°C)": 30, "sm clock (MHz)": 1155},
        "GPU after the last measurement": {"temperature (°C)": 70, "sm clock (MHz)": 1155},
        "GPU under load (lowest to highest mean)": {
            **{"gpu utilisation": "50% to 75%", "gpu memory (MB)": "3,500 to 3,500"}
        },
        "GPU changes": {"late perf_online": "ecc changed; and more"},
    }
    on_cpu = late.model_copy(update={"measurement": measurement(*late.measurement.rows)})
    assert gpu_state({"a": on_cpu}) == {}
