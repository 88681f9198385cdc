"""Models of one's own go through all stages on the real Triton: two beside each other, one of each
kind, and three that nobody here made, whose own packages judge the answers; of these one is
measured.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from helpers.models import Arrays
from helpers.results import read
from tests.conftest import Answer, Project, copy_project, free_ports, wait_for
from tests.pipeline.own import sources

QUICK = {
    "measurement_seconds": 0.3,
    "margin_of_error": 0.5,
    "request_count": 6,
    "pairs": 2,
    "distinct_rows": 4,
}
POINT = {"batch_sizes": [1], "concurrency": [2], "rates": []}
TYPES = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64"}
SIDE = 192  # of a page with text (pixels)
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online")


def tree(root: Path) -> dict[str, str]:
    """The hash of every file of a project, but for its results and what Python compiled."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "outputs" not in path.parts
    }


def new(project: Project, name: str, *arguments: str) -> Answer:
    """Have `new` write a model, whose measurements are then made quick."""
    answer = project.run("new", name, *arguments)
    assert answer.code == 0, answer.output
    quicken(project, name)
    return answer


def quicken(project: Project, name: str, *kept: str) -> None:
    """Make a new model's measurements quick, and leave out experiments that are not `kept`, if any
    is.
    """
    path = project.root / f"params/{name}.yaml"
    content = yaml.safe_load(path.read_text())
    section = content["models"][name]
    section["defaults"] |= QUICK
    section["experiments"] = {
        each: fields | POINT
        for each, fields in section["experiments"].items()
        if each in kept or not kept
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))


DESCRIPTION = """
source: onnx
framework: onnxruntime
inputs: [{{name: ids, dtype: int32, shape: [4], below: {below}}}]
outputs: [{{name: scores, dtype: float32, shape: [2]}}]
"""
PLACE = """
from types import SimpleNamespace
from helpers.inference import recipe_folder
config = SimpleNamespace(model="mine", dataset="generated", cache_fields=lambda stage: {})
print(recipe_folder(config, "dataset"))
"""


