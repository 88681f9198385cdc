"""The parts of a fleet by themselves: who may join, what is sent, and who goes in."""

import threading
from pathlib import Path

import pytest

from helpers.accuracy import scatter
from helpers.config import LESSONS, STAGE, STAGES, configure, read_file
from helpers.errors import FleetError, ParameterError
from helpers.fleet import bench, cargo, gate, kinship, offers
from helpers.fleet.access import SILENCE_VARIABLE, Access, silence, write_key
from helpers.fleet.groups import groups_of
from helpers.fleet.moving import Road
from helpers.fleet.orders import Bundle, Order, hashed, paths_of, receive
from helpers.fleet.station import Station
from helpers.fleet.view import FleetView
from helpers.pipeline import Job, read_plans, stage_states
from helpers.results import Result
from helpers.store import ROOT, find_artifact, is_away, making
from tests.conftest import WATCHED, Project

pytest.importorskip("distributed")


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:1"])
def test_a_plain_connection_is_for_this_machine_only(address: str) -> None:
    assert not Access(address).security.require_encryption


def test_a_plain_connection_to_another_machine_needs_a_flag() -> None:
    with pytest.raises(ParameterError) as raised:
        _ = Access("tcp://10.0.0.1:8786").security
    assert str(raised.value) == (
        "tcp://10.0.0.1:8786 is not encrypted: anyone who reaches it can run code on the workers. "
        "Use tls://, or add --insecure."
    )
    assert not Access("tcp://10.0.0.1:8786", insecure=True).security.require_encryption


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("tls://10.0.0.1:8786", "needs a key. Add --key with the scheduler's file"),
        ("10.0.0.1:8786", "Use tls://HOST:PORT, as the scheduler printed it"),
        ("http://10.0.0.1:8786", "Use tls://HOST:PORT"),
        ("tcp://10.0.0.1:8786;", "Use tls://HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_joined_is_one_line(address: str, line: str) -> None:
    with pytest.raises(ParameterError, match=line):
        _ = Access(address).host, Access(address).security


@pytest.mark.parametrize("given", ["20s", "0", "-1", "nan", "inf"])
def test_a_time_limit_of_a_silent_worker_that_is_none_is_one_line(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SILENCE_VARIABLE, given)

    with pytest.raises(ParameterError) as raised:
        silence()

    line = f"Invalid {SILENCE_VARIABLE} '{given}'. Use a number of seconds."
    assert str(raised.value) == line


def test_the_key_is_written_once_for_its_owner_and_encrypts_both_ways(tmp_path: Path) -> None:
    key = write_key(tmp_path / "fleet.pem")
    content = key.read_bytes()

    assert key.stat().st_mode & 0o777 == 0o600
    assert write_key(key).read_bytes() == content
    found = Access("tls://10.0.0.1:8786", key).security
    assert found.require_encryption
    for role in ("client", "scheduler", "worker"):
        assert found.get_tls_config_for_role(role)["ca_file"] == str(key)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, ""),
        ({"version": {"python": "3.11.1", "numpy": "1.0"}}, "numpy 1.0 instead of 2.0"),
        ({"version": {"python": "3.11.1"}}, "numpy none instead of 2.0"),
        ({"source": {"a.py": "x", "b.py": "z"}}, "a different version of b.py"),
        ({"source": {}}, "a different version of a.py and 1 more"),
    ],
)
def test_software_that_differs_is_named(change: dict[str, dict[str, str]], line: str) -> None:
    ours = {"version": {"python": "3.11.1", "numpy": "2.0"}, "source": {"a.py": "x", "b.py": "y"}}

    assert kinship.difference(ours, {**ours, **change}) == line


def test_software_is_the_locks_packages_and_this_source() -> None:
    found = kinship.software()

    assert found["version"]["numpy"]
    assert len(found["version"]) > 200
    assert {"helpers/fleet/kinship.py", "notebooks/bert/deploy.ipynb"} < set(found["source"])
    assert kinship.difference(found, found) == ""


@pytest.mark.usefixtures("project_without_gpu")
def test_a_machine_without_a_gpu_offers_the_targets_of_a_cpu() -> None:
    assert {"cpu", "cpu-full", "smoke"} <= set(offers.targets())
    assert not [name for name in offers.targets() if name.startswith("NVIDIA")]


@pytest.fixture
def project_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.machine.gpu.has_driver", lambda: False)


def test_a_machine_with_a_gpu_offers_the_targets_of_that_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from helpers.config import Gpu

    monkeypatch.setattr("helpers.machine.this_gpu", lambda: Gpu("NVIDIA T4", 6, 15), raising=False)

    assert offers.targets() == ["NVIDIA-T4", "NVIDIA T4"]


def test_an_order_is_for_one_process_and_runs_once(tmp_path: Path) -> None:
    """Whatever a scheduler believes of a task whose worker it has lost."""
    station = Station(tmp_path, ["smoke"], begun={"2"})
    words = ("smoke", "", "bert", "openvino-fp32", "export", False, 60, "")

    for ticket, worker in (("1", "another process"), ("2", station.identity)):
        order = Order(ticket, "run", worker, *words)
        bundle = station.perform(order, False, lambda: True, print)
        assert (bundle.state, bundle.files) == ("refused", {})
        assert bundle.reason == "The stage was started before and never runs twice. Run again."
    assert list(tmp_path.iterdir()) == []


