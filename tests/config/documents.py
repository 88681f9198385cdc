"""The generated tables of the documents: python -m tests.config.documents

A table follows a comment that names it. Its content comes from the schema of parameter files, the
formats, the models and NVIDIA's published measurements.
"""

import ast
import csv
import re
from itertools import groupby
from pathlib import Path

from helpers import formats, models
from helpers.config import parameter_file, resolve
from helpers.models._criteo.tables import DIMENSION, TABLES
from helpers.models.bert.sizes import SIZES
from helpers.models.tft.variants import VARIANTS
from helpers.models.widedeep import features
from helpers.store.paths import ROOT
from tests.pipeline.own.cases import REFUSED, TAKEN

FOLDER = ROOT / "params"
FILES = [*sorted(FOLDER.rglob("*.md")), ROOT / "notebooks/YOUR_MODEL.md"]
TABLE = re.compile(r"(<!-- table: (\w+) -->\n\n)(?:\|[^\n]*\n)*")
CLASSES = {
    "file": ("ParameterFile",),
    "server": ("Server",),
    "model": ("ModelSection",),
    "data": ("DataFields", "CheckpointField"),
    "export": ("ExportFields",),
    "convert": ("ConvertFields",),
    "deploy": ("DeployFields",),
    "load": ("LoadFields",),
    "offline": ("OfflineFields", "SharedMemoryField"),
    "online": ("ClientsField", "OnlineFields", "RequestField", "BudgetField"),
    "compare": ("CompareFields", "BoundFields"),
    "tune": ("TuneFields",),
    "other": ("Experiment",),
}
GPUS = {
    "A100": "NVIDIA DGX A100 (1x A100 80GB)",
    "V100": "NVIDIA DGX-1 (1x V100 32GB)",
    **{name: f"NVIDIA {name}" for name in ("A30", "A40", "T4")},
}


def table(head, rows):
    lines = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def listed(names):
    return ", ".join(f"`{name}`" for name in names)


