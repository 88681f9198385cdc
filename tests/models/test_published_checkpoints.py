"""Checkpoints under NVIDIA's names, given by a parameter file, go through the batch command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from helpers.results import Result, read
from tests.conftest import HERE, Project

pytestmark = pytest.mark.slow


def tensors(table: str) -> dict[str, torch.Tensor]:
    """Random tensors with the names and shapes of a published checkpoint; the gains of layer
    normalisation lie around 1, or the output would hardly differ from sample to sample.
    """
    torch.manual_seed(0)
    lines = (HERE / "models" / "data" / f"{table}.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return {
        name: 0.02 * torch.randn(*json.loads(shape)) + name.endswith("LayerNorm.weight")
        for name, shape, _ in rows
    }


def parameters(project: Project, model: str, **fields: Any) -> str:
    """Write a parameter file with one experiment that reads `checkpoint.pt`; return its name."""
    base = {
        "checkpoint": str(project.root / "checkpoint.pt"),
        "export_precision": "fp32",
        "precision": "fp32",
        "max_batch_size": 4,
    }
    section = {model: {"experiments": {"mine": base | fields}}}
    content = {"gpu": "CPU (mine)", "device": "cpu", "models": section}
    (project.root / "params/mine.yaml").write_text(yaml.safe_dump(content))
    return "params/mine.yaml"


def export(project: Project, name: str) -> tuple[int, str, Result]:
    """Run the export alone: exit code, what was said, and the result."""
    answer = project.run("run", name, "--stage", "export")
    (path,) = (project.root / "outputs/mine").glob("*/mine/export.json")
    result = read(path)
    assert result
    return answer.code, answer.output, result


def tft(variant: str) -> dict[str, torch.Tensor]:
    mask = torch.full((192, 192), -torch.inf).triu(1)[None]
    return tensors(f"tft_{variant}") | {"TFTpart2.attention._mask": mask}


def export_tft(
    project: Project, variant: str, saved: dict[str, torch.Tensor]
) -> tuple[int, str, Result]:
    torch.save({"args": {}, "config": {}, "model": saved}, project.root / "checkpoint.pt")
    fields: dict[str, str] = {"export_format": "ts-trace", "format": "ts-trace"}
    fields["dataset"] = "generated-small"
    return export(project, parameters(project, "tft", variant=variant, **fields))


@pytest.mark.parametrize("variant", ["electricity", "traffic"])
def test_tft_loads_completely_at_its_own_cardinality_and_exports(
    fresh: Project, variant: str
) -> None:
    code, output, result = export_tft(fresh, variant, tft(variant))

    assert code == 0, output
    assert not result.rungs[0].fault


def test_a_tensor_under_another_name_fails_the_export_in_one_line(fresh: Project) -> None:
    saved = tft("electricity")
    saved["quantile_proj.bias"] = saved.pop("TFTpart2.quantile_proj.bias")

    code, output, _ = export_tft(fresh, "electricity", saved)

    assert code == 1
    assert "missing TFTpart2.quantile_proj.bias [3]; surplus quantile_proj.bias [3]" in output


QUESTIONS = [
    ("Who wrote it?", "Ada Byron"),
    ("When was it written?", "1843"),
    ("What is it about?", "an engine"),
]
PARAGRAPH = "In 1843 Ada Byron wrote notes about an engine that was never built."


def write_squad(folder: Path) -> None:
    """Write three questions in SQuAD's format, and a vocabulary of letters."""
    asked = [
        {
            "id": str(number),
            "question": question,
            "answers": [{"text": answer, "answer_start": PARAGRAPH.index(answer)}],
        }
        for number, (question, answer) in enumerate(QUESTIONS)
    ]
    paragraphs = [{"context": PARAGRAPH, "qas": asked}]
    content = {"version": "1.1", "data": [{"title": "Notes", "paragraphs": paragraphs}]}
    folder.mkdir()
    (folder / "dev-v1.1.json").write_text(json.dumps(content))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789?."
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{each}" for each in letters)]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


def test_bert_large_loads_completely_and_exports(fresh: Project) -> None:
    torch.save({"model": tensors("bert_large_qa")}, fresh.root / "checkpoint.pt")
    write_squad(fresh.root / "squad")
    name = parameters(
        fresh,
        "bert",
        variant="large",
        max_seq_length=128,  # what is loaded is the same, and computed sooner
        dataset=str(fresh.root / "squad"),
        export_format="ts-trace",
        format="ts-trace",
    )

    code, output, result = export(fresh, name)

    assert code == 0, output
    assert not result.rungs[0].fault
    assert result.artefact
    assert result.artefact.size_mb > 1300
