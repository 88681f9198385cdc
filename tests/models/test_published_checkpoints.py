"""Checkpoints under NVIDIA's names, given by a parameter file, go through the batch command."""

import json

import pytest
import torch
import yaml

from helpers.models.bert.network import QuestionAnswering
from helpers.results import read
from tests.conftest import HERE

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def tensors(table):
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


def parameters(project, model, **fields):
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


def export(project, name):
    """Run the export alone: exit code, what was said, and the result."""
    answer = project.run("run", name, "--stage", "export")
    (path,) = (project.root / "outputs/mine").glob("*/mine/export.json")
    result = read(path)
    assert result
    return answer.code, answer.output, result


def tft(variant):
    mask = torch.full((192, 192), -torch.inf).triu(1)[None]
    return tensors(f"tft_{variant}") | {"TFTpart2.attention._mask": mask}


def test_tft_loads_completely_at_its_own_cardinality_and_exports(fresh):
    saved = {"args": {}, "config": {}, "model": tft("traffic")}
    torch.save(saved, fresh.root / "checkpoint.pt")
    fields = {"export_format": "ts-trace", "format": "ts-trace", "dataset": "generated-small"}
    name = parameters(fresh, "tft", variant="traffic", **fields)

    code, output, result = export(fresh, name)

    assert code == 0, output
    assert not result.checks[0].failure


QUESTIONS = [
    ("Who wrote it?", "Ada Byron"),
    ("When was it written?", "1843"),
    ("What is it about?", "an engine"),
]
PARAGRAPH = "In 1843 Ada Byron wrote notes about an engine that was never built."


def write_squad(folder):
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


def test_bert_loads_completely_and_exports(fresh):
    """The small one: `test_bert` places each tensor of NVIDIA's large checkpoint."""
    torch.manual_seed(0)
    state = {
        f"module.{name}": each for name, each in QuestionAnswering("small").state_dict().items()
    }
    torch.save({"model": state}, fresh.root / "checkpoint.pt")
    write_squad(fresh.root / "squad")
    name = parameters(
        fresh,
        "bert",
        variant="small",
        max_seq_length=128,
        dataset=str(fresh.root / "squad"),
        export_format="ts-trace",
        format="ts-trace",
    )

    code, output, result = export(fresh, name)

    assert code == 0, output
    assert not result.checks[0].failure
    assert result.artifact
    assert result.artifact.size_mb > 13