def test_samples_are_drawn_again_after_an_edit_of_the_inputs(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    package = project.root / "helpers/models/mine"
    package.mkdir()
    code = "from helpers.models._own import Own\nMODEL = Own.load(__file__)\n"
    (package / "__init__.py").write_text(code)
    python, found = (sys.executable, "-c", PLACE), []
    for below in (2, 1000):
        (package / "model.yaml").write_text(DESCRIPTION.format(below=below))
        done = subprocess.run(python, cwd=project.root, capture_output=True, text=True, check=True)
        found.append(done.stdout)

    assert found[0] != found[1]


def remove(project: Project, name: str) -> None:
    """Delete what `new` wrote."""
    for folder in (f"helpers/models/{name}", f"notebooks/{name}"):
        shutil.rmtree(project.root / folder)
    (project.root / f"params/{name}.yaml").unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_two_models_beside_each_other_become_reports_and_go_without_a_trace(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    before = tree(project.root)
    sources.scores(tmp_path / "scores.onnx")
    sources.samples(tmp_path / "samples.npz")
    sources.stateful(tmp_path / "sound.onnx")
    given = ("--samples", str(tmp_path / "samples.npz"), "--labels", str(tmp_path / "labels.npz"))
    new(project, "mine", "--from", str(tmp_path / "scores.onnx"), *given, "--metric", "accuracy")
    alone = ("--batch", "none", "--dimension", "length=5")
    new(project, "other", "--from", str(tmp_path / "sound.onnx"), *alone)

    files = ("params/mine.yaml", "params/other.yaml")
    answer = project.run("run", *files, "--experiment", "onnx-fp32")

    assert answer.code == 0, answer.output
    expected = [f"{name} onnx-fp32 {stage}" for name in ("mine", "other") for stage in STAGES]
    assert set(answer.executed()) == {*expected, "mine report", "other report"}
    for name, metrics in (("mine", ["accuracy", "match_rate"]), ("other", ["match_rate"])):
        folder = project.root / f"outputs/{name}/{name}"
        deployed = read(folder / "onnx-fp32/deploy.json")
        assert deployed
        assert [score.metric for score in deployed.scores] == metrics
        assert [score.served for score in deployed.scores] == [1.0] * len(metrics)
        page = (folder / "report.html").read_text()
        assert f"{name} on Triton: report" in page
    drawn = "drawn at random from type and shape"
    for stage in STAGES:
        assert drawn in (project.root / f"outputs/other/other/onnx-fp32/{stage}.html").read_text()
    remove(project, "mine")
    remove(project, "other")
    assert tree(project.root) == before
    answer = project.run("publish")  # what is left in outputs names models that are gone
    assert answer.code == 0, answer.output


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_model_of_a_repository_is_measured_as_it_is(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    source = sources.repository(tmp_path / "repository")
    new(project, "doubler", "--from", str(source))

    answer = project.run("run", "params/doubler.yaml")

    assert answer.code == 0, answer.output
    served = [f"doubler as-it-is {stage}" for stage in STAGES[2:]]
    assert set(answer.executed()) == {*served, "doubler report"}
    deployed = read(project.root / "outputs/doubler/doubler/as-it-is/deploy.json")
    assert deployed
    assert [score.served for score in deployed.scores] == [1.0]
    assert deployed.artifact
    copy = next(project.root.glob("outputs/doubler/artifacts/*/doubler"))
    assert (copy / "1/model.py").read_text() == sources.MODEL
    again = project.run("run", "params/doubler.yaml")
    assert again.executed() == []


TWO_HEADS = """
import keras, numpy as np
keras.utils.set_random_seed(0)
x = keras.Input((4,), name="x")
b, a = keras.layers.Dense(2, name="first")(x), keras.layers.Dense(2, name="second")(x)
model = keras.Model(x, {"b": b, "a": a})
model.save("ab.keras")
given = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
np.savez("right.npz", x=given, **{name: np.asarray(each) for name, each in model(given).items()})
"""


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_outputs_of_equal_shapes_are_served_under_the_names_that_keras_has(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    words = [sys.executable, "-W", "ignore", "-c", TWO_HEADS]
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True)
    new(project, "heads", "--from", str(tmp_path / "ab.keras"))

    chosen = [f"--stage={stage}" for stage in STAGES[:3]]
    answer = project.run("run", "params/heads.yaml", "--experiment=onnx-fp32", *chosen)

    assert answer.code == 0, answer.output
    with np.load(tmp_path / "right.npz") as right, serving(project, "heads") as url:
        import tritonclient.http as http

        asked = http.InferInput("x", [4, 4], "FP32").set_data_from_numpy(right["x"])
        served = http.InferenceServerClient(url).infer("heads", [asked])
        for name in "ab":
            assert np.allclose(served.as_numpy(name), right[name], rtol=1e-4, atol=1e-5)


KINDS = {  # by the framework that `new` imports for them
    "torch": {
        "function": ("--from", "nets:named"),
        "branch": ("--from", "nets:branch"),
        "torchscript": ("--from", "net.pt", "--samples", "samples.npz"),
        "program": ("--from", "net.pt2"),
    },
    "tensorflow": {
        "keras": ("--from", "net.keras"),
        "savedmodel": ("--from", "saved"),
    },
}
ONE_AFTER_ANOTHER = """
import json, sys
from helpers.__main__ import main
for name, given in json.loads(sys.argv[1]).items():
    assert main(["new", name, *given]) == 0
"""
# What is deployed of each, as `new` itself has converted to all that it lists: each format once
KEPT = {
    "function": "onnx-fp32",
    "branch": "ts-script-bf16",
    "torchscript": "ts-trace-bf16",
    "program": "openvino-bf16",
    "keras": "openvino-fp32",
    "savedmodel": "savedmodel-fp32",
}


@dataclass(frozen=True)
class Deployed:
    """The experiments that `new` listed for each model, and how a run of one of them ended."""

    listed: dict[str, list[str]]
    answer: Answer


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """A model of each kind, in one copy of the project and by one command."""
    project = copy_project(tmp_path_factory.mktemp("kinds") / "project")
    sources.torch_files(project.root)
    sources.samples(project.root / "samples.npz")
    sources.keras_files(project.root)
    listed = []
    for kinds in KINDS.values():  # in one process each: imports take longer than the rest
        words = [sys.executable, "-W", "ignore", "-c", ONE_AFTER_ANOTHER, json.dumps(kinds)]
        env = {**os.environ, "PYTHONPATH": project.path}
        done = subprocess.run(words, cwd=project.root, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line for line in done.stdout.splitlines() if line.startswith("experiments: ")]
        listed += [line.removeprefix("experiments: ").split(", ") for line in said]
    for kind, experiment in KEPT.items():
        quicken(project, kind, experiment)
    stages = [f"--stage={stage}" for stage in STAGES[:3]]
    answer = project.run("run", *(f"params/{kind}.yaml" for kind in KEPT), *stages)
    return Deployed(dict(zip(KEPT, listed, strict=True)), answer)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.alone
def test_a_model_of_each_kind_is_served_and_each_format_that_new_lists(deployed: Deployed) -> None:
    executed = [name.split() for name in deployed.answer.executed()]
    found = {model: experiment for model, experiment, stage in executed if stage == STAGES[2]}
    assert found == KEPT, deployed.answer.output
    assert deployed.answer.code == 0, deployed.answer.output
    names = {name for each in deployed.listed.values() for name in each}
    formats = {name.rpartition("-")[0] for name in names}
    assert formats == {name.rpartition("-")[0] for name in KEPT.values()}


def made_by_others(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of a model that a package brings."""
    for mark in ("slow", "thorough", "alone"):
        test = getattr(pytest.mark, mark)(test)
    return pytest.mark.usefixtures("nothing_left")(test)


def require(*modules: str) -> None:
    """Skip the test where models that others made are not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install -r docker/models.lock")


class Recorder:
    """Stands for a package's own session: notes what it is asked and what it answers."""

    def __init__(self, session: Any) -> None:
        self.session, self.asked, self.answered = session, list[Arrays](), list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, names: Any, inputs: Any, *_: Any) -> Any:
        types = {each.name: TYPES[each.type] for each in self.session.get_inputs()}
        given = {name: np.asarray(array, types[name]) for name, array in inputs.items()}
        self.asked.append(given)
        self.answered.append(self.session.run(names, given))
        return self.answered[-1]


class Served:
    """Stands for a package's own session: asks the server."""

    def __init__(self, session: Any, url: str, model: str, has_batch: bool) -> None:
        import tritonclient.http as http

        self.session, self._http, self._model = session, http, model
        self._client, self._has_batch = http.InferenceServerClient(url), has_batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, names: Any, inputs: Any, *_: Any) -> Any:
        from tritonclient.utils import np_to_triton_dtype

        tensors = []
        types = {each.name: TYPES[each.type] for each in self.session.get_inputs()}
        for name, array in inputs.items():
            given = np.asarray(array, types[name])
            given = given if self._has_batch else given[np.newaxis]
            given = given if given.ndim > 1 else given[:, np.newaxis]  # a number has a dimension
            each = self._http.InferInput(name, list(given.shape), np_to_triton_dtype(given.dtype))
            tensors.append(each.set_data_from_numpy(given))
        answer = self._client.infer(self._model, tensors)
        names = names or [each.name for each in self.session.get_outputs()]
        found = [answer.as_numpy(name) for name in names]
        return found if self._has_batch else [each[0] for each in found]


@contextmanager
def serving(project: Project, name: str) -> Iterator[str]:
    """Serve a deployed model as a user does; give the server's address."""
    (port,) = free_ports(1)
    options = ("--model", name, "--experiment", "onnx-fp32", "--port", str(port))
    process = project.start("serve", f"params/{name}.yaml", *options)
    try:
        wait_for(lambda: is_ready(f"127.0.0.1:{port}", name))
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(2)
        process.communicate(timeout=60)


def is_ready(url: str, name: str) -> bool:
    """Whether a model can be asked at an address; wait a little if not."""
    import tritonclient.http as http

    try:
        return bool(http.InferenceServerClient(url).is_model_ready(name))
    except OSError:
        time.sleep(0.2)
        return False


def through_stages(
    tmp_path: Path,
    name: str,
    source: Path,
    recorder: Recorder,
    options: tuple[str, ...] = (),
    stages: tuple[str, ...] = STAGES[:3],
) -> Project:
    """Run these stages of a model in ONNX, on what its package asked it."""
    project = copy_project(tmp_path / "project")
    is_batched = "none" not in options
    rows = {
        key: np.concatenate([each[key] for each in recorder.asked])
        if is_batched
        else np.stack([each[key] for each in recorder.asked])
        for key in recorder.asked[0]
    }
    np.savez(tmp_path / "samples.npz", **rows)
    samples = ("--samples", str(tmp_path / "samples.npz"))
    answer = new(project, name, "--from", str(source), *samples, *options)
    assert "onnx-fp32" in answer.output

    chosen = [f"--stage={stage}" for stage in stages]
    answer = project.run("run", f"params/{name}.yaml", "--experiment=onnx-fp32", *chosen)

    assert answer.code == 0, answer.output
    assert {each.split()[-1] for each in answer.executed()} == set(stages)
    return project


def near(one: Any, other: Any) -> bool:
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=True))


