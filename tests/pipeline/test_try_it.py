"""An experiment of each model goes through all stages by the batch command; every notebook ends
with something to try, and from there these variations are really run: see `variations_to_run`.

They run on the smoke target's settings, after the stages that they need and apart from the
experiment's own results, as a reader would go on: with overrides first, and by name from then on.
Those of the lessons are in tests/compare.
"""

import os
import re
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from helpers import models
from helpers.config import (
    LESSONS,
    SEPARATOR,
    STAGE,
    TARGET_VARIABLE,
    TUTORIAL_MODEL,
    DeployConfig,
    ExportConfig,
    artifact_folder,
    notebook_file,
    resolve,
    results_folder,
)
from helpers.inference import checkpoint_place, dataset_place
from helpers.pipeline.kernels import kernel_server_context
from helpers.pipeline.notebook import execute
from helpers.pipeline.planning import framework
from helpers.pipeline.publishing import explored, publish_indexes
from helpers.results import read
from helpers.store import OUTPUTS_VARIABLE, ROOT, find_artifact, link_or_copy
from tests.conftest import WATCHED, Project, apart, watch
from tests.pipeline.notebooks import variations
from tests.triton.test_client import answer_to_client

FEW = {"resnet50": 16, "bert": 16, "tft": 16}  # training samples
LONGEST_FIRST = sorted(models.names(), key=lambda name: name != TUTORIAL_MODEL)
# The experiments are the first ones of the default target, but for what no other test takes through
# all stages: TFT's other data set, and rows from the parameter server
OTHERS = {
    "tft": ("traffic-onnx-fp32", {"variant": "traffic"}),
    "dcnv2": (
        "hps-onnx-fp32",
        {"format": "onnx", "lookup": "hps", "repeated_batch": True}
        | {"hps": {"gpucacheper": 0.5, "hit_rate_threshold": 0.5}},
    ),
}
SERVED = ("deploy", "perf_offline", "perf_online", "compare", "report", "tune")  # one code for all
MEASURED = ("perf_offline", "perf_online")
QUICKEST_FIRST = ("tft", "dcnv2", "dlrm", "resnet50", "widedeep", "bert")  # to be measured
FILE = "try_it.yaml"
OWN = [stage for stage in STAGE if stage not in LESSONS]  # that each model has a notebook of


def variations_to_run(model, stage):
    """The variations that are run. What is served, measured or reported has one code for all
    models: of the variations that change the same fields the quickest one is run, and none whose
    fields another changes with more; measured, those that change what is served are alike. And DLRM
    and DCNv2 are one but for the network: what both name is run for DLRM.
    """
    named = variations(notebook_file(model, stage))
    if stage not in SERVED:
        others = variations(notebook_file("dlrm", stage)) if model == "dcnv2" else []
        return [each for each in named if each not in others]
    every = [
        (changed(stage, each), place)
        for place, name in enumerate(QUICKEST_FIRST)
        for each in variations(notebook_file(name, stage))
    ]

    def is_another(own):
        first = QUICKEST_FIRST.index(model)
        return any(own < more or (own == more and place < first) for more, place in every)

    return [each for each in named if not is_another(changed(stage, each))]


def changed(stage, overrides):
    """The fields that a variation changes, those of a space to search in each; what is served is
    one to who measures it.
    """
    found = {*overrides, *overrides.get("tune_space", {})}
    return {"served"} if stage in MEASURED and found <= set(DeployConfig.model_fields) else found


def parameters():
    """An experiment of each model, with the smoke target's settings and less to measure.

    What a variation names must fit: batches of eight, tables that are mapped. And any latency is
    within the budget, as other tests may run beside.
    """
    content = yaml.safe_load((ROOT / "params/smoke.yaml").read_text())
    default = yaml.safe_load((ROOT / "params/cpu.yaml").read_text())
    content["gpu"] = "CPU (try it)"
    quick = {"rates": [], "measurement_seconds": 0.3, "request_count": 4, "distinct_rows": 4}
    content["defaults"] |= quick | {"tune_minutes": 0.02, "compare_seconds": 2}
    for name, section in content["models"].items():
        first, settings = next(iter(default["models"][name]["experiments"].items()))
        experiment, other = OTHERS.get(name, (first, {}))
        points = {"batch_sizes": [2], "concurrency": [2], "rates": [], "pairs": 2}
        section["experiments"] = {experiment: settings | points | other}
        section["defaults"] |= {key: quick[key] for key in ("request_count", "distinct_rows")}
        section["defaults"]["latency_budget_ms"] = 10_000
        if name in ("resnet50", "bert"):
            section["defaults"]["max_batch_size"] = 8
    return dict(content)