def meanings():
    """The text below each field, by class."""
    tree = ast.parse(Path(parameter_file.__file__).read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            fields = found.setdefault(node.name, {})
            for field, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    fields[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def kind(schema):
    if choices := schema.get("anyOf"):
        return ", ".join(kind(each) for each in choices if each.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return listed(name for name in schema.get("enum", [schema.get("const")]) if name)
    if "$ref" in schema:
        return {"Instances": "integer ≥ 1, or `offline` and `online`"}.get(
            schema["$ref"].rpartition("/")[2], "mapping"
        )
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    bounds = " and ".join(f"{sign} {schema[key]}" for key, sign in limits.items() if key in schema)
    if schema["type"] == "array":
        return f"list of {kind(schema['items'])}" if "type" in schema["items"] else "list"
    name = {"object": "mapping", "boolean": "`true`, `false`"}.get(schema["type"], schema["type"])
    return f"{name} {bounds}".strip()


def shown(field, schema):
    if field in schema.get("required", ()):
        return "required"
    default = schema["properties"][field].get("default")
    if isinstance(default, dict) and len({*default.values()}) == 1:
        (default,) = {*default.values()}  # instances
    if default in ("", None) or isinstance(default, dict) or default == []:
        return ""
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"`{text.lower() if isinstance(default, bool) else text}`"


def fields(part):
    texts, rows = meanings(), []
    for name in CLASSES[part]:
        schema = getattr(parameter_file, name).model_json_schema()
        for field, meaning in texts[name].items():
            row = f"`{field}`", kind(schema["properties"][field]), shown(field, schema), meaning
            rows.append(row)
    return table(("field", "type", "default", "meaning"), rows)


def known_formats(_):
    rows = []
    for name in formats.names():
        found = formats.get(name)
        precisions = [", ".join(found.PRECISIONS.get(device, ())) for device in ("cpu", "gpu")]
        sources = [name for name in found.SOURCES if name != "onnxruntime"]  # of one's own model
        if name != "triton":
            rows.append((f"`{name}`", listed(sources), listed(found.RUNTIME), *precisions))
    return table(("format", "made from", "modules", "on a CPU", "on a GPU"), rows)


def tensors(model):
    config = resolve(model, "export")
    found = models.get(model)
    ensemble = found.ensembles.get("mapped")
    every = [(f"`{model}`", found.inputs(config), found.outputs(config))]
    for part in ensemble.parts(config) if ensemble else ():
        every.append((f"`{part.name}`", *(tuple(t.values()) for t in (part.inputs, part.outputs))))
    rows = [
        (name, direction, listed(each.name for each in group), *key[:1], times(key[1]), key[2])
        for name, *both in every
        for direction, found in zip(("input", "output"), both, strict=True)
        for key, group in groupby(found, lambda each: (each.dtype, each.shape, each.meaning))
    ]
    head = ("model", "", "tensor", "type", "shape", "meaning")
    return table(head, rows) if ensemble else table(head[1:], [row[1:] for row in rows])


def times(shape):
    return " × ".join(map(str, shape))


def tolerances(model):
    tolerances = models.get(model).TOLERANCES
    names = ("largest difference", "mean difference")
    rows = zip(names, zip(*tolerances.values(), strict=True), strict=True)
    return table(("", *tolerances), [(n, *(f"{x:.1e}" for x in row)) for n, row in rows])


def published(model):
    found = {}
    with (FOLDER / f"published/{model}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            backend = " with ".join(filter(None, (row["backend"], row["backend_accelerator"])))
            format_name = re.sub(r"NVIDIA Triton Ensemble .*", "ensemble", row["model_format"])
            columns = row["precision"], row["gpu"], row["scenario"]
            found.setdefault((format_name, backend), []).append(columns)
    rows = []
    for key, columns in found.items():
        precisions, gpus, scenarios = zip(*columns, strict=True)
        named = ", ".join(name for name, spelled in GPUS.items() if spelled in gpus)
        counts = (scenarios.count(each) for each in ("offline", "online"))
        rows.append((*key, ", ".join(dict.fromkeys(precisions)), named, *counts))
    return table(("format", "backend", "precision", "GPUs", "offline", "online"), rows)


def variants(model):
    if model == "bert":
        head = ("variant", "layers", "hidden width", "heads", "rows of the vocabulary")
        sizes = SIZES.items()
        rows = [(f"`{n}`", s.layers, s.hidden, s.heads, f"{s.rows:,}") for n, s in sizes]
    elif model == "tft":
        head = ("variant", "series", "target", "known inputs", "scalers")
        scalers = {True: "one per series", False: "one for all series"}
        rows = [
            (f"`{n}`", v.cardinality, v.quantity, listed(v.known), scalers[v.scaled_per_id])
            for n, v in VARIANTS.items()
        ]
    elif model == "widedeep":
        head, by_width = ("embedding width", "tables and their rows"), {}
        for name, (size, width) in {**features.ONE_HOT, **features.MULTI_HOT}.items():
            by_width.setdefault(width, []).append(f"`{name}` {size:,}")
        rows = [(width, ", ".join(by_width[width])) for width in sorted(by_width, reverse=True)]
    else:
        head = ("variant", "rows of all 26 tables", "GiB in fp32")
        rows = [
            (f"`{name}`", f"{sum(sizes):,}", f"{sum(sizes) * DIMENSION * 4 / 2**30:,.2f}")
            for name, sizes in TABLES.items()
        ]
    return table(head, rows)


def renewed(path):
    """The text of a document with all its tables as they have to be."""

    def made(found):
        name = found[2]
        return found[1] + (fields(name) if name in CLASSES else BY_NAME[name](path.stem)) + "\n"

    return TABLE.sub(made, path.read_text(encoding="utf-8"))


def taken(_):
    """What `new` takes, from the tests."""
    return table(("model", "`--from`"), ((c.words, f"`{c.options[1]}`") for c in TAKEN.values()))


def refused(_):
    return table(("model", "what `new` says"), ((c.words, f"`{c.line}`") for c in REFUSED.values()))


BY_NAME = {f.__name__: f for f in (published, refused, taken, tensors, tolerances, variants)}
BY_NAME["formats"] = known_formats

if __name__ == "__main__":
    for each in FILES:
        each.write_text(renewed(each), encoding="utf-8")