@made_by_others
def test_magika_tells_the_types_of_files_as_its_own_package_does(tmp_path: Path) -> None:
    require("magika")
    from magika import Magika

    package = Magika()
    package._onnx_session = recorder = Recorder(package._onnx_session)
    root = Path(__file__).parents[3]
    files = [*sorted(root.glob("helpers/**/*.py"))[:40], *root.glob("params/*.yaml")]
    files += root.glob("*.md")
    labels = [package.identify_path(path).output.label for path in files]
    assert {"python", "yaml", "markdown"} <= set(map(str, labels))
    source = Path(package._model_dir) / "model.onnx"

    project = through_stages(tmp_path, "magika", source, recorder)

    with serving(project, "magika") as url:
        package._onnx_session = Served(recorder.session, url, "magika", has_batch=True)
        assert [package.identify_path(path).output.label for path in files] == labels
        for asked, answered in zip(recorder.asked, recorder.answered, strict=True):
            assert near(package._onnx_session.run(None, asked), answered)


@made_by_others
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # its own package's
def test_silero_vad_hears_speech_as_its_own_package_does(tmp_path: Path) -> None:
    """Its state goes from one piece of sound to the next: in by an input, and out again."""
    require("silero_vad")
    import silero_vad
    import torch

    package = silero_vad.load_silero_vad(onnx=True)
    session = package.session
    package.session = recorder = Recorder(session)
    seconds = torch.arange(512 * 40) / 16000
    voice = sum(torch.sin(2 * torch.pi * 140 * k * seconds) / k for k in range(1, 20))
    sound = (voice * torch.sin(2 * torch.pi * 3 * seconds).clamp(0) * 0.2).reshape(40, 512)
    heard = [float(package(piece, 16000)) for piece in sound]
    assert max(heard) > 2 * min(heard)
    source = Path(silero_vad.__file__).parent / "data/silero_vad.onnx"

    project = through_stages(tmp_path, "vad", source, recorder, ("--batch", "none"))

    with serving(project, "vad") as url:
        package.session = Served(session, url, "vad", has_batch=False)
        package.reset_states()
        assert near([heard], [[float(package(piece, 16000)) for piece in sound]])


