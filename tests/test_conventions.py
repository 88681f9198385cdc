"""Conventions that a reader relies on: surfaces, light imports, types, no machine's paths."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys

import pytest

from helpers import models
from helpers.store.paths import ROOT, outputs

MODULES = sorted((ROOT / "helpers").rglob("*.py"))
HEAVY = ("torch", "tensorflow", "onnxruntime", "openvino", "matplotlib", "pandas")
GENERATED = {".git", ".venv", "outputs", "build", "__pycache__"}
# spelled so that this file does not hold what it looks for
MACHINE = re.compile(r"(?<![\w.~$}>])/(?:root|home|work|tmp/w)(?:/|\b(?![\w-]))")


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def committed():
    """Every file that is or would be committed; without git, all that is not generated."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not GENERATED & set(p.relative_to(ROOT).parts)]
        paths = [p for p in paths if not any(part.endswith("_cache") for part in p.parts)]
    return [path for path in paths if path.is_file()]


def test_what_a_test_writes_is_not_in_the_outputs_of_the_project(tmp_path):
    assert outputs() == tmp_path / "outputs"


SKIPPED = """
import pytest
def test_one():
    pytest.skip("docker: there is none")
def test_other():
    pytest.skip("dockers: there is none")
"""


def test_a_skip_for_what_is_required_is_a_failure(tmp_path):
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(tmp_path)]
    env = {**os.environ, "REQUIRE": "redis,docker", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert "1 failed, 1 skipped" in done.stdout
    assert "REQUIRE: docker: there is none" in done.stdout


def test_a_module_says_its_secret_in_one_sentence():
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in MODULES}
    first = {name_of(path): text.split("\n\n")[0] for path, text in texts.items()}

    assert [n for n, text in first.items() if len(text) < 21 or text[-1] not in ".:"] == []


def entered(path):
    """The insides of other rooms that a module imports from, late imports included."""
    own = name_of(path).split(".")[1:2]
    for node in ast.walk(ast.parse(path.read_text())):
        name = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        # what it writes inherits from there: two halves of one thing, with rooms between them
        is_half = path.parent.name == "own" and name.startswith("helpers.models._")
        is_inside = name.startswith("helpers.") and name.count(".") > 1 and not is_half
        if is_inside and name.split(".")[1:2] != own:
            yield f"{name_of(path)}: {name}"


def test_another_room_is_entered_by_its_public_surface():
    assert [each for path in MODULES for each in entered(path)] == []


@pytest.mark.parametrize("stub", sorted((ROOT / "helpers").rglob("__init__.pyi")), ids=name_of)
def test_a_room_has_a_surface_whose_every_name_loads(stub):
    room = importlib.import_module(name_of(stub))
    nodes = ast.parse(stub.read_text()).body
    assert [node for node in nodes if not isinstance(node, ast.ImportFrom)] == []
    exported = {alias.name: alias.asname for node in nodes for alias in node.names}
    names = sorted(exported)

    assert names == sorted(filter(None, exported.values()))  # else it is not exported
    assert names == sorted(room.__all__)
    assert all(hasattr(room, name) for name in names)
    assert not {path.stem for path in stub.parent.glob("*.py")} & set(names)


IMPORTS = """
import importlib, json, sys
loads = {}
for name in json.loads(sys.argv[1]):
    before = set(sys.modules)
    importlib.import_module(name)
    heavy = set(json.loads(sys.argv[2])) & (set(sys.modules) - before)
    if heavy:
        loads[name] = sorted(heavy)
print(json.dumps(loads))
"""


def heavy_imports(names):
    """Import modules one after the other in a fresh process: which loads a framework first."""
    command = [sys.executable, "-W", "error", "-c", IMPORTS, json.dumps(names), json.dumps(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_importing_any_module_loads_no_framework():
    inside_triton, insides = ("adapter.py", "numpy2.py"), re.compile(r"helpers\.models\.\w+\.")
    names = [name_of(path) for path in MODULES if path.name not in inside_triton]
    outside = [name for name in names if not insides.match(name)]

    assert len(outside) > 100
    assert heavy_imports(outside) == {}


@pytest.mark.parametrize("model", models.names())
@pytest.mark.slow
def test_the_inside_of_a_model_loads_its_own_framework_at_most(model):
    own = [path for path in MODULES if path.parent.name == model]
    names = [name_of(path) for path in sorted({*own, *models.sources(model)})]

    loaded = {each for found in heavy_imports(names).values() for each in found}

    framework = models.get(model).FRAMEWORK
    brought = {"pandas", "matplotlib"} if framework == "tensorflow" else set()  # by Keras
    assert loaded <= {framework, *brought}
    data = [name for name in names if name.endswith(".data")]
    assert data
    assert heavy_imports(data) == {}  # the server's stages read samples only


def test_no_committed_file_holds_a_path_of_someones_machine():
    found = []
    for path in committed():
        content = path.read_bytes()
        if b"\0" not in content[:8000]:
            lines = content.decode(errors="replace").splitlines()
            found += [f"{path.relative_to(ROOT)}: {line}" for line in lines if MACHINE.search(line)]

    assert found == []


def test_the_search_for_such_paths_finds_them():
    slash = "/"
    places = [f"{slash}root{slash}a", f'"{slash}home{slash}me', f"in {slash}work: x"]

    assert all(MACHINE.search(place) for place in places)
    assert not MACHINE.search("https://example.org/home/page")
    assert not MACHINE.search("notebooks/work/x")
