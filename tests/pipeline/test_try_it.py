"""What the notebooks of exporting and converting invite to try runs, and shows what they promise.

Each variation is run on the model's small generated set, cell by cell in this process.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from helpers import models
from helpers.config import notebook_file, resolve, results_folder
from helpers.results import Result, read
from helpers.store import OUTPUTS_VARIABLE

HEADING = "## Try it\n"
OVERRIDES = re.compile(r"`overrides = (\{[^`]*\})`")
STAGES = ("export", "convert")
SMALL: dict[str, Any] = {"dataset": "generated-small"}
FEW = {"resnet50": 16, "bert": 16, "tft": 16}  # samples that decide scales, where few will do


def cells(model: str, stage: str) -> list[Any]:
    return list(nbformat.read(notebook_file(model, stage), as_version=4).cells)  # type: ignore[no-untyped-call]


def invited(model: str, stage: str) -> list[dict[str, Any]]:
    """What the last cell of a notebook invites to try."""
    last = cells(model, stage)[-1]
    return [ast.literal_eval(found) for found in OVERRIDES.findall(last.source)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("model", models.names())
def test_it_stands_at_the_end_and_nowhere_else(model: str, stage: str) -> None:
    *others, last = cells(model, stage)

    assert last.cell_type == "markdown"
    assert last.source.startswith(HEADING)
    assert 1 <= len(invited(model, stage)) <= 2
    assert not any("Try it" in cell.source or OVERRIDES.search(cell.source) for cell in others)
    for overrides in invited(model, stage):
        assert resolve(model, stage, overrides=overrides).overrides == overrides


def run(model: str, stage: str, overrides: dict[str, Any]) -> Result:
    """Run a notebook's cells with these overrides; give its result."""
    space: dict[str, Any] = {"display": lambda *_: None, "__name__": "__main__"}
    few = {"calibration_samples": FEW.get(model, 2_000)}
    given = SMALL | overrides | (few if overrides.get("precision") == "int8" else {})
    for place, cell in enumerate(cells(model, stage)):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{model}/{stage}, cell {place}", "exec"), space)
        if "parameters" in cell.metadata.get("tags", []):
            space["overrides"] = given
    config = resolve(model, stage, overrides=given)
    found = read(results_folder(config) / f"{stage}.json")
    assert found
    return found


def kinds(result: Result) -> set[str]:
    """The kinds of operators in what a stage made."""
    assert result.artefact
    operators = result.artefact.facts["operators"]
    assert isinstance(operators, dict)
    return set(operators)


def size(result: Result) -> float:
    assert result.artefact
    return result.artefact.size_mb


Check = Callable[[Result, Result], bool]  # the experiment's own result, and the variation's
PROMISED: dict[tuple[str, str], Check] = {
    ("export_format", "ts-trace"): lambda _, made: all(
        kind.startswith(("aten::", "prim::")) for kind in kinds(made)
    ),
    ("export_format", "ts-script"): lambda _, made: all(
        kind.startswith(("aten::", "prim::")) for kind in kinds(made)
    ),
    ("precision", "int8"): lambda own, made: (
        {"QuantizeLinear", "DequantizeLinear"} <= kinds(made) and size(made) < size(own)
    ),
    ("precision", "bf16"): lambda own, made: abs(size(made) / size(own) - 1) < 0.1,
    ("format", "onnx"): lambda _, made: bool({"MatMul", "Gemm"} & kinds(made)),
    ("dataset", "generated-small"): lambda own, made: kinds(own) == kinds(made),
    ("table_precision", "int8"): lambda own, made: (
        kinds(own) == kinds(made) and size(made) < size(own)
    ),
    ("lookup", "hps"): lambda _, made: any(
        name.startswith("hps/")
        for name in made.artefact.files  # type: ignore[union-attr]
    ),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder, so that a model is fitted once."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OUTPUTS_VARIABLE, str(folder))
        yield folder


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", models.names())
def test_each_variation_runs_and_shows_what_is_promised(model: str, outputs: Path) -> None:
    own = {stage: run(model, stage, {}) for stage in STAGES}

    for stage in STAGES:
        for overrides in invited(model, stage):
            made = run(model, stage, overrides)

            assert (made.state, "~" in made.experiment) == ("done", True)
            for change in overrides.items():
                if change in PROMISED:
                    assert PROMISED[change](own[stage], made), f"{model} {stage}: {overrides}"
            checked = [change for change in overrides.items() if change in PROMISED]
            assert checked, f"{overrides} promises nothing that is known here"
