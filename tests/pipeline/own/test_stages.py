"""Models of one's own go through all stages on the real Triton: two beside each other, one of each
kind, and three that nobody here made, whose own packages judge the answers; of these one is
measured.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from helpers.results import read
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


def test_samples_are_drawn_again_after_an_edit_of_the_inputs(fresh):
    package = fresh.root / "helpers/models/mine"
    package.mkdir()
    code = "from helpers.models._own import Own\nMODEL = Own.load(__file__)\n"
    (package / "__init__.py").write_text(code)
    python, found = (sys.executable, "-c", PLACE), []
    for below in (2, 1000):
        (package / "model.yaml").write_text(DESCRIPTION.format(below=below))
        done = subprocess.run(python, cwd=fresh.root, capture_output=True, text=True, check=True)
        found.append(done.stdout)

    assert found[0] != found[1]


@pytest.mark.usefixtures("nothing_left")
def test_two_models_beside_each_other_become_reports_and_go_without_a_trace(fresh, tmp_path):
    project, before = fresh, tree(fresh.root)
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
    drawn = "drawn at random from type and shape"
    for stage in STAGES:
        assert drawn in (project.root / f"outputs/other/other/onnx-fp32/{stage}.html").read_text()
    for name, metrics in (("mine", ["accuracy", "match_rate"]), ("other", ["match_rate"])):
        folder = project.root / f"outputs/{name}/{name}"
        deployed = read(folder / "onnx-fp32/deploy.json")
        scores = {score.metric: score.served for score in deployed.scores}
        assert scores == dict.fromkeys(metrics, 1.0)
        assert f"{name} on Triton: report" in (folder / "report.html").read_text()
        for written in (f"helpers/models/{name}", f"notebooks/{name}"):
            shutil.rmtree(project.root / written)
        (project.root / f"params/{name}.yaml").unlink()
    assert tree(project.root) == before
    answer = project.run("publish")  # what is left in outputs names models that are gone
    assert answer.code == 0, answer.output


@pytest.mark.usefixtures("nothing_left")
def test_a_model_of_a_repository_is_measured_as_it_is(fresh, tmp_path):
    project = fresh
    new(project, "doubler", "--from", str(sources.repository(tmp_path / "repository")))

    answer = run(project, ["doubler"])

    served = [f"doubler as-it-is {stage}" for stage in STAGES[2:]]
    assert set(answer.executed()) == {*served, "doubler report"}
    deployed = read(project.root / "outputs/doubler/doubler/as-it-is/deploy.json")
    assert [score.served for score in deployed.scores] == [1.0]
    copy = next(project.root.glob("outputs/doubler/artifacts/*/doubler"))
    assert (copy / "1/model.py").read_text() == sources.MODEL
    assert run(project, ["doubler"]).executed() == []


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


@pytest.mark.slow
@pytest.mark.thorough
def test_a_model_of_each_kind_is_served_and_each_format_that_new_lists(fresh):
    sources.torch_files(fresh.root)
    sources.keras_files(fresh.root)
    listed = ""
    for kinds in KINDS.values():  # in one process each: imports take longer than the rest
        words = [sys.executable, "-W", "ignore", "-c", ONE_AFTER_ANOTHER, json.dumps(kinds)]
        env = {**os.environ, "PYTHONPATH": fresh.path}
        done = subprocess.run(words, cwd=fresh.root, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        listed += done.stdout
    for kind, experiment in KEPT.items():
        quicken(fresh, kind, experiment)

    answer = run(fresh, KEPT, *MAKING)

    executed = [name.split() for name in answer.executed()]
    found = {model: experiment for model, experiment, stage in executed if stage == STAGES[2]}
    assert found == KEPT, answer.output
    names = ", ".join(re.findall(r"^experiments: (.*)", listed, re.MULTILINE)).split(", ")
    formats = {name.rpartition("-")[0] for name in names}
    assert formats == {name.rpartition("-")[0] for name in KEPT.values()}


made_by_others = pytest.mark.usefixtures("nothing_left")


def require(*modules):
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install -r docker/models.lock")


class Session:
    """Stands for a package's own session: notes what it is asked and what it answers, or asks the
    server instead.
    """

    def __init__(self, session, has_batch=True):
        self.session, self.has_batch = session, has_batch
        self.types = {each.name: TYPES[each.type] for each in session.get_inputs()}
        self.asked, self.answered, self.ask_server = [], [], None

    def __getattr__(self, name):
        return getattr(self.session, name)

    def run(self, names, inputs, *_):
        given = {name: np.asarray(array, self.types[name]) for name, array in inputs.items()}
        if not self.ask_server:
            self.asked.append(given)
            self.answered.append(self.session.run(names, given))
            return self.answered[-1]
        if not self.has_batch:
            given = {name: array[np.newaxis] for name, array in given.items()}
        rows = {name: a if a.ndim > 1 else a[:, np.newaxis] for name, a in given.items()}
        answer = self.ask_server(rows)  # a number is sent as a vector of one
        found = [answer(name) for name in names or [o.name for o in self.session.get_outputs()]]
        return found if self.has_batch else [each[0] for each in found]


@contextmanager
def deployed_with(session, project, name, source, stages=STAGES[:3]):
    """Run these stages of a model in ONNX, on what its package asked its `session`, which then asks
    the server.
    """
    join = np.concatenate if session.has_batch else np.stack
    samples = project.root.with_name("samples.npz")
    np.savez(samples, **{k: join([each[k] for each in session.asked]) for k in session.asked[0]})
    options = () if session.has_batch else ("--batch", "none")
    answer = new(project, name, "--from", str(source), "--samples", str(samples), *options)
    assert "onnx-fp32" in answer.output

    chosen = [f"--stage={stage}" for stage in stages]
    answer = run(project, [name], "--experiment=onnx-fp32", *chosen)

    assert {each.split()[-1] for each in answer.executed()} == set(stages)
    with serving(project, name) as session.ask_server:
        yield


def near(one, other):
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, other, strict=True))


@made_by_others
def test_magika_tells_the_types_of_files_as_its_own_package_does(fresh):
    require("magika")
    from magika import Magika

    package = Magika()
    package._onnx_session = session = Session(package._onnx_session)
    root = Path(__file__).parents[3]
    files = [*sorted(root.glob("helpers/**/*.py"))[:40], *root.glob("params/*.yaml")]
    files += root.glob("*.md")
    labels = [package.identify_path(path).output.label for path in files]
    assert {"python", "yaml", "markdown"} <= set(map(str, labels))

    with deployed_with(session, fresh, "magika", Path(package._model_dir) / "model.onnx"):
        assert [package.identify_path(path).output.label for path in files] == labels
        for asked, answered in zip(session.asked, session.answered, strict=True):
            assert near(session.run(None, asked), answered)


@made_by_others
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # its own package's
def test_silero_vad_hears_speech_as_its_own_package_does(fresh):
    """Its state goes from one piece of sound to the next: in by an input, and out again."""
    require("silero_vad")
    import silero_vad
    import torch

    package = silero_vad.load_silero_vad(onnx=True)
    package.session = session = Session(package.session, has_batch=False)
    seconds = torch.arange(512 * 40) / 16000
    voice = sum(torch.sin(2 * torch.pi * 140 * k * seconds) / k for k in range(1, 20))
    sound = (voice * torch.sin(2 * torch.pi * 3 * seconds).clamp(0) * 0.2).reshape(40, 512)
    heard = [float(package(piece, 16000)) for piece in sound]
    assert max(heard) > 2 * min(heard)
    source = Path(silero_vad.__file__).parent / "data/silero_vad.onnx"

    with deployed_with(session, fresh, "vad", source):
        package.reset_states()
        assert near([heard], [[float(package(piece, 16000)) for piece in sound]])


@made_by_others
def test_rapidocr_finds_lines_of_text_as_its_own_package_does(fresh):
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
    engine.session = session = Session(engine.session)
    boxes = [detector(page).boxes for page in pages]
    assert [len(each) for each in boxes] == [3] * len(pages)
    source = next((Path(rapidocr.__file__).parent / "models").glob("*det*.onnx"))

    with deployed_with(session, fresh, "lines", source, (*STAGES, "report")):
        for page, right in zip(pages, boxes, strict=True):
            assert np.array_equal(detector(page).boxes, right)