def order_of(job: Job, parameters: str) -> Order:
    config = job.config
    words = (config.target, parameters, config.model, config.experiment, config.stage)
    return Order("1", "run", "worker", *words, False, 60, "")


def test_performance_stages_and_lessons_are_alone_on_their_host() -> None:
    measuring = {
        stage for stage in STAGE if Order("", "", "", "", "", "", "", stage, False, 0, "").measures
    }

    assert measuring == {"perf_offline", "perf_online", "tune", *LESSONS}


def test_lessons_go_where_the_experiment_is_that_they_are_about_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path))
    monkeypatch.setattr("helpers.pipeline.planning.obstacle", lambda _: "not on this machine")
    plans = read_plans([ROOT / "params/smoke.yaml"], ["resnet50"], [], [], ask=lambda _: "")

    found = groups_of(plans)

    (group,) = [each for each in found if any(job.config.stage in LESSONS for _, job in each.jobs)]
    jobs = [job for _, job in group.jobs]
    *others, one, two, three = [job.config.stage for job in jobs]
    assert (one, two, three) == LESSONS
    assert others[:3] == ["export", "convert", "deploy"]
    assert not set(others) & {"report", *LESSONS}
    assert {job.obstacle for job in jobs} == {""}
    (deploy,) = {job.needs for job in jobs[-3:]}
    assert deploy in [job.result for job in jobs[:-3]]
    for job in jobs:
        there = bench.job_of(order_of(job, group.parameters))
        assert (there.name, there.result, there.needs) == (job.name, job.result, job.needs)


@pytest.mark.parametrize(
    ("chosen", "before"),
    [
        (("export", "convert", "deploy"), []),
        (("perf_online",), ["export", "convert", "deploy"]),
        (("convert", "perf_offline"), ["export", "deploy"]),
        (("precision",), ["export", "convert", "deploy"]),
    ],
)
def test_a_group_knows_the_jobs_before_it_that_are_not_run(
    chosen: tuple[str, ...], before: list[str]
) -> None:
    plans = read_plans([ROOT / "params/smoke.yaml"], ["resnet50"], [], chosen, ask=lambda _: "")

    for group in groups_of(plans):
        jobs = [*group.before, *(job for _, job in group.jobs)]
        assert {job.config.stage for job in group.before} == {*before}
        assert {job.needs for job in jobs} - {job.result for job in jobs} <= {None}


def test_a_report_is_made_when_only_lessons_are_left() -> None:
    plans = read_plans(
        [ROOT / "params/smoke.yaml"], ["resnet50"], [], [*STAGES, *LESSONS], ask=lambda _: ""
    )
    taught, *_ = groups_of(plans)
    stages = [job.config.stage for _, job in taught.jobs]

    can = []
    for taught.settled in range(len(stages) + 1):
        can.append(taught.may_be_reported)

    assert can == [False] * (len(stages) - len(LESSONS)) + [True] * (len(LESSONS) + 1)


def test_one_view_has_what_runs_on_all_machines_and_what_waits_for_what() -> None:
    import io

    from rich.console import Console

    view = FleetView()
    view._console = Console(file=io.StringIO(), width=120)
    view("NVIDIA-T4 bert: waiting: no worker offers NVIDIA-T4 or NVIDIA T4")
    view("cpu bert: waiting: the worker is running smoke bert")
    view("cpu bert: assigned to a processor, 2 cores")
    with view.stage("cpu: [1/6] bert onnx-fp32 export", "--force", 40.0):
        view.printed("cpu bert onnx-fp32 export: fitting a small checkpoint to the data set")
        view.printed("smoke bert onnx-fp32 export: of another target")
        view._console.print(view._picture())

    said = view._console.file.getvalue().splitlines()[3:]  # type: ignore[attr-defined]
    assert [" ".join(line.split()) for line in said] == [
        "run 0% of the expected time",
        "cpu: [1/6] bert onnx-fp32 export 0 of about 40 s "
        "fitting a small checkpoint to the data set",
        "NVIDIA-T4 bert waiting: no worker offers NVIDIA-T4 or NVIDIA T4",
    ]


# The gate


def test_one_who_measures_is_alone_and_others_go_in_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inside, most, told = [], [], []
    lock = threading.Lock()

    def work(name: str, alone: bool) -> None:
        with gate.entered(alone, lambda: True, told.append) as is_in:
            assert is_in
            with lock:
                inside.append(name)
                most.append(tuple(inside))
            threading.Event().wait(0.15)
            with lock:
                inside.remove(name)

    names = ["export", "perf", "deploy", "perf again", "convert"]
    threads = [threading.Thread(target=work, args=(n, n.startswith("perf"))) for n in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [each for each in most if any("perf" in n for n in each) and len(each) > 1] == []
    assert len(most) == 5


def test_who_is_wanted_no_more_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        gate.entered(True, lambda: True, print),
        gate.entered(False, lambda: False, print) as is_in,
    ):
        assert not is_in


