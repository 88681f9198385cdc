"""Conventions that a reader relies on: surfaces, light imports, types, no machine's paths."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers import models
from helpers.store.paths import ROOT, outputs
from tests.conftest import HERE, pytest_ignore_collect

MODULES = sorted((ROOT / "helpers").rglob("*.py"))
HEAVY = ("torch", "tensorflow", "onnxruntime", "openvino", "matplotlib", "pandas")
GENERATED = {".git", ".venv", "outputs", "build", "__pycache__"}
# spelled so that this file does not hold what it looks for
MACHINE = re.compile(r"(?<![\w.~$}>])/(?:root|home|work|tmp/w)(?:/|\b(?![\w-]))")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def committed() -> list[Path]:
    """Every file that is or would be committed; without git, all that is not generated."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in done.stdout.split("\0") if name]
    else:
        paths = [p for p in ROOT.rglob("*") if not GENERATED & set(p.relative_to(ROOT).parts)]
        paths = [p for p in paths if not any(part.endswith("_cache") for part in p.parts)]
    return [path for path in paths if path.is_file()]


def test_what_a_test_writes_is_not_in_the_outputs_of_the_project(tmp_path: Path) -> None:
    assert outputs() == tmp_path / "outputs"


@pytest.mark.parametrize("order", ["{0} or {1}", "{1} or {0}", "({1}) or {0}", "not (not {0})"])
def test_no_file_with_a_test_that_is_asked_for_is_left_out(order: str) -> None:
    """Of these files the first has none of the marks that the second has."""
    plain, marked = HERE / "test_conventions.py", HERE / "pipeline/test_faults.py"
    config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=order.format("alone", "old")))

    assert pytest_ignore_collect(plain, config)
    assert not pytest_ignore_collect(marked, config)


SKIPPED = """
import pytest
def test_one():
    pytest.skip("docker: there is none")
def test_other():
    pytest.skip("dockers: there is none")
"""


def test_a_skip_for_what_is_required_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", str(tmp_path)]
    env = {**os.environ, "REQUIRE": "redis,docker", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert "1 failed, 1 skipped" in done.stdout
    assert "REQUIRE: docker: there is none" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_its_secret_in_one_sentence(path: Path) -> None:
    summary = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]

    assert len(summary) > 20
    assert summary.endswith((".", ":"))


def imports(path: Path) -> list[str]:
    """The modules of this package that a module imports from, late imports included."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("helpers.")
    ]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_another_room_is_entered_by_its_public_surface(path: Path) -> None:
    own = name_of(path).split(".")[1:2]
    past = [name for name in imports(path) if name.count(".") > 1 and name.split(".")[1:2] != own]

    # what it writes inherits from there: two halves of one thing, with rooms between them
    assert [
        name
        for name in past
        if path.parent.name != "own" or not name.startswith("helpers.models._")
    ] == []


@pytest.mark.parametrize("stub", sorted((ROOT / "helpers").rglob("__init__.pyi")), ids=name_of)
def test_a_room_has_a_sorted_surface_and_every_name_of_it_loads(stub: Path) -> None:
    room = importlib.import_module(name_of(stub))
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.Assign)
    )

    assert sorted(names, key=natural) == names
    assert set(names) == set(room.__all__)
    assert all(hasattr(room, name) for name in names)
    assert not {path.stem for path in stub.parent.glob("*.py")} & set(names)


def natural(name: str) -> tuple[int, str]:
    """Constants first, then classes, then functions, as ruff sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def public_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name == "__init__"):
            yield node
        elif isinstance(node, ast.ClassDef) and node.name[0] != "_":
            yield from public_functions(node.body)


def annotations(function: ast.FunctionDef) -> Iterator[ast.expr]:
    given = function.args
    every = (*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg)
    for found in (*(each.annotation for each in every if each), function.returns):
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            yield ast.parse(found.value, mode="eval").body
        elif found:
            yield found


def test_public_signatures_hardly_say_any() -> None:
    """Counted are annotations with `Any` of public functions and methods; it was 235 once."""
    found = [
        f"{name_of(path)}.{function.name}"
        for path in MODULES
        if path.name not in ("adapter.py", "numpy2.py")  # run inside Triton
        for function in public_functions(ast.parse(path.read_text()).body)
        for annotation in annotations(function)
        if any(isinstance(each, ast.Name) and each.id == "Any" for each in ast.walk(annotation))
    ]

    assert len(found) < 40, found


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


def heavy_imports(names: list[str]) -> dict[str, list[str]]:
    """Import modules one after the other in a fresh process: which loads a framework first."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS, json.dumps(names), json.dumps(HEAVY)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_importing_any_module_loads_no_framework() -> None:
    inside_triton, insides = ("adapter.py", "numpy2.py"), re.compile(r"helpers\.models\.\w+\.")
    names = [name_of(path) for path in MODULES if path.name not in inside_triton]
    outside = [name for name in names if not insides.match(name)]

    assert {"helpers.formats.onnx", "helpers.models.resnet50", "helpers.report.figures"} < set(
        outside
    )
    assert heavy_imports(outside) == {}


@pytest.mark.parametrize("model", models.names())
@pytest.mark.slow
def test_the_inside_of_a_model_loads_its_own_framework_at_most(model: str) -> None:
    own = [path for path in MODULES if path.parent.name == model]
    names = [name_of(path) for path in sorted({*own, *models.sources(model)})]

    loaded = {each for found in heavy_imports(names).values() for each in found}

    framework = models.get(model).FRAMEWORK
    brought = {"pandas", "matplotlib"} if framework == "tensorflow" else set()  # by Keras
    assert loaded <= {framework, *brought}
    data = [name for name in names if name.endswith(".data")]
    assert data
    assert heavy_imports(data) == {}  # the server's stages read samples only


def test_no_committed_file_holds_a_path_of_someones_machine() -> None:
    found = []
    for path in committed():
        content = path.read_bytes()
        if b"\0" not in content[:8000]:
            lines = content.decode(errors="replace").splitlines()
            found += [f"{path.relative_to(ROOT)}: {line}" for line in lines if MACHINE.search(line)]

    assert found == []


def test_the_search_for_such_paths_finds_them() -> None:
    slash = "/"
    places = [f"{slash}root{slash}a", f'"{slash}home{slash}me', f"in {slash}work: x"]

    assert all(MACHINE.search(place) for place in places)
    assert not MACHINE.search("https://example.org/home/page")
    assert not MACHINE.search("notebooks/work/x")