@dataclass(frozen=True)
class Prepared:
    """An outputs folder in which one model's experiment has run."""

    model: str
    outputs: Path
    content: dict[str, Any]
    preload: Any  # has the next kernels find a framework imported
    target: str = "try_it"

    def config(self, stage, **given):
        return resolve(self.model, stage, **self.content, **given)

    def run(self, stage, **given):
        """Run a notebook by papermill, with the parameters of a file and these."""
        config = self.config(stage, **given)
        if isinstance(config, ExportConfig):
            self.preload(*framework(config))
        result = results_folder(config) / f"{stage}.json"
        execute(notebook_file(self.model, stage), result, self.content | given, 300)
        return config

    def tried(self, stage, overrides):
        """Run a variation of a stage: what it needs first, and from then on by name. The small
        sets have few training samples to calibrate int8 with. The variation that is the small set
        is one of the usual set.
        """
        defaults = self.content["defaults"]
        if overrides.get("dataset") == defaults["dataset"]:
            usual = self.content | {"defaults": defaults | {"dataset": "generated"}}
            return replace(self, content=usual).tried(stage, overrides)
        if overrides.get("precision") == "int8":
            overrides = overrides | {"calibration_samples": FEW.get(self.model, 2_000)}
        given = {"overrides": overrides}
        config = self.config(stage, **given)
        for earlier in list(STAGE)[: list(STAGE).index(stage)] if stage != "report" else ():
            is_made = STAGE[earlier].makes_artifact
            if is_made and not find_artifact(artifact_folder(config, earlier)):
                self.run(earlier, **given)
                given = {"experiment": config.experiment}
        return self.run(stage, **given)

    def files(self):
        base = self.outputs / self.target / self.model
        found = (path for path in base.rglob("*") if SEPARATOR not in str(path.relative_to(base)))
        return {str(path): path.read_bytes() for path in found if path.suffix in (".json", ".yaml")}


def run_once(model, shared, folder):
    """Give `folder` a parameter file, whose content is returned, and the outputs of all stages of a
    model's experiment; they are run once for all workers. Artifacts and data, which nobody changes,
    are the same files.
    """
    content, made = parameters(), shared / model
    content["models"] = {model: content["models"][model] | {"lessons": []}}
    with FileLock(shared / f"{model}.lock"):
        if not made.exists():
            making = shared / f"{model}-making"
            making.mkdir()
            (making / FILE).write_text(yaml.safe_dump(content))
            where = ("--outputs", str(making / "outputs"))
            with watch(making / WATCHED):
                answer = Project(ROOT).run("run", str(making / FILE), *where)
            assert answer.code == 0, answer.output
            making.rename(made)
    shutil.copytree(made, folder, copy_function=link_or_copy_large, dirs_exist_ok=True)
    return content


def fitted_by_run(model, shared, folder):
    """The settings of a model's experiment, and the data set and the checkpoint that its run made:
    in `folder`, see `run_once`.
    """
    content = run_once(model, shared, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder / "outputs"))
        patch.setenv(TARGET_VARIABLE, "try_it")
        config = resolve(model, "export", **content)
        assert isinstance(config, ExportConfig)
        return config, dataset_place(config).path, checkpoint_place(config).path


def link_or_copy_large(source, target):
    is_kept = {"artifacts", "data"} & set(Path(source).parts)
    return str((link_or_copy if is_kept else shutil.copy2)(source, target))


@pytest.fixture
def prepared(request, shared, tmp_path):
    """A model's experiment, finished in a folder of its own."""
    model = request.param
    content = run_once(model, shared, tmp_path)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv(OUTPUTS_VARIABLE, str(tmp_path / "outputs"))
        patch.setenv(TARGET_VARIABLE, "try_it")
        patch.setenv("PYTHONWARNINGS", "ignore")
        kernel_server = stack.enter_context(kernel_server_context())
        yield Prepared(model, tmp_path / "outputs", content, kernel_server.preload)