# What is sent


def made(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(cargo, "PIECE", 10)
    with making(outputs / "data/dummy-dataset-0123456789ab") as (folder, facts):
        (folder / "inner").mkdir()
        (folder / "inner/a.bin").write_bytes(bytes(range(95)))
        (folder / "empty").write_text("")
        facts["fitted_seconds"] = 3.0
    return "data/dummy-dataset-0123456789ab"


def test_an_artifact_travels_in_pieces_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    place = made(one, monkeypatch)
    assert cargo.held(two, [place]) == []

    def end(outputs: Path):  # type: ignore[no-untyped-def]
        return lambda do, *arguments: do(outputs, *arguments)

    said = Road().send(end(one), end(two), place)

    assert said.startswith(f"{place}: sent 0.0 MB in ")
    assert cargo.held(two, [place]) == [place]
    found, own = find_artifact(two / place), find_artifact(one / place)
    assert found
    assert own
    assert (found.files, found.facts) == (own.files, own.facts)
    assert not is_away(found)
    assert Road(rate=95 / 2).is_quicker(end(one), place, 99)  # two seconds against three
    assert not Road(rate=95 / 4).is_quicker(end(one), place, 99)


def test_what_comes_damaged_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    place = made(one, monkeypatch)
    manifest, _, _ = cargo.listed(one, place)
    token = cargo.begin(two, place)
    cargo.write(two, place, token, "empty", 0, b"")
    cargo.write(two, place, token, "inner/a.bin", 0, b"other")

    with pytest.raises(FleetError, match=r"inner/a\.bin was damaged in transfer\. Run again"):
        cargo.finish(two, place, token, manifest)

    assert list((two / "data").iterdir()) == []


@pytest.mark.parametrize("place", ["../x", "data/../../x", "data", "/etc/passwd", "a/b/c"])
def test_only_artifacts_travel(place: str, tmp_path: Path) -> None:
    with pytest.raises(FleetError):
        cargo.listed(tmp_path, place)
    with pytest.raises(FleetError):
        cargo.write(tmp_path, "data/x", "0", "../../y", 0, b"")


def job_of(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(outputs))
    return Job(configure(read_file(ROOT / "params/smoke.yaml"), "bert", "", "deploy"))


@pytest.mark.parametrize(
    "files",
    [
        {"bert/openvino-fp32/deploy.json": b"{"},
        {"bert/openvino-fp32/export.json": b""},
        {"bert/openvino-fp32/../../x": b""},
        {"artifacts/x/model.onnx": b""},
        {"../x/y/manifest.json": b""},
    ],
)
def test_what_comes_home_is_checked_before_anything_is_written(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, hashes = job_of(tmp_path, monkeypatch), hashed(files)
    if len(files) == 1 and b"{" in files.values():
        hashes = hashed(dict.fromkeys(files, b"other"))

    with pytest.raises(FleetError):
        receive(tmp_path / "smoke", job, Bundle("executed", "", files, hashes))

    assert list(tmp_path.rglob("*")) == []


def test_the_data_of_a_stages_figures_come_home_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(tmp_path))
    given = read_file(ROOT / "params/smoke.yaml")
    for model, stage, name in (
        ("bert", "convert", scatter.FILE),
        *(("resnet50", lesson, f"{lesson}.csv") for lesson in LESSONS),
    ):
        job = Job(configure(given, model, "", stage))
        job.result.parent.mkdir(parents=True, exist_ok=True)
        for each in (job.result.with_name(name), job.result):
            each.write_text("")

        assert [path.name for path in paths_of(job)] == [name, job.result.name]


def test_the_index_says_what_a_stage_waits_for_and_a_report_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = job_of(tmp_path, monkeypatch), tmp_path / "smoke"
    (folder / "bert").mkdir(parents=True)
    (folder / "parameters.yaml").write_text((ROOT / "params/smoke.yaml").read_text())
    head = {"model": "bert", "experiment": "", "stage": "report", "gpu": "CPU"}
    report = Result(**head, state="done", reason="so far: 1 of 2")
    (folder / "bert/report.json").write_text(report.model_dump_json())
    pending = {job.result: "running: on a T4", folder / "bert/report.json": "waiting"}

    found = {
        (each.experiment, each.stage): (each.state, each.reason)
        for each in stage_states(tmp_path, "smoke", pending)
        if each.model == "bert"
    }

    assert found[job.config.experiment, "deploy"] == ("running", "on a T4")
    assert found["", "report"] == ("waiting", "so far: 1 of 2")


def test_without_a_scheduler_dask_is_not_imported(finished: Project) -> None:
    seen = [path.read_text().split() for path in (finished.root / WATCHED).iterdir()]

    assert any("helpers" in names for names in seen)
    assert not [names for names in seen if {"dask", "distributed"} & set(names)]
