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
from helpers.models._own import Axes
from helpers.models._rounding import bounds
from helpers.own import rounding
from helpers.own.draft import Draft
from helpers.own.options import Option
from helpers.own.origin import NOUNS
from helpers.store import ROOT

PROSE = Path(__file__).with_name("prose")
SHOWN_BY = "resnet50"  # whose notebooks' code the new ones have
STAGES = ("export", "convert", "deploy", "perf_offline", "perf_online", "report", "tune")
SERVED = STAGES[2:6]  # of a model that is in a repository already
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
"""The model `$title`, from $noun.

Written by `triton-notebooks new`, to be edited: `helpers/models/_own` says what each name means.
"""

$imports


class $name(Own):
$body$score


MODEL = $name()
''')
IMPORTS = """\
from helpers.models._own import Axes, Own
from helpers.models._rounding import bounds
"""
OF_A_METRIC = "from typing import ClassVar\n\n"
OF_A_FUNCTION = """\
import numpy as np

from helpers.models import Arrays
from helpers.models._own import Array, Axes, Own, metrics
from helpers.models._rounding import bounds
"""
SCORE = Template('''

    def score(self, outputs: Arrays, labels: Array) -> dict[str, float]:
        """Score the outputs of all samples by their labels: write here what you mean."""
        first = next(iter(outputs.values()))
        return {"$name": float(np.mean(metrics.classes(first) == labels))}''')


@dataclass(frozen=True)
class Files:
    """The user's files of samples and labels."""

    samples: Path | None = None
    labels: Path | None = None


@dataclass(frozen=True)
class Scored:
    """How a model is scored."""

    metric: str = ""  # its name; empty: by agreement
    is_own: bool = False  # whether the package has a function of that name
    better: str = "higher"


def package(title: str, found: Draft, scored: Scored) -> str:
    """Write the package of a model: one class."""
    terms, count = found.terms
    lines = [f'TITLE = "{title}"', f'FRAMEWORK = "{found.origin.framework}"']
    lines.append(f'SOURCE = "{found.origin.kind}"')
    if found.origin.function:
        lines.append(f'FUNCTION = "{found.origin.function}"')
    lines += [*_axes("INPUTS", found.inputs), *_axes("OUTPUTS", found.outputs)]
    if found.origin.backend:
        lines.append(f'BACKEND = "{found.origin.backend}"')
    if not found.has_batch:
        lines.append("HAS_BATCH = False")
    if not found.is_batched:
        lines.append("IS_BATCHED = False")
    if not found.takes_zeros:
        lines.append("TAKES_ZEROS = False")
    if found.scalars:
        names = ", ".join(f'"{name}"' for name in found.scalars)
        lines.append(f"SCALARS = ({names}{',' * (len(found.scalars) == 1)})")
    if found.is_plain:
        lines.append("IS_PLAIN = True")
    if found.decision != "values":
        lines.append(f'DECISION = "{found.decision}"  # of the first output')
    if name := scored.metric:
        lines.append(f'METRICS: ClassVar = {{"{name}": "{scored.better}"}}')
    sums = [max(1, round(terms / count))] * count  # of which only number and total decide
    narrow, pairs = bounds(sums), []
    for precision, pair in rounding.widened(narrow, found.effects, found.apart).items():
        if any(wide > bound for wide, bound in zip(pair, narrow[precision], strict=True)):
            pairs.append(f'"{precision}": ({rounded(pair[0])}, {rounded(pair[1])})')
    line = f"BOUNDS = bounds([{sums[0]}] * {count})"
    seen = f"{line} | {{{', '.join(pairs)}}}" if pairs else line
    lines += [seen] if len(seen) <= LONGEST - INDENT else _broken(f"{line} | {{", pairs, "}")
    imports = OF_A_FUNCTION if scored.is_own else IMPORTS
    return PACKAGE.substitute(
        title=title,
        noun=NOUNS[found.origin.kind],
        imports=(OF_A_METRIC if scored.metric else "") + imports.rstrip(),
        name="".join(part.capitalize() for part in title.split("_")),
        body="\n".join(f"    {line}" for line in lines),
        score=SCORE.substitute(name=scored.metric) if scored.is_own else "",
    )


def rounded(bound: float) -> str:
    """Write a bound with two digits, and its exponent without a plus, as ruff does."""
    return f"{bound:.1e}".replace("e+", "e")


def _axes(name: str, axes: Sequence[Axes]) -> list[str]:
    said = []
    for each in axes:
        shape = ", ".join(json.dumps(size) for size in each.shape)
        shape = f"({shape},)" if len(each.shape) == 1 else f"({shape})"
        below = f", below={each.below}" if each.below != Axes.below else ""
        said.append(f'Axes("{each.name}", "{each.dtype}", {shape}{below})')
    line = f"{name} = ({', '.join(said)}{',' * (len(said) == 1)})"
    return [line] if len(line) <= LONGEST - INDENT else _broken(f"{name} = (", said, ")")


def _broken(first: str, parts: Sequence[str], last: str) -> list[str]:
    """Give each part a line of its own, as ruff does where all of them are too long for one."""
    return [first, *(f"    {each}," for each in parts), last]


def spelled(path: Path) -> str:
    """Spell a path for a parameter file: from the project's root."""
    return os.path.relpath(path.resolve(), ROOT)


def parameter_file(
    title: str,
    found: Draft,
    options: Sequence[Option],
    files: Files,
    calibration: int,
    device: str,
) -> str:
    """Write the parameter file of a model: real, but quick."""
    first = options[0].fields
    most = found.origin.most or (8 if found.is_batched else 1)
    batched = most >= 4
    defaults: dict[str, object] = {
        "dataset": spelled(files.samples) if files.samples else "generated",
        "checkpoint": spelled(found.origin.path),
    }
    if files.labels:
        defaults["labels"] = spelled(files.labels)
    if found.dimensions:
        defaults["dimensions"] = found.dimensions
    defaults |= {
        "export_format": first["export_format"],
        "export_precision": first["export_precision"],
        "max_batch_size": most,
        **({"preferred_batch_sizes": [4, 8]} if most >= 8 and not found.origin.most else {}),
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
    if any(each.fields["precision"] == "int8" for each in options):
        defaults["calibration_samples"] = calibration
    kind = "docker" if found.origin.backend not in ("", "python") else "embedded"
    lines = [
        f"# {title}, from {NOUNS[found.origin.kind]}, written by `triton-notebooks new`: edit it.",
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
    for place, option in enumerate(options):
        own: dict[str, object] = {
            name: value for name, value in option.fields.items() if defaults.get(name) != value
        }
        if not place:
            own |= {"batch_sizes": [1, 4]} if batched else {}
            own |= {"concurrency": [1, 4], "rates": [0.5]}
        lines.append(f"      {option.name}: {_flow(own)}")
    return "\n".join(lines) + "\n"


def _device_name(device: str) -> str:
    """Return the name of this machine's GPU, by which `doctor` and workers know it."""
    if device == "gpu":
        with suppress(DeviceError):  # the files can be written on a machine without one
            return target_name(this_gpu().name)
    return device.upper()


def _flow(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def notebooks(
    title: str, found: Draft, options: Sequence[Option], files: Files, metric: str
) -> dict[str, str]:
    """Write the notebook of each stage: the code of every model's, and the prose of this room."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PROSE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tensors": tensors, "json": json.dumps}
    kind = found.origin.kind
    environment.globals |= {
        "title": title,
        "model": found,
        "kind": kind,
        "backend": found.origin.backend,
        "source": NOUNS[kind],
        "file": f"`{found.origin.function or found.origin.path.name}`",
        "file_words": FILES[kind],
        "framework": FRAMEWORKS[found.origin.framework],
        "options": options,
        "samples": files.samples and files.samples.name,
        "scored_by": metric,
        **_overrides(options, files),
    }
    stages = SERVED if found.origin.backend else STAGES
    texts = {stage: environment.get_template(f"{stage}.md.j2").render() for stage in stages}
    return {stage: _notebook(title, stage, text) for stage, text in texts.items()}


def _overrides(options: Sequence[Option], files: Files) -> dict[str, object]:
    """Choose what the notebooks suggest to try: other files of the model where there are any."""
    exports = list(dict.fromkeys(each.fields["export_format"] for each in options))
    export = {"dataset": "generated" if files.samples else "samples.npz"}
    if len(exports) > 1:
        export = {"export_format": exports[1], "format": exports[1]}
    shown = next((each for each in options if each.changes_precision), options[0]).fields
    others = [each.fields for each in options if each.fields != shown]
    others.sort(key=lambda fields: fields["format"] == shown["format"])  # another format first
    other = others[0] if others else shown
    return {
        "exports": exports,
        "other_export": export,
        "other_file": {name: value for name, value in other.items() if shown[name] != value},
        "other_runtime": formats.get(other["format"]).SHOWN[0],
    }


def tensors(axes: Sequence[Axes]) -> str:
    """Name tensors with their types and shapes."""
    named = [
        f"`{each.name}` ({each.dtype}, {' x '.join(map(str, each.shape)) or 'one number'})"
        for each in axes[:MOST]
    ]
    if len(axes) > MOST:
        named.append(f"{len(axes) - MOST} more")
    return " and ".join([", ".join(named[:-1])] * (len(named) > 1) + named[-1:])


def _notebook(title: str, stage: str, prose: str) -> str:
    """Put prose between the cells of code that it names."""
    known = json.loads((ROOT / f"notebooks/{SHOWN_BY}/{stage}.ipynb").read_text())
    code = {cell["id"]: cell for cell in known["cells"] if cell["cell_type"] == "code"}
    cells = []
    for place, part in enumerate(re.split(r"^--- (\S+)\n", prose, flags=re.MULTILINE)):
        if place % 2:
            cell = code.pop(part)
            cells.append(cell | {"source": _code(title, "".join(cell["source"]))})
        elif part.strip():
            text = {"cell_type": "markdown", "id": f"prose-{place // 2:02}", "metadata": {}}
            cells.append(text | {"source": _wrapped(part)})
    assert not code, f"the prose of {stage} leaves out {list(code)}"
    for cell in cells:
        cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(known | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _wrapped(part: str) -> str:
    """Wrap the paragraphs and items of a text in Markdown again; a drawing stays as it is."""
    blocks = []
    for block in re.split(r"\n{2,}", part.strip()):
        if block.startswith("```"):
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- )", block)
        indent = "  " if block.startswith("- ") else ""
        blocks.append("\n".join(fill(each, WIDTH, subsequent_indent=indent) for each in items))
    return "\n\n".join(blocks)


def _code(title: str, text: str) -> str:
    text = text.replace(f"helpers.models.{SHOWN_BY}.display", "helpers.models._own.display")
    for known, own in DISPLAYS.items():
        text = text.replace(known, own)
    return RESOLVE.sub(_resolve, text.replace(SHOWN_BY, title))


def _resolve(found: re.Match[str]) -> str:
    """Break the call that depends on the length of the model's name as ruff does."""
    given = found[1].strip().rstrip(",").split(",")
    words = [each.strip() for each in given]
    for line in (
        f"config = resolve({', '.join(words)})",
        f"config = resolve(\n    {', '.join(words)}\n)",
    ):
        if max(map(len, line.splitlines())) <= LONGEST:
            return line
    return f"config = resolve(\n    {f',{chr(10)}    '.join(words)},\n)"
