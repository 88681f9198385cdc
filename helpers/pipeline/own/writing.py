"""The files of a new model: its package, its notebooks and its parameter file."""

import json
import os
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

import yaml

from helpers import formats
from helpers.errors import DeviceError
from helpers.machine import target_name, this_gpu
from helpers.models._own import TensorSpec
from helpers.models._rounding import tolerances_for
from helpers.pipeline.own import rounding
from helpers.pipeline.own.draft import InspectedModel
from helpers.pipeline.own.options import Option
from helpers.pipeline.own.origin import NOUNS
from helpers.store import ROOT

PROSE = Path(__file__).with_name("prose")
SHOWN_BY = "resnet50"  # the model whose notebooks' code is copied
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "report", "tune")
SERVED = STAGES[2:6]  # the stages of a model that is already in a model repository
DISPLAYS = {"show_images": "show_samples", "show_predictions": "show_answers"}
RESOLVE = re.compile(r"config = resolve\(([^)]*)\)")
LONGEST = 100  # characters of a line of code
INDENT = 4
WIDTH = 160  # characters of a line of prose
MOST = 6  # tensors that a sentence names
FRAMEWORKS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "tensorflow": "TensorFlow"}
FRAMEWORKS |= {"triton": "the same model, with one client"}
FILES = {
    "onnx": "the ONNX file",
    "savedmodel": "the SavedModel's folder",
    "keras": "the Keras file",
    "torchscript": "the TorchScript file",
    "exported": "the exported program",
    "function": "the file of the module whose function builds it",
    "repository": "the model's folder in its repository",
}
fill = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
PACKAGE = Template('''\
"""The model `$title`: `model.yaml` describes it."""

from helpers.models._own import Own

COMPANIONS = ("model.yaml",)  # a change of it is a change here
MODEL = Own.load(__file__)
''')
PACKAGE_WITH_METRIC = Template('''\
"""The model `$title`: `model.yaml` describes it."""

import numpy as np

from helpers.models import Arrays
from helpers.models._own import Array, Own, metrics

COMPANIONS = ("model.yaml",)  # a change of it is a change here


class Scored(Own):
    def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:
        """Score the outputs of all samples by their labels: write here what you mean."""
        first = next(iter(outputs.values()))
        return {"$metric": float(np.mean(metrics.classes(first) == labels))}


MODEL = Scored.load(__file__)
''')
DESCRIPTION = Template("""\
# $title, from $noun, written by `triton-notebooks new`: edit it.
# `Description` in helpers/models/_own says what each field means.
$fields""")


@dataclass(frozen=True)
class Files:
    """The user's files of samples and labels."""

    samples: Path | None = None
    labels: Path | None = None


@dataclass(frozen=True)
class Scored:
    """How a model is scored."""

    metric: str = ""  # its name; empty: the match rate
    is_own: bool = False  # whether the package has a function of that name
    better: str = "higher"


def package(title: str, model: InspectedModel, scored: Scored) -> dict[str, str]:
    """Write the files of a model's package: its description and the module that loads it."""
    terms, count = model.terms
    narrow = tolerances_for(
        [max(1, round(terms / count))] * count
    )  # only their count and total matter
    wide = narrow | rounding.widen_tolerances(narrow, model.effects, model.apart)
    tolerances = {
        precision: tuple(float(f"{bound:.1e}") for bound in pair)
        for precision, pair in wide.items()
    }
    metrics = {scored.metric: scored.better} if scored.metric else {}
    described = model.described(metrics=metrics, tolerances=tolerances).description
    fields = described.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=100)
    names = {"title": title, "noun": NOUNS[model.origin.kind], "metric": scored.metric}
    template = PACKAGE_WITH_METRIC if scored.is_own else PACKAGE
    return {
        "__init__.py": template.substitute(names),
        "model.yaml": DESCRIPTION.substitute(names, fields=text),
    }


def spelled(path: Path) -> str:
    """Return a path as a parameter file has it: from the project's root."""
    return os.path.relpath(path.resolve(), ROOT)


def parameter_file(
    title: str,
    model: InspectedModel,
    options: Sequence[Option],
    files: Files,
    calibration: int,
    device: str,
) -> str:
    """Write the parameter file of a model, with short measurements."""
    first = options[0].fields
    most = model.origin.most or (8 if model.description.is_batched else 1)
    batched = most >= 4
    defaults: dict[str, object] = {
        "dataset": spelled(files.samples) if files.samples else "generated",
        "checkpoint": spelled(model.origin.path),
    }
    if files.labels:
        defaults["labels"] = spelled(files.labels)
    if model.dimensions:
        defaults["dimensions"] = model.dimensions
    defaults |= {
        "export_format": first["export_format"],
        "export_precision": first["export_precision"],
        "max_batch_size": most,
        **({"preferred_batch_sizes": [4, 8]} if most >= 8 and not model.origin.most else {}),
        "max_queue_delay_us": 1000,
        "batch_sizes": [4] if batched else [1],
        "concurrency": [4],
        "distinct_rows": 16,
        "request_count": 20,
        "pairs": 3,
        "margin_of_error": 0.1,
        "measurement_seconds": 5,
        "rates": [],
    }
    if any(option.fields["precision"] == "int8" for option in options):
        defaults["calibration_samples"] = calibration
    kind = "docker" if model.origin.backend not in ("", "python") else "embedded"
    lines = [
        f"# {title}, from {NOUNS[model.origin.kind]}, written by `triton-notebooks new`: edit it.",
        "# Paths begin at the project's root; params/cpu-full.yaml shows what else can be done.",
        f"gpu: {_device_name(device)} ({title})",
        f"device: {device}",
        f'server: {{kind: {kind}, release: "24.10"}}',
        "models:",
        f"  {title}:",
        "    defaults:",
    ]
    lines += [f"      {name}: {_flow(value)}" for name, value in defaults.items()]
    lines.append("    experiments:")
    for index, option in enumerate(options):
        changes: dict[str, object] = {
            name: value for name, value in option.fields.items() if defaults.get(name) != value
        }
        if not index:
            changes |= {"batch_sizes": [1, 4]} if batched else {}
            changes |= {"concurrency": [1, 4], "rates": [0.5]}
        lines.append(f"      {option.name}: {_flow(changes)}")
    return "\n".join(lines) + "\n"