@made_by_others
def test_rapidocr_finds_lines_of_text_as_its_own_package_does(tmp_path: Path) -> None:
    require("rapidocr", "cv2")
    import rapidocr
    from PIL import Image, ImageDraw

    pages = []
    for turn in range(8):
        page = Image.new("RGB", (SIDE, SIDE), "white")
        pen = ImageDraw.Draw(page)
        for line in range(3):
            pen.text((10 + 5 * turn, 16 + 56 * line), f"line {line}", fill="black", font_size=24)
        pages.append(np.asarray(page))
    detector = rapidocr.RapidOCR(params={"Det.limit_side_len": SIDE, "Det.limit_type": "max"})
    detector = detector._load_det_model()
    engine = detector.session
    session = engine.session
    engine.session = recorder = Recorder(session)
    boxes = [detector(page).boxes for page in pages]
    assert [len(each) for each in boxes] == [3] * len(pages)
    source = next((Path(rapidocr.__file__).parent / "models").glob("*det*.onnx"))

    every = (*STAGES, "report")
    project = through_stages(tmp_path, "lines", source, recorder, stages=every)

    with serving(project, "lines") as url:
        engine.session = Served(session, url, "lines", has_batch=True)
        for page, right in zip(pages, boxes, strict=True):
            assert np.array_equal(detector(page).boxes, right)
