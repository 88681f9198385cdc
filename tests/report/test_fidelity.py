"""For every published table the page compares the settings of our experiment with NVIDIA's,
and it says what the parameter files and the code really do.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from helpers.config import loading
from helpers.config.loading import configure, read_file
from helpers.config.schema import LoadConfig
from helpers.errors import ServerError
from helpers.formats._tensorrt import profile
from helpers.models._criteo import hierarchical
from helpers.report import nvidia, site
from helpers.report.nvidia import sources as facts
from helpers.report.nvidia.fidelity import Fidelity, experiment_settings, fidelities
from helpers.report.nvidia.pages import FIDELITY, everywhere
from helpers.report.nvidia.rows import published
from helpers.report.nvidia.settings import NO_TF32
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from helpers.triton import docker
from tests.conftest import BROWSER, Project, opened
from tests.report.test_publish import Page
from tests.report.test_published_coverage import TARGETS, measured

T4, A30, A40 = "NVIDIA T4", "NVIDIA A30", "NVIDIA A40"
V100, A100 = "NVIDIA DGX-1 (1x V100 32GB)", "NVIDIA DGX A100 (1x A100 80GB)"
RUNNER = ["explicit", "false", "false", "false"]


@pytest.fixture(scope="module")
def found() -> list[Fidelity]:
    return fidelities()


def table(found: list[Fidelity], slug: str) -> Fidelity:
    """The one table whose address begins so."""
    (one,) = (each for each in found if each.row.slug.startswith(slug))
    return one


def values(each: Fidelity, name: str) -> tuple[str, list[str | int], list[str | int]]:
    (line,) = (line for line in each.lines if line.name == name)
    return line.comparison, line.theirs, line.ours


def config(gpu: str, model: str, name: str, stage: str) -> LoadConfig:
    chosen = configure(TARGETS[gpu], model, name, stage)
    assert isinstance(chosen, LoadConfig)
    return chosen


def test_every_table_is_compared_with_the_experiments_that_make_it(found: list[Fidelity]) -> None:
    makers = defaultdict(set)
    for (model, gpu, scenario, dataset, _, accelerator, form, precision), made in measured(TARGETS):
        by = (model, gpu, scenario, dataset, accelerator, form, precision)
        makers[by].add((made.target, made.experiment))

    assert len(found) == len({each.row.slug for each in found}) == 84
    assert [each.fault for each in found] == [""] * 84
    for each in found:
        row = each.row
        accelerator = row.backend_accelerator.replace("NVIDIA ", "")
        by = (row.model, row.gpu, row.scenario, row.dataset, accelerator, row.model_format)
        assert {(each.target, name) for name in each.experiments} == makers[*by, row.precision]


def test_what_a_table_itself_says_is_as_nvidia_or_has_a_note(found: list[Fidelity]) -> None:
    same = {"Triton release", "format", "precision", "accelerator", "instances", "largest batch"}
    same |= {"CUDA graphs", "batch size", "clients", "tensors", "backend", "exported as"}

    for each in found:
        assert same <= {line.name for line in each.of("same")}
        if values(each, "instances")[1] != [each.row.instances]:
            assert (each.row.model, each.row.scenario) == ("resnet50", "online")
    assert everywhere(found) == [
        *(
            "network",
            "server flags",
            "samples sent",
            "load generator",
            "windows",
            "stability",
            "warm-up",
        )
    ]
    assert everywhere([]) == []


HPS = "offline-triton-ensemble-merlin-hps-tensorrt"
DIFFERENT = {  # of some tables, beside what differs everywhere
    "resnet50-nvidia-a40-online-onnx-with-tensorrt-fp16": {"ONNX opset"},
    "bert-nvidia-t4-offline-onnx-fp16": {"dynamic batching", "protocol", "runs per measurement"},
    "bert-nvidia-t4-offline-tensorrt-fp16": {
        *("engine's smallest batch", "protocol", "runs per measurement")
    },
    "tft-nvidia-t4-online-electricity-tensorrt-fp16": {"/dev/shm"},
    "widedeep-nvidia-dgx-1-1x-v100-32gb-offline-tensorrt-fp16": {
        *("dynamic batching", "runs per measurement", "weights")
    },
    f"dcnv2-nvidia-t4-{HPS}-fp32": {
        *("ONNX opset", "engine tuned for batch", "embedding lookup", "runs per measurement"),
        "weights",
    },
}


@pytest.mark.parametrize("slug", DIFFERENT)
def test_what_differs_is_named(found: list[Fidelity], slug: str) -> None:
    named = {line.name for line in table(found, slug).of("differs")} - {*everywhere(found)}

    # how the server is reached, and what the container is told, is asked of the code below
    assert named - {"network", "environment"} == DIFFERENT[slug]


def test_nvidias_values_are_those_of_its_documents(found: list[Fidelity]) -> None:
    bert = table(found, "bert-nvidia-a30-offline-tensorrt-fp16")
    assert values(bert, "protocol") == ("differs", ["gRPC"], ["HTTP"])
    assert values(bert, "largest batch")[:2] == ("same", [1, 8, 16])
    assert values(bert, "dynamic batching") == ("same", ["none"], ["none"])
    assert values(bert, "engine's smallest batch") == ("differs", [1, 8, 16], [1])
    assert values(bert, "tensors")[1] == ["in shared memory"]
    flags = values(bert, "server flags")[1]
    assert [str(flag).partition("=")[2] for flag in flags] == RUNNER
    assert values(bert, "network")[1] == ["the host's"]

    resnet = table(found, "resnet50-nvidia-t4-online")
    assert values(resnet, "network")[1] == ["Docker's bridge, through published ports"]
    assert values(resnet, "instances") == ("same", [2], [2])
    assert values(resnet, "dynamic batching")[1] == ["prefers 64, 128, waits 1 us at most"]
    assert values(resnet, "load generator")[1] == ["perf_client 2.7.0"]

    tft = table(found, "tft-nvidia-t4-offline-traffic-tensorrt")
    assert values(tft, "CUDA graphs") == ("same", ["captured"], ["captured"])
    assert values(tft, "engine tuned for batch") == ("unknown", [], [1024])
    torch = table(found, "tft-nvidia-t4-offline-traffic-torchscript")
    assert values(torch, "precision") == ("same", ["FP32"], ["FP32"])
    (line,) = (line for line in torch.lines if line.name == "precision")
    assert line.note == "NVIDIA's tables say FP16, its TorchScript was exported in fp32"
    assert "ONNX opset" not in {line.name for line in torch.lines}


def test_nvidias_fp32_is_tf32_on_the_gpus_that_have_it(found: list[Fidelity]) -> None:
    used = {
        (each.row.model, each.row.gpu, each.row.served)
        for each in found
        if values(each, "TF32")[1] != [NO_TF32]
    }

    hps = "Triton Ensemble (Merlin HPS + TensorRT), FP32"
    with_fp32 = [("dlrm", hps), ("dcnv2", hps), ("tft", "TorchScript Trace, FP16")]
    with_fp32.append(("widedeep", "TensorFlow SavedModel with Automatic FP16, FP32"))
    assert used == {(model, gpu, kind) for gpu in (A30, A100) for model, kind in with_fp32}
    dense = table(found, f"dlrm-nvidia-a30-{HPS}-fp32")
    assert values(dense, "TF32")[0] == "differs"  # our engines forbid it


# Ours is what is passed


DOCKER = """#!{python}
import json, sys
from pathlib import Path
if sys.argv[1] == "run":
    Path({calls!r}).write_text(json.dumps(sys.argv[1:]))
    sys.exit("no")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpu", "model", "name", "stage"),
    [
        (A30, "bert", "ts-trace-fp16", "perf_offline"),
        (A40, "resnet50", "onnx-trt-fp16", "perf_offline"),
        (A100, "dlrm", "trt-fp32", "perf_offline"),
        (T4, "tft", "electricity-ts-trace-fp32", "perf_online"),
    ],
)
def test_what_it_says_of_the_container_is_what_docker_is_told(
    gpu: str,
    model: str,
    name: str,
    stage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, calls = tmp_path / "docker", tmp_path / "calls"
    command.write_text(DOCKER.format(python=sys.executable, calls=str(calls)))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(OUTPUTS_VARIABLE, str(tmp_path))
    (tmp_path / "repository").mkdir()
    chosen = config(gpu, model, name, stage)

    with (
        pytest.raises(ServerError),
        docker.serve(tmp_path / "repository", config=chosen, log=tmp_path / "log"),
    ):
        pass

    told, said = json.loads(calls.read_text()), experiment_settings(chosen)
    assert said["/dev/shm"] == ["the host's" if "--ipc=host" in told else "the container's own"]
    assert (said["network"] == ["the host's"]) == ("--network=host" in told)
    flags = told[told.index("tritonserver") + 1 :]
    own = [f for f in flags if not f.startswith(("--model-repository", "--backend-config=python"))]
    assert said["server flags"] == own
    names = ("NVIDIA_TF32_OVERRIDE", "ORT_TENSORRT_FP16_ENABLE")
    given = [word.removeprefix("--env=") for word in told if word.startswith("--env=")]
    assert said["environment"] == [each for each in given if each.startswith(names)]


def test_a_store_is_said_with_the_cache_that_it_is_deployed_with() -> None:
    published = config(A30, "dlrm", "trt-fp16", "perf_offline")
    example = published.model_copy(update={"hps": {}})

    assert "GPU cache of 10% of the rows" in str(experiment_settings(published)["embedding lookup"])
    (model,) = hierarchical.json_of(example, hierarchical.Layout([], True), ["0"]).models
    assert f"{100 * model.gpucacheper:g}% of the rows" in str(
        experiment_settings(example)["embedding lookup"]
    )


def test_the_precision_of_tables_in_memory_is_said_if_it_is_not_fp32() -> None:
    published = config(A30, "dlrm", "trt-fp16", "perf_offline")
    mapped = published.model_copy(update={"lookup": "mapped"})
    small = mapped.model_copy(update={"table_precision": "int8"})

    said = [experiment_settings(each)["embedding lookup"] for each in (mapped, small)]
    assert said == [[f"python backend, all rows in memory{more}"] for more in ("", ", in int8")]


def test_an_engine_is_tuned_as_it_says() -> None:
    chosen = config(A30, "bert", "trt-fp16-b8", "perf_offline")
    built = profile({"x": np.zeros((1, 2))}, chosen.max_batch_size)["x"]

    assert experiment_settings(chosen)["engine's smallest batch"] == [built["min"][0]]
    assert experiment_settings(chosen)["engine tuned for batch"] == [built["opt"][0]]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the parameter files that is read instead of them."""
    folder = tmp_path / "params"
    folder.mkdir()
    for path in (ROOT / "params").glob("*.yaml"):
        shutil.copy2(path, folder)
    monkeypatch.setattr(loading, "FILES", folder)
    return folder


def test_a_changed_parameter_file_is_a_difference(files: Path) -> None:
    path = files / "NVIDIA-A30.yaml"
    text = path.read_text()
    path.write_text(
        text.replace("instances: 2\n", "instances: 3\n", 1)
        .replace("capture_cuda_graph: true ", "capture_cuda_graph: false ", 1)
        .replace("shared_memory: system", "shared_memory: cuda", 1)
        .replace("preferred_batch_sizes: [512, 1024]", "preferred_batch_sizes: [512]", 1)
        .replace("request_count: 500\n", "request_count: 9\n", 1)
    )
    assert read_file(path)

    found = fidelities()

    offline = table(found, "tft-nvidia-a30-offline-electricity-tensorrt")
    online = table(found, "tft-nvidia-a30-online-electricity-tensorrt")
    assert values(offline, "instances") == ("differs", [2], [3])
    assert values(offline, "CUDA graphs") == ("differs", ["captured"], ["not captured"])
    memories = (["in shared memory"], ["in CUDA's shared memory"])
    assert values(offline, "tensors") == ("differs", *memories)
    assert values(online, "dynamic batching")[2] == ["prefers 512, waits 1 us at most"]
    assert values(online, "windows")[2] == ["by time, at least 9 requests in all"]


def test_a_parameter_file_that_is_wrong_or_missing_spoils_its_own_tables_only(files: Path) -> None:
    (files / "NVIDIA-A40.yaml").unlink()
    path = files / "NVIDIA-T4.yaml"
    path.write_text(path.read_text().replace("instances: 2", "instances: many", 1))

    found = fidelities()

    faults = {each.row.gpu: each.fault for each in found if each.fault}
    assert {*faults} == {A40, T4}
    assert faults[A40] == "no parameter file for NVIDIA A40 repeats it in a container"
    assert "NVIDIA-T4.yaml: models.tft.experiments" in faults[T4]
    assert all(each.lines for each in found if each.row.gpu in (A30, A100, V100))


# The facts


def test_every_entry_of_the_facts_applies_to_a_row_and_every_setting_is_known() -> None:
    known = {*experiment_settings(config(A30, "dlrm", "trt-fp16", "perf_offline"))}

    for model, entries in facts.sources().items():
        for place, entry in enumerate(entries):
            where = entry.get("where", {})
            assert isinstance(where, dict)
            rows = [row.model_dump(include={*where}) for row in published(model)]
            fitting = [
                row
                for row in rows
                if all(
                    row[k] in v if isinstance(v, list) else row[k] == v for k, v in where.items()
                )
            ]
            assert fitting, f"{model}, entry {place}"
            assert {*entry.get("settings", ()), *entry.get("notes", ())} <= known


# The page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("outputs")
    nvidia.write_pages(path)
    return path


def test_the_page_has_a_table_for_each_and_runs_no_script(
    folder: Path, found: list[Fidelity]
) -> None:
    text = (folder / FIDELITY).read_text()
    page = Page(text)

    slugs = [str(tag["id"]) for tag in page.all("div")]
    assert slugs == [each.row.slug for each in found]
    assert len(page.all("details")) == len(page.all("summary")) == 84
    assert page.all("script") == []
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(|script-src", text)
    links = [str(tag["href"]) for tag in page.all("a")]
    background = [link.href for link in site.background()]
    assert links == [
        *("index.html", "published.html", *background, "fidelity.csv"),
        *(f"#{model}" for model in facts.sources()),
    ]
    assert {*facts.sources()} <= {str(tag.get("id")) for tag in page.all("h2")}
    summaries = [unescape(each) for each in re.findall(r"<summary>(.*?)</summary>", text, re.S)]
    assert "also differs: ONNX opset" in summaries[0]


def test_the_csv_holds_every_setting(folder: Path, found: list[Fidelity]) -> None:
    with (folder / "fidelity.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == sum(len(each.lines) for each in found)
    assert {row["comparison"] for row in rows} == {"same", "differs", "unknown"}
    first = next(row for row in rows if row["setting"] == "ONNX opset")
    assert first == {
        "model": "resnet50",
        "gpu": A40,
        "scenario": "offline",
        "dataset": "",
        "served": "ONNX with TensorRT, FP16",
        "experiments": "onnx-trt-fp16",
        "setting": "ONNX opset",
        "nvidia": "11",
        "ours": "13",
        "comparison": "differs",
        "note": "",
    }


@pytest.mark.slow
def test_it_is_written_again_only_if_something_changed(
    folder: Path,
) -> None:
    path = folder / FIDELITY
    before = path.stat().st_ino, path.read_bytes()

    nvidia.write_pages(folder)
    assert (path.stat().st_ino, path.read_bytes()) == before
    path.write_text("an older one")
    nvidia.write_pages(folder)
    assert path.read_bytes() == before[1]


@pytest.mark.slow
def test_another_parameter_file_does_not_write_the_published_rows_again(fresh: Project) -> None:
    code = "from pathlib import Path; from helpers.report import nvidia; "
    code += "nvidia.write_pages(Path('outputs'))"
    command, env = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": fresh.path}
    (fresh.root / "outputs").mkdir()
    written = []
    for gpu in ("CPU (dummy)", "CPU (another)"):
        text = fresh.params.read_text()
        fresh.params.write_text(text.replace("gpu: CPU (dummy)", f"gpu: {gpu}"))
        subprocess.run(command, cwd=fresh.root, env=env, check=True)
        pages = [fresh.root / "outputs" / name for name in ("published.html", "fidelity.html")]
        written.append([page.stat().st_ino for page in pages])
    (rows, fidelity), (same, other) = written
    assert rows == same
    assert fidelity != other


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="chromium: none on PATH")
def test_a_link_to_a_table_opens_it_in_a_browser(
    folder: Path, found: list[Fidelity], tmp_path: Path
) -> None:
    address = f"{(folder / FIDELITY).as_uri()}#{found[40].row.slug}"

    page, console = opened(address, tmp_path / "profile")

    assert console == []
    (opened_one,) = re.findall(r'<details class="table" open="">.*?<div id="(.*?)"', page, re.S)
    assert opened_one == found[40].row.slug
