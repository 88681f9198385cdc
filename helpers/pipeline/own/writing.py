"""The files of a new model: its package, its notebooks and its parameter file."""

import json
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import yaml

from helpers import formats
from helpers.config import stages
from helpers.errors import DeviceError
from helpers.machine import target_name, this_gpu
from helpers.models._own import TensorSpec, metrics
from helpers.models._own.data import spell
from helpers.models._rounding import tolerances_for
from helpers.pipeline.own import rounding
from helpers.pipeline.own.draft import InspectedModel
from helpers.pipeline.own.inputs import NewOptions
from helpers.pipeline.own.options import Option
from helpers.pipeline.own.origin import NOUNS
from helpers.report import escaped
from helpers.store import ROOT

PROSE = Path(__file__).parent / "prose/notebooks.md.j2"
SHOWN_BY = "resnet50"  # the model whose notebooks are copied
SERVED = ("deploy", "perf_offline", "perf_online", "report")  # of a model in a model repository
DISPLAYS = {"show_images": "show_samples", "show_predictions": "show_answers"}
RESOLVE = re.compile(r"config = resolve\(([^)]*)\)")
LONGEST = 100  # characters of a line of code
WIDTH = 160  # characters of a line of prose
MOST = 6  # tensors that a sentence names
FRAMEWORKS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "tensorflow": "TensorFlow"}
FRAMEWORKS |= {"triton": "the same model, with one client"}
REST = "..."  # in this prose: the paragraphs that are not replaced
fill = partial(textwrap.fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
PACKAGE = Template('''\
"""The model `$title`: `model.yaml` describes it."""

from helpers.models._own import Own

COMPANIONS = ($companions)  # a change of one is a change here
MODEL = Own.load(__file__)
''')
PACKAGE_WITH_METRIC = Template('''\
"""The model `$title`: `model.yaml` describes it."""

import numpy as np

from helpers.models import Arrays
from helpers.models._own import Array, Own, metrics

COMPANIONS = ($companions)  # a change of one is a change here


class Scored(Own):
    def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:
        """Score the outputs of all samples by their labels: write here what you mean."""
        first = next(iter(outputs.values()))
        return {"$metric": float(np.mean(metrics.classes(first) == labels))}


MODEL = Scored.load(__file__)
''')


class NewModel(NamedTuple):
    """What the files of a model are written from."""

    title: str
    inspected: InspectedModel
    options: Sequence[Option]
    left_out: Mapping[str, str]  # a format or an experiment -> why
    choices: NewOptions
    metric: str  # may be one that the user has to write; empty: the match rate
    calibration_count: int  # samples for int8

    @property
    def header(self) -> str:
        noun = NOUNS[self.inspected.origin.kind]
        return f"# {self.title}, from {noun}, written by `triton-notebooks new`: edit it."


def package(model: NewModel) -> dict[str, str]:
    """Write the files of a model's package: its description and the module that loads it."""
    inspected, metric = model.inspected, model.metric
    terms, count = inspected.terms
    # only their count and total matter
    narrow = tolerances_for([max(1, round(terms / count))] * count)
    wide = narrow | rounding.widen_tolerances(narrow, inspected.effects, inspected.apart)
    tolerances = {key: tuple(float(f"{x:.1e}") for x in pair) for key, pair in wide.items()}
    scores = {metric: "lower" if metric in metrics.LOWER else "higher"} if metric else {}
    described = inspected.described(metrics=scores, tolerances=tolerances).description
    fields = described.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, width=100)
    where = "# `Description` in helpers/models/_own says what each field means."
    template = PACKAGE_WITH_METRIC if metric and metric not in metrics.NAMES else PACKAGE
    companions = '"model.yaml", "preprocessing"' if described.preprocessing else '"model.yaml",'
    names = {"title": model.title, "metric": metric, "companions": companions}
    return {
        "__init__.py": template.substitute(names),
        "model.yaml": f"{model.header}\n{where}\n{text}",
    }


def spelled(path: Path) -> str:
    """Return a path as a parameter file has it: from the project's root."""
    return os.path.relpath(path.resolve(), ROOT)


def parameter_file(model: NewModel) -> str:
    """Write the parameter file of a model, with short measurements."""
    title, inspected, options, left_out, choices, *_ = model
    origin = inspected.origin
    most = origin.most or (8 if inspected.description.is_batched else 1)
    batched = most >= 4
    preferred = [4, 8] if most >= 8 and not origin.most else []
    defaults: dict[str, Any] = {
        "dataset": spelled(choices.samples) if choices.samples else "generated",
        "checkpoint": spelled(origin.path),
        **({"labels": spelled(choices.labels)} if choices.labels else {}),
        **({"dimensions": inspected.dimensions} if inspected.dimensions else {}),
        "export_format": options[0].fields["export_format"],
        "export_precision": options[0].fields["export_precision"],
        "max_batch_size": most,
        **({"preferred_batch_sizes": preferred} if preferred else {}),
        "max_queue_delay_us": 1000,
        "batch_sizes": [4] if batched else [1],
        "concurrency": [4],
        "distinct_rows": 16,
        "request_count": 20,
        "pairs": 3,
        "margin_of_error": 0.1,
        "measurement_seconds": 5,
        "compare_seconds": 30,
        "rates": [],
    }
    if any(option.fields["precision"] == "int8" for option in options):
        defaults["calibration_samples"] = model.calibration_count
    kind = "docker" if origin.backend not in ("", "python") else "embedded"
    lines = [
        model.header,
        "# Paths begin at the project's root; params/cpu-full.yaml shows what else can be done.",
        f"gpu: {_device_name(choices.device)} ({title})",
        f"device: {choices.device}",
        f'server: {{kind: {kind}, release: "24.10"}}',
        "models:",
        f"  {title}:",
        "    defaults:",
    ]
    lines += [f"      {name}: {_flow(value)}" for name, value in defaults.items()]
    lines.append("    experiments:")
    first: dict[str, Any] = {"batch_sizes": [1, 4]} if batched else {}
    first |= {"concurrency": [1, 4], "rates": [0.5]}
    for option in options:
        changes = {key: value for key, value in option.fields.items() if defaults.get(key) != value}
        lines.append(f"      {option.name}: {_flow(changes | first)}")
        first = {}
    lines += [f"      # left out: {name}: {reason}" for name, reason in left_out.items()]
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


