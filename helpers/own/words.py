"""The words that the prose of a new model's notebooks leaves open."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers import formats
from helpers.models._own import Axes
from helpers.own.draft import Draft
from helpers.own.options import Option
from helpers.own.origin import NOUNS

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
MOST = 6  # tensors that a sentence names


def words(
    title: str,
    found: Draft,
    options: Sequence[Option],
    samples: Path | None,
    metric: str,
) -> Mapping[str, str]:
    """Give a text for each name in braces."""
    kind, framework = found.origin.kind, FRAMEWORKS[found.origin.framework]
    sum_terms, sums = found.terms
    return {
        "title": title,
        "source": NOUNS[kind],
        "file": f"`{found.origin.function or found.origin.path.name}`",
        "file_words": FILES[kind],
        "framework": framework,
        "backend": found.origin.backend,
        "checks": _checks(found, framework),
        "inputs": tensors(found.inputs),
        "outputs": tensors(found.outputs),
        "layers": "operators of the graph" if kind == "onnx" else "layers",
        "batch": _batch(found),
        "samples": _samples(samples),
        "dimensions": _dimensions(found),
        "reference": _reference(found),
        "export": _export(found, options),
        "formats": ", ".join(f"`{each.name}`" for each in options),
        "metric": _metric(found, metric),
        "sums": str(sums),
        "terms": f"{sum_terms:,}",
        **_variations(found, options, samples),
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


def _batch(found: Draft) -> str:
    if not found.has_batch:
        return (
            "Its tensors have no batch dimension, so one of size 1 is added: a request is one "
            "sample, and Triton has nothing to join."
        )
    if not found.is_batched:
        return "Its batch is fixed at one sample, so Triton has nothing to join."
    return "The shapes are those of one sample; a free batch dimension comes before them."


def _samples(samples: Path | None) -> str:
    if samples:
        return (
            f"The samples come from `{samples.name}`. If there are 32 or more, every fourth "
            "calibrates int8 and is not evaluated."
        )
    return (
        "The samples are *drawn at random* from type and shape, because no file was given. They "
        "show whether the served model computes the same and how fast, but nothing about real "
        "data."
    )


def _dimensions(found: Draft) -> str:
    if not found.dimensions:
        return "there are none."
    return ", ".join(f"`{name}` is {size}" for name, size in found.dimensions.items()) + "."


def _reference(found: Draft) -> str:
    if found.origin.kind == "onnx":
        return (
            "ONNX Runtime computes them without optimizing the graph, so that fused operators are "
            "compared with plain ones."
        )
    return ""


def _export(found: Draft, options: Sequence[Option]) -> str:
    exported = dict.fromkeys(each.fields["export_format"] for each in options)
    names = " or ".join(f"`{name}`" for name in exported)
    if found.origin.kind == "onnx":
        return (
            "The graph is taken as it is. Free sizes become those of `dimensions`, and weights in "
            "other files come inside."
        )
    if found.origin.kind == "savedmodel":
        return "The SavedModel is taken as it is."
    return f"`export_format` chooses the format: {names}."


def _checks(found: Draft, framework: str) -> str:
    if found.origin.backend:
        return (
            "The responses to many clients are compared with the responses to one client, in "
            "units of the output's standard deviation."
        )
    return (
        f"Each step is compared with {framework} in fp32: exported, converted, served, and served "
        "under load."
    )


def _metric(found: Draft, metric: str) -> str:
    if found.origin.backend:
        scored = f" The metric `{metric}` shows how good the responses are." if metric else ""
        return f"Of the predictions, 98% must match.{scored}"
    if metric:
        return (
            f"The metric `{metric}` must keep 99% of the reference's (MLPerf's rule), and 98% of "
            "the predictions must match."
        )
    if found.decision == "class":
        return (
            "There are no labels, so the metric is the match rate: 99% of the samples must "
            "have the reference's class, the largest score of the first output."
        )
    return (
        "There are no labels, so the match rate is 1 minus the relative difference of "
        "the first output from the reference's (Euclidean norm). It must be at least 99%."
    )


def _variations(found: Draft, options: Sequence[Option], samples: Path | None) -> dict[str, str]:
    first = options[0].fields
    export = '{"dataset": "samples.npz"}'
    why, seen = "your own samples, one array for each input.", "The same tolerances hold."
    if samples:
        export = '{"dataset": "generated"}'
        why = "samples that are drawn at random."
    others = [each for each in options if each.fields["export_format"] != first["export_format"]]
    if others:
        name = others[0].fields["export_format"]
        export = f'{{"export_format": "{name}", "format": "{name}"}}'
        why, seen = "another file of the model.", "Other names of operators, the same tolerances."
    shown = next((each.fields for each in options if each.changes_precision), first)
    different = [each.fields for each in options if each.fields["format"] != shown["format"]]
    different += [each.fields for each in options if each.fields != shown]
    other = shown | (different[0] if different else {})
    runtime = formats.get(other["format"]).SHOWN[0]
    changed = {name: value for name, value in other.items() if shown[name] != value}
    convert = str(changed).replace("'", '"')
    try_export = f"`overrides = {export}`: {why} How do the differences change, and why? "
    try_export += _folded(seen)
    try_convert = (
        f"`overrides = {convert}`: the same model run by {runtime}. Which operators take the most "
        "time? " + _folded("Other operators, and differences within that precision's tolerance.")
    )
    return {
        "try_export": try_export,
        "try_convert": try_convert if different else try_export,
        "try_deploy": '`overrides = {"max_queue_delay_us": 0}`: a free instance takes what is '
        "there and waits for nobody. How do the batches change? "
        + _folded("The same responses, and smaller batches while there are few clients."),
    }


def _folded(text: str) -> str:
    return f"<details><summary>What you should see</summary>{text}</details>"
