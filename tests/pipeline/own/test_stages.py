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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from helpers.results import read
from tests.conftest import Answer, copy_project
from tests.pipeline.own import sources
from tests.pipeline.own.builders import MAKING, STAGES, new, quicken, run, serving

TYPES = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64"}
SIDE = 192  # of a page with text (pixels)


def tree(root):
    """The hash of every file of a project, but for its results and what Python compiled."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "outputs" not in path.parts
    }


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


def test_samples_are_drawn_again_after_an_edit_of_the_inputs(tmp_path):
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


def remove(project, name):
    """Delete what `new` wrote."""
    for folder in (f"helpers/models/{name}", f"notebooks/{name}"):
        shutil.rmtree(project.root / folder)
    (project.root / f"params/{name}.yaml").unlink()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_two_models_beside_each_other_become_reports_and_go_without_a_trace(tmp_path):
    project = copy_project(tmp_path / "project")
    before = tree(project.root)
    sources.scores(tmp_path / "scores.onnx")
    sources.samples(tmp_path / "samples.npz")
    sources.stateful(tmp_path / "sound.onnx")
    given = ("--samples", str(tmp_path / "samples.npz"), "--labels", str(tmp_path / "labels.npz"))
    new(project, "mine", "--from", str(tmp_path / "scores.onnx"), *given, "--metric", "accuracy")
    alone = ("--batch", "none", "--dimension", "length=5")
    new(project, "other", "--from", str(tmp_path / "sound.onnx"), *alone)

    answer = run(project, ("mine", "other"), "--experiment", "onnx-fp32")

    expected = [f"{name} onnx-fp32 {stage}" for name in ("mine", "other") for stage in STAGES]
    last = {f"{name} {stage}" for name in ("mine", "other") for stage in ("compare", "report")}
    assert set(answer.executed()) == {*expected, *last}
    for name, metrics in (("mine", ["accuracy", "match_rate"]), ("other", ["match_rate"])):
        folder = project.root / f"outputs/{name}/{name}"
        deployed = read(folder / "onnx-fp32/deploy.json")
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
def test_a_model_of_a_repository_is_measured_as_it_is(tmp_path):
    project = copy_project(tmp_path / "project")
    source = sources.repository(tmp_path / "repository")
    new(project, "doubler", "--from", str(source))

    answer = run(project, ["doubler"])

    served = [f"doubler as-it-is {stage}" for stage in STAGES[2:]]
    assert set(answer.executed()) == {*served, "doubler report"}
    deployed = read(project.root / "outputs/doubler/doubler/as-it-is/deploy.json")
    assert [score.served for score in deployed.scores] == [1.0]
    copy = next(project.root.glob("outputs/doubler/artifacts/*/doubler"))
    assert (copy / "1/model.py").read_text() == sources.MODEL
    assert run(project, ["doubler"]).executed() == []


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
def test_outputs_of_equal_shapes_are_served_under_the_names_that_keras_has(tmp_path):
    project = copy_project(tmp_path / "project")
    words = [sys.executable, "-W", "ignore", "-c", TWO_HEADS]
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(words, cwd=tmp_path, env=env, check=True, capture_output=True)
    new(project, "heads", "--from", str(tmp_path / "ab.keras"))

    run(project, ["heads"], "--experiment=onnx-fp32", *MAKING)

    with np.load(tmp_path / "right.npz") as right, serving(project, "heads") as ask:
        found = ask({"x": right["x"]})
        for name in "ab":
            assert np.allclose(found(name), right[name], rtol=1e-4, atol=1e-5)


KINDS = {  # by the framework that `new` imports for them
    "torch": {
        "function": ("--from", "nets:named"),
        "branch": ("--from", "nets:branch"),
        "torchscript": ("--from", "net.pt", "--samples", "samples.npz"),
        "program": ("--from", "net.pt2"),
    },
    "tensorflow": {"keras": ("--from", "net.keras"), "savedmodel": ("--from", "saved")},
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
def deployed(tmp_path_factory):
    """A model of each kind, in one copy of the project and by one command."""
    project = copy_project(tmp_path_factory.mktemp("kinds") / "project")
    sources.torch_files(project.root)
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
    answer = project.run("run", *(f"params/{kind}.yaml" for kind in KEPT), *MAKING)
    return Deployed(dict(zip(KEPT, listed, strict=True)), answer)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_model_of_each_kind_is_served_and_each_format_that_new_lists(deployed):
    executed = [name.split() for name in deployed.answer.executed()]
    found = {model: experiment for model, experiment, stage in executed if stage == STAGES[2]}
    assert found == KEPT, deployed.answer.output
    assert deployed.answer.code == 0, deployed.answer.output
    names = {name for each in deployed.listed.values() for name in each}
    formats = {name.rpartition("-")[0] for name in names}
    assert formats == {name.rpartition("-")[0] for name in KEPT.values()}


def made_by_others(test):
    """Mark a test of a model that a package brings."""
    for mark in ("slow", "thorough"):
        test = getattr(pytest.mark, mark)(test)
    return pytest.mark.usefixtures("nothing_left")(test)


def require(*modules):
    """Skip the test where models that others made are not installed."""
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install -r docker/models.lock")


class Recorder:
    """Stands for a package's own session: notes what it is asked and what it answers."""

    def __init__(self, session):
        self.session, self.asked, self.answered = session, [], []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, names, inputs, *_):
        types = {each.name: TYPES[each.type] for each in self.session.get_inputs()}
        given = {name: np.asarray(array, types[name]) for name, array in inputs.items()}
        self.asked.append(given)
        self.answered.append(self.session.run(names, given))
        return self.answered[-1]


class Served:
    """Stands for a package's own session: asks the server."""

    def __init__(self, session, ask, has_batch):
        self.session, self.ask, self.has_batch = session, ask, has_batch

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, names, inputs, *_):
        given, types = {}, {each.name: TYPES[each.type] for each in self.session.get_inputs()}
        for name, array in inputs.items():
            array = np.asarray(array, types[name])
            array = array if self.has_batch else array[np.newaxis]
            given[name] = array if array.ndim > 1 else array[:, np.newaxis]  # of a number
        answer = self.ask(given)
        found = [answer(name) for name in names or [o.name for o in self.session.get_outputs()]]
        return found if self.has_batch else [each[0] for each in found]


def through_stages(tmp_path, name, source, recorder, options=(), stages=STAGES[:3]):
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
    answer = run(project, [name], "--experiment=onnx-fp32", *chosen)

    assert {each.split()[-1] for each in answer.executed()} == set(stages)
    return project


def near(one, other):
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=True))


@made_by_others
def test_magika_tells_the_types_of_files_as_its_own_package_does(tmp_path):
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

    with serving(project, "magika") as ask:
        package._onnx_session = Served(recorder.session, ask, has_batch=True)
        assert [package.identify_path(path).output.label for path in files] == labels
        for asked, answered in zip(recorder.asked, recorder.answered, strict=True):
            assert near(package._onnx_session.run(None, asked), answered)


@made_by_others
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # its own package's
def test_silero_vad_hears_speech_as_its_own_package_does(tmp_path):
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

    with serving(project, "vad") as ask:
        package.session = Served(session, ask, has_batch=False)
        package.reset_states()
        assert near([heard], [[float(package(piece, 16000)) for piece in sound]])


@made_by_others
def test_rapidocr_finds_lines_of_text_as_its_own_package_does(tmp_path):
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

    with serving(project, "lines") as ask:
        engine.session = Served(session, ask, has_batch=True)
        for page, right in zip(pages, boxes, strict=True):
            assert np.array_equal(detector(page).boxes, right)