def notebooks(model: NewModel) -> dict[str, str]:
    """Write the notebook of each stage from those of `SHOWN_BY` and `PROSE`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"tensors": tensors, "json": json.dumps, "shown": escaped}
    inspected, origin, samples = model.inspected, model.inspected.origin, model.choices.samples
    rendered = environment.from_string(PROSE.read_text()).render(
        title=model.title,
        model=inspected.description,
        dimensions=inspected.dimensions,
        terms=inspected.terms,
        kind=origin.kind,
        backend=origin.backend,
        source=NOUNS[origin.kind],
        file=f"`{origin.function or origin.path.name}`",
        framework=FRAMEWORKS[origin.framework],
        options=model.options,
        left_out=model.left_out,
        samples=samples and samples.name,
        scored_by=model.metric,
        **_overrides(model),
    )
    _, *sections = re.split(r"^--- (\S+)\n", rendered, flags=re.MULTILINE)
    prose = dict(zip(sections[::2], sections[1::2], strict=True))
    served = SERVED if origin.backend else stages(SHOWN_BY)
    return {stage: _notebook(model.title, stage, prose) for stage in served}


def _overrides(model: NewModel) -> dict[str, object]:
    """Choose the alternatives that the notebooks suggest, such as another format."""
    options, choices = model.options, model.choices
    exports = list(dict.fromkeys(option.fields["export_format"] for option in options))
    may_be_drawn = choices.samples and not choices.before
    export = {"dataset": "generated" if may_be_drawn else "samples.npz"}
    if len(exports) > 1:
        export = {"export_format": exports[1], "format": exports[1]}
    every = [option.fields for option in options]
    # `convert` has something to show where the precision changes: see `config.loading.configure`
    changed = (each for each in every if each["precision"] != each["export_precision"])
    shown = next(changed, every[0])
    others = [fields for fields in every if fields != shown]
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
    named = [f"`{each.name}` ({each.dtype}, {spell(each.shape)})" for each in axes[:MOST]]
    if len(axes) > MOST:
        named.append(f"{len(axes) - MOST} more")
    return " and ".join([", ".join(named[:-1])] * (len(named) > 1) + named[-1:])


def _notebook(title: str, stage: str, prose: Mapping[str, str]) -> str:
    """Copy a notebook of `SHOWN_BY`, with the cells that `prose` has by stage and id."""
    notebook = json.loads((ROOT / f"notebooks/{SHOWN_BY}/{stage}.ipynb").read_text())
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            text = _code(title, text)
        elif section := prose.get(f"{stage}/{cell['id']}"):
            text = _replaced(text, section)
        cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _replaced(text: str, section: str) -> str:
    """Replace paragraphs of a cell, and wrap them and list items again, but no code blocks."""
    kept, blocks = (re.split(r"\n{2,}", part.strip()) for part in (text, section))
    if REST in blocks:
        at = blocks.index(REST)
        blocks[at : at + 1] = kept[at : at + 1 + len(kept) - len(blocks)]
    for at, block in enumerate(blocks):
        if not block.startswith("```"):
            items = re.split(r"\n(?=- )", block)
            indent = "  " if block.startswith("- ") else ""
            blocks[at] = "\n".join(fill(item, subsequent_indent=indent) for item in items)
    return "\n\n".join(blocks)


def _code(title: str, text: str) -> str:
    text = text.replace(f"helpers.models.{SHOWN_BY}.display", "helpers.models._own.display")
    for name, replacement in DISPLAYS.items():
        text = text.replace(name, replacement)
    return RESOLVE.sub(_resolve, text.replace(SHOWN_BY, title))


def _resolve(match: re.Match[str]) -> str:
    """Break the call of `resolve` into lines as ruff does: its length depends on the model."""
    arguments = [argument.strip() for argument in match[1].strip().rstrip(",").split(",")]
    joined = ", ".join(arguments)
    for line in (f"config = resolve({joined})", f"config = resolve(\n    {joined}\n)"):
        if max(map(len, line.splitlines())) <= LONGEST:
            return line
    return "\n".join(["config = resolve(", *(f"    {each}," for each in arguments), ")"])
