"""What the package writes for a release is loaded by runtimes of that release's age.

Each experiment of the parameter files is exported and converted for its server, with generated
data and small variants, and its files run in the environments of docker/old_runtimes.py. TensorRT
needs a GPU: the ONNX file that it is given runs in ONNX Runtime instead.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from helpers import formats, inference
from helpers.config import read_file, releases, resolve
from helpers.inference import ensemble, open_dataset, requests
from helpers.measure import compute_reference
from helpers.measure.checks import BATCH, SAMPLES, SAMPLES_FILE, check
from helpers.store import ROOT, link_or_copy
from helpers.triton.repository import write_repository

pytestmark = [pytest.mark.slow, pytest.mark.old]

SMALL = {"bert": "small", "dlrm": "T15-10k", "dcnv2": "T15-10k"}  # variants
SHORT = {"bert": {"max_seq_length": 128}}  # of the smoke target's, whose checkpoint is there
# Nothing published is served by it, and a wider mask would cost every other runtime time
FAILS = {("24.10", "bert", "openvino"): "OpenVINO 2024.0 broadcasts no mask to the fused attention"}
# RELEASE or RELEASE/RUNTIME: environments that must be there, if a Python for them is
REQUIRED = os.environ.get("REQUIRE_OLD_RUNTIMES", "").split()


def load_script():
    spec = importlib.util.spec_from_file_location("old", ROOT / "docker/old_runtimes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["old"] = module  # a dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


old = load_script()


class Case(NamedTuple):
    """A file that an experiment exports or serves, and what loads it."""

    release: str
    model: str
    variant: str
    exported: str
    format: str
    precision: str
    runtime: str
    lookup: str = ""

    def __str__(self):
        return "-".join(filter(None, (*self[:3], *self[4:])))


def cases():
    """Every file that the parameter files lead to, in fp32 and in the precision they say."""
    found = set()
    for path in old.files():
        parameters = read_file(path)
        for model in parameters.file.models:
            for name in parameters.experiments(model):
                given = parameters.experiment(model, name)
                release = given.release or parameters.file.server.release
                variant, exported = SMALL.get(model, given.variant), given.export_format
                for fmt in {exported, given.format}:
                    fmt = "onnx" if fmt == "trt" else fmt
                    precisions = {"fp32", given.export_precision} if fmt == exported else {"fp32"}
                    for precision in precisions:
                        for runtime in old.RUNTIMES[fmt]:
                            if old.environment(release, runtime):
                                file = (variant, exported, fmt, precision, runtime)
                                found.add(Case(release, model, *file, given.lookup))
    return sorted(found)


def config(case, stage, **fields):
    """Configure a stage of an experiment that leads to the case's file."""
    experiment = {
        **{name: getattr(case, name) for name in ("variant", "lookup", "format", "precision")},
        "export_format": case.exported,
        "export_precision": case.precision,
        "max_batch_size": BATCH,
        **SHORT.get(case.model, {}),
        **fields,
    }
    server = {"kind": "docker", "release": case.release}
    overrides = {"dataset": "generated-small", "checkpoint": "fitted"}
    sections = {case.model: {"experiments": {"old": experiment}}}
    return resolve(case.model, stage, "old", "cpu", server, overrides, sections)


@pytest.fixture(scope="module", autouse=True)
def outputs(tmp_path_factory):
    """One outputs folder for all: a data set and a checkpoint serve many cases."""
    folder = tmp_path_factory.mktemp("old") / "outputs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_NOTEBOOKS_OUTPUTS", str(folder))
        yield folder


def environment(release, runtime):
    """Find an environment; skip with the reason where it is not made."""
    wanted = old.environment(release, runtime)
    if not wanted.interpreter.exists():
        if {release, f"{release}/{runtime}"} & set(REQUIRED):
            try:
                old.find_python(wanted.python)
            except old.Unavailable as reason:
                pytest.skip(str(reason))
            pytest.fail(f"not made: {wanted}")
        pytest.skip(f"not made (python docker/old_runtimes.py {release}): {wanted}")
    return wanted


@pytest.fixture
def borrow(outputs, shared):
    """Give the outputs folder a model's data set and checkpoint, where another test has them."""

    def borrow(model):
        data = shared / model / "outputs/data"
        if data.exists() and not list((outputs / "data").glob(f"{model}-*")):
            shutil.copytree(data, outputs / "data", copy_function=link_or_copy, dirs_exist_ok=True)

    return borrow


