"""The words that the prose of a new model's notebooks leaves open."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers import formats
from helpers.models._own import Axes
from helpers.own.draft import Draft
from helpers.own.options import Option
from helpers.own.origin import NOUNS

FRAMEWORKS = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "tensorflow": "TensorFlow"}
FRAMEWORKS |= {"triton": "the same model, asked by one client"}
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
            "Its tensors have no dimension for a batch: here one of size 1 is put before them, so "
            "a request is one sample and Triton has nothing to join."
        )
    if not found.is_batched:
        return "Its batch is fixed at one sample, so Triton has nothing to join."
    return "The shapes are those of one sample; the batch dimension before them is free."


def _samples(samples: Path | None) -> str:
    if samples:
        return (
            f"The samples come from `{samples.name}`. If there are 32 or more, every fourth of "
            "them is kept for the calibration of int8 and not evaluated."
        )
    return (
        "The samples are *drawn at random* from type and shape, because no file was given: "
        "standard normal numbers, and whole numbers as `below` in the package says. They show "
        "whether what is served computes the same and how fast it is; they say nothing of real "
        "data, and a model whose work depends on its input may take another time."
    )


def _dimensions(found: Draft) -> str:
    if not found.dimensions:
        return "here there is none."
    return ", ".join(f"`{name}` is {size}" for name, size in found.dimensions.items()) + "."


def _reference(found: Draft) -> str:
    if found.origin.kind == "onnx":
        return (
            "ONNX Runtime computes it with all optimisations of the graph switched off, so that "
            "what fuses operators is judged by what does not."
        )
    return "It is computed in the framework itself."


def _export(found: Draft, options: Sequence[Option]) -> str:
    exported = dict.fromkeys(each.fields["export_format"] for each in options)
    names = " or ".join(f"`{name}`" for name in exported)
    if found.origin.kind == "onnx":
        return (
            "The graph is taken as it is: sizes that were free get those of `dimensions`, and "
            "weights in files beside it come inside."
        )
    if found.origin.kind == "savedmodel":
        return "The SavedModel is taken as it is."
    return f"`export_format` says what is written: {names}."


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
        scored = f" The metric `{metric}` says how good the answers are." if metric else ""
        return (
            "*Agreement* compares what many clients get with what one client gets: 98% of the "
            f"decisions must be the same.{scored}"
        )
    if metric:
        return (
            f"The metric `{metric}` of these answers must keep 99% of the reference's, the rule "
            "of MLPerf Inference. *Agreement* compares single decisions: 98% of them must be "
            "the reference's."
        )
    if found.decision == "class":
        return (
            "There are no labels, so *agreement* is the metric: the share of samples whose class, "
            "the largest score of the first output, is the reference's. It must be 99% at least."
        )
    return (
        "There are no labels, so *agreement* is the metric: 1 less the relative difference of the "
        "first output from the reference's over all samples, in the Euclidean norm. It must be "
        "99% at least."
    )


def _variations(found: Draft, options: Sequence[Option], samples: Path | None) -> dict[str, str]:
    first = options[0].fields
    export = '{"dataset": "samples.npz"}'
    why = "samples of a file of your own, one array for each input. Expect the same bounds to hold."
    if samples:
        export = '{"dataset": "generated"}'
        why = "samples that are drawn at random. Expect the same bounds to hold."
    others = [each for each in options if each.fields["export_format"] != first["export_format"]]
    if others:
        name = others[0].fields["export_format"]
        export = f'{{"export_format": "{name}", "format": "{name}"}}'
        why = "another file of the model. Expect operators of other names, and the same bounds."
    different = [each.fields for each in options if each.fields["format"] != first["format"]]
    different += [each.fields for each in options[1:]]
    other = first | (different[0] if different else {"format": "openvino"})
    shown = formats.get(other["format"]).SHOWN[0]
    changed = {name: value for name, value in other.items() if first[name] != value}
    convert = str(changed).replace("'", '"')
    return {
        "try_export": f"`overrides = {export}`: {why} Where do the differences come from, if any "
        "differ from those above?",
        "try_convert": f"`overrides = {convert}`: the same model run by {shown}. Expect other "
        "operators in the table, and differences within the bounds of that precision; see which "
        "of them takes the most time.",
        "try_deploy": '`overrides = {"max_queue_delay_us": 0}`: a free instance takes what is '
        "there and waits for nobody. Expect the same answers, because batching changes none of "
        "them beyond rounding, and fewer samples in an execution while few clients ask.",
    }