def _device_name(device: str) -> str:
    """Return the name that `doctor` and workers give this machine's GPU."""
    if device == "gpu":
        with suppress(DeviceError):  # the files may be written on a machine without a GPU
            return target_name(this_gpu().name)
    return device.upper()


def _flow(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def notebooks(
    title: str, model: InspectedModel, options: Sequence[Option], files: Files, metric: str
) -> dict[str, str]:
    """Write the notebook of each stage from the shared code and the templates in `prose`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PROSE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tensors": tensors, "json": json.dumps}
    kind = model.origin.kind
    environment.globals |= {
        "title": title,
        "model": model.description,
        "dimensions": model.dimensions,
        "terms": model.terms,
        "kind": kind,
        "backend": model.origin.backend,
        "source": NOUNS[kind],
        "file": f"`{model.origin.function or model.origin.path.name}`",
        "file_words": FILES[kind],
        "framework": FRAMEWORKS[model.origin.framework],
        "options": options,
        "samples": files.samples and files.samples.name,
        "scored_by": metric,
        **_overrides(options, files),
    }
    stages = SERVED if model.origin.backend else STAGES
    texts = {stage: environment.get_template(f"{stage}.md.j2").render() for stage in stages}
    return {stage: _notebook(title, stage, text) for stage, text in texts.items()}


def _overrides(options: Sequence[Option], files: Files) -> dict[str, object]:
    """Choose the alternatives that the notebooks suggest, such as another format."""
    exports = list(dict.fromkeys(option.fields["export_format"] for option in options))
    export = {"dataset": "generated" if files.samples else "samples.npz"}
    if len(exports) > 1:
        export = {"export_format": exports[1], "format": exports[1]}
    shown = next((option for option in options if option.changes_precision), options[0]).fields
    others = [option.fields for option in options if option.fields != shown]
    others.sort(key=lambda fields: fields["format"] == shown["format"])  # another format first
    other = others[0] if others else shown
    return {
        "exports": exports,
        "other_export": export,
        "other_file": {name: value for name, value in other.items() if shown[name] != value},
        "other_runtime": formats.get(other["format"]).DISPLAY_NAMES[0],
    }


def tensors(axes: Sequence[TensorSpec]) -> str:
    """List tensors with their types and shapes."""
    named = [
        f"`{tensor.name}` ({tensor.dtype}, {' x '.join(map(str, tensor.shape)) or 'one number'})"
        for tensor in axes[:MOST]
    ]
    if len(axes) > MOST:
        named.append(f"{len(axes) - MOST} more")
    return " and ".join([", ".join(named[:-1])] * (len(named) > 1) + named[-1:])


def _notebook(title: str, stage: str, prose: str) -> str:
    """Join prose and the code cells that it names to a notebook."""
    notebook = json.loads((ROOT / f"notebooks/{SHOWN_BY}/{stage}.ipynb").read_text())
    code = {cell["id"]: cell for cell in notebook["cells"] if cell["cell_type"] == "code"}
    cells = []
    for index, part in enumerate(re.split(r"^--- (\S+)\n", prose, flags=re.MULTILINE)):
        if index % 2:
            cell = code.pop(part)
            cells.append(cell | {"source": _code(title, "".join(cell["source"]))})
        elif part.strip():
            text = {"cell_type": "markdown", "id": f"prose-{index // 2:02}", "metadata": {}}
            cells.append(text | {"source": _wrapped(part)})
    assert not code, f"the prose of {stage} leaves out {list(code)}"
    for cell in cells:
        cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _wrapped(part: str) -> str:
    """Wrap the paragraphs and list items of Markdown again, but no code blocks."""
    blocks = []
    for block in re.split(r"\n{2,}", part.strip()):
        if block.startswith("```"):
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- )", block)
        indent = "  " if block.startswith("- ") else ""
        blocks.append("\n".join(fill(item, WIDTH, subsequent_indent=indent) for item in items))
    return "\n\n".join(blocks)


def _code(title: str, text: str) -> str:
    text = text.replace(f"helpers.models.{SHOWN_BY}.display", "helpers.models._own.display")
    for name, replacement in DISPLAYS.items():
        text = text.replace(name, replacement)
    return RESOLVE.sub(_resolve, text.replace(SHOWN_BY, title))


def _resolve(match: re.Match[str]) -> str:
    """Break the call of `resolve` into lines as ruff does: its length depends on the model."""
    arguments = match[1].strip().rstrip(",").split(",")
    arguments = [argument.strip() for argument in arguments]
    for line in (
        f"config = resolve({', '.join(arguments)})",
        f"config = resolve(\n    {', '.join(arguments)}\n)",
    ):
        if max(map(len, line.splitlines())) <= LONGEST:
            return line
    return f"config = resolve(\n    {f',{chr(10)}    '.join(arguments)},\n)"