@pytest.fixture
def load(tmp_path):
    """Run a file in an environment; give the runtime's version and the outputs."""

    def load(wanted, kind, file, inputs, batch=BATCH):
        np.savez(tmp_path / "inputs.npz", **(inputs or {}))
        found = tmp_path / "outputs.npz"
        request = {"kind": kind, "file": str(file), "inputs": str(tmp_path / "inputs.npz")}
        request |= {"outputs": str(found) if inputs else "", "batch": batch}
        (tmp_path / "request.json").write_text(json.dumps(request))
        script = Path(__file__).with_name("load.py")
        command = [wanted.interpreter, script, tmp_path / "request.json"]
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr[-2000:]
        version = done.stdout.split()[-1]
        assert version.startswith(wanted.version) or kind == "adapter"
        return version, dict(np.load(found)) if inputs else {}

    return load


def made(case):
    """Export and convert; give the artifact of the case's format and the framework's outputs."""
    chosen = config(case, "export")
    prepared = inference.prepare(chosen)
    reference = compute_reference(chosen, prepared)
    artifact = inference.export(chosen, prepared)
    if case.format != case.exported:
        chosen = config(case, "convert")
        artifact = inference.convert(chosen, lambda *_: None)
    return chosen, artifact, dict(np.load(reference.folder / SAMPLES_FILE))


def samples(chosen):
    parts = [*requests(chosen, open_dataset(chosen), BATCH, SAMPLES)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def runs_here(case, version):
    """Whether the runtime computes in the case's precision on a processor."""
    is_old = tuple(map(int, version.split(".")[:2])) < (2, 1)
    return not (case.runtime == "torch" and case.precision == "fp16" and is_old)


def marked(case):
    """A case, expected to fail where it is known to; those of a model share its checkpoint."""
    known = FAILS.get((case.release, case.model, case.format))
    marks = [pytest.mark.xdist_group(case.model)]
    marks += [pytest.mark.xfail(reason=known, strict=True)] if known else []
    return pytest.param(case, marks=marks, id=str(case))


@pytest.mark.parametrize("case", [*map(marked, cases())])
def test_a_file_for_a_release_gives_the_frameworks_outputs_in_its_runtime(case, load, borrow):
    wanted = environment(case.release, case.runtime)
    borrow(case.model)
    chosen, artifact, reference = made(case)
    graph = ensemble.parts(chosen)[-1]
    file = artifact.folder / formats.get(case.format).FILE
    inputs = ensemble.graph_inputs(chosen, artifact.folder, samples(chosen))

    row = f"TABLE | {case.release} | {case.model} {case.variant} {case.lookup} | {case.format} "
    row += f"{case.precision} | {case.runtime}"
    if not runs_here(case, wanted.version):
        version, _ = load(wanted, wanted.module, file, None)
        print(f"{row} {version} | loads; no fp16 on a processor | ")
        return
    version, found = load(wanted, wanted.module, file, inputs, 0 if graph.flat else BATCH)

    own = {tensor.name: name for name, tensor in graph.outputs.items()}
    if wanted.module == "torch":  # results have places instead of names
        own = {str(place): name for place, name in enumerate(graph.outputs)}
    outcome = check("old", chosen, case.precision, {own[n]: v for n, v in found.items()}, reference)
    worst = max(outcome.differences, key=lambda each: each.max_difference or np.inf)
    print(f"{row} {version} | {worst.max_difference:.2g} | {worst.max_bound:.2g}")
    assert outcome.failure == ""


@pytest.mark.parametrize(("model", "way"), [("dlrm", "mapped"), ("dlrm", "hps")])
def test_a_lookup_runs_in_the_python_of_a_release(model, way, load, borrow, tmp_path):
    """The adapter and the lookup's runtime, as the repository has them, in Python 3.8."""
    case = Case("23.02", model, SMALL[model], "tf-savedmodel", "onnx", "fp32", "onnxruntime", way)
    wanted = environment(case.release, case.runtime)
    borrow(model)
    chosen, artifact, _ = made(case)
    deploy = config(case, "deploy")
    write_repository(tmp_path / "repository", deploy, artifact)
    lookup, graph = ensemble.parts(chosen)
    folder = tmp_path / "repository" / lookup.name
    message = text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())
    text = json_format.MessageToJson(message, preserving_proto_field_name=True)
    (folder / "1/config.json").write_text(text)
    given = samples(chosen)
    codec = ensemble.codec_of(deploy, tmp_path / "repository")
    sent = codec.encode(given) if codec else given
    inputs = {own.name: sent[name] for name, own in lookup.inputs.items()}

    assert wanted.python == "3.8"
    _, found = load(wanted, "adapter", folder / "1", inputs, 0 if graph.flat else BATCH)

    expected = ensemble.graph_inputs(chosen, artifact.folder, given)
    (vectors,) = found.values()
    (name,) = (own.name for n, own in graph.inputs.items() if n in lookup.outputs)
    np.testing.assert_array_equal(vectors.reshape(expected[name].shape), expected[name])


def test_the_parameter_files_name_no_release_that_the_table_does_not_have():
    assert set(old.needed()) <= {each.release for each in releases.table()}