def kinds(made):
    return set(made.artifact.facts["operators"])


def is_torchscript(own, made):
    return all(kind.startswith(("aten::", "prim::")) for kind in kinds(made))


def is_smaller(own, made):
    return made.artifact.size_mb < own.artifact.size_mb


def is_as_large(own, made):
    return abs(made.artifact.size_mb / own.artifact.size_mb - 1) < 0.1


# What the artifact of a variation must show, by the field and its value: the experiment's own
# result, and the variation's.
PROMISED = {
    ("export_format", "ts-trace"): is_torchscript,
    ("export_format", "ts-script"): is_torchscript,
    ("precision", "int8"): is_smaller,
    ("precision", "bf16"): is_as_large,
    ("format", "onnx"): lambda _, made: bool({"MatMul", "Gemm"} & kinds(made)),
    ("dataset", "generated-small"): lambda own, made: kinds(own) == kinds(made),
    ("table_precision", "int8"): is_smaller,
    ("lookup", "hps"): lambda _, made: any(name.startswith("hps/") for name in made.artifact.files),
}


def is_promised(change):
    return isinstance(change[1], str) and change in PROMISED


def check(prepared, stage, given):
    """Run a variation, and hold that it lies apart and has what its field promises."""
    config = prepared.tried(stage, given)

    found = read(results_folder(config) / f"{stage}.json")
    assert (found.state, found.experiment) == ("done", config.experiment)
    assert config.experiment.count(SEPARATOR) == 1
    if STAGE[stage].makes_artifact:
        own = read(results_folder(prepared.config(stage)) / f"{stage}.json")
        for change in [each for each in given.items() if is_promised(each)]:
            assert PROMISED[change](own, found), given
    listed = explored(prepared.outputs, prepared.target)
    assert (config.experiment, stage) in {(each.experiment, each.stage) for each in listed}
    index = publish_indexes(prepared.outputs, prepared.target)
    assert config.experiment in index.read_text()


IMPORTED = {"torch": {"torch"}, "tensorflow": {"tensorflow", "keras"}}  # by framework


def require_one_framework(prepared):
    seen = [path.read_text().split() for path in (prepared.outputs.parent / WATCHED).iterdir()]
    own = models.get(prepared.model).FRAMEWORK
    kernels = [modules for modules in seen if {"forked", "helpers"} <= set(modules)]
    assert len(kernels) >= 6
    assert any("ipykernel" in modules for modules in seen)
    assert any(own in modules for modules in seen)  # the process that forks kernels
    others = {name for framework, names in IMPORTED.items() if framework != own for name in names}
    assert not [modules for modules in seen if others & set(modules)]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("prepared", [*map(apart, LONGEST_FIRST)], indirect=True)
def test_each_runs_apart_from_the_experiment_and_the_client_is_answered(prepared, tmp_path):
    before = prepared.files()
    config = prepared.config("deploy")
    report = f"{prepared.target}/{prepared.model}/report.html"
    assert config.experiment in (prepared.outputs / report).read_text()
    assert report in (prepared.outputs / "index.html").read_text()
    assert (prepared.outputs / "published.html").exists()
    require_one_framework(prepared)

    for stage in OWN:
        for given in variations_to_run(prepared.model, stage):
            check(prepared, stage, given)
    assert prepared.files() == before

    repository = artifact_folder(config, "deploy")
    serve = ("serve", str(prepared.outputs.parent / FILE), "--model", prepared.model)
    server = Project(ROOT).start(*serve, "--outputs", str(prepared.outputs))
    try:
        found = next(filter(None, map(re.compile(r"127\.0\.0\.1:\d+").search, server.stdout)))
        printed = answer_to_client(repository, found[0], tmp_path / "elsewhere")
    finally:
        server.send_signal(2)
        server.communicate(timeout=600)

    assert len(printed.splitlines()) >= 3
    assert "nan" not in printed
    assert os.sep not in printed
