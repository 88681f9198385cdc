"""Tables of a network's layers, a served model's tensors and an exported graph's operators."""

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from helpers.config import ExportConfig, Value
from helpers.inference import ensemble
from helpers.models import Graph, Network, Tensor
from helpers.store import Artifact

if TYPE_CHECKING:
    from IPython.display import Markdown

Rows = list[dict[str, Value]]
MOST = 12  # rows of operators


def layers(network: Network) -> Rows:
    """Return one row for each kind of layer with parameters, the largest first, one for all kinds
    without, and one for the total.

    `network` is a torch module or a Keras model, whose kinds are named after their classes, or a
    graph, whose kinds are its operators.
    """
    counts, parameters = Counter[str](), Counter[str]()
    for kind, size in _layers(network):
        counts[kind] += 1
        parameters[kind] += size
    total = parameters.total()
    groups = [[kind] for kind, size in parameters.most_common() if size]
    if without := [kind for kind, _ in counts.most_common() if not parameters[kind]]:
        groups.append(without)
    rows: Rows = [
        {
            "layer": ", ".join(kinds),
            "count": sum(counts[kind] for kind in kinds),
            "parameters": (size := sum(parameters[kind] for kind in kinds)),
            "share": size / (total or 1),
        }
        for kinds in groups
    ]
    return [*rows, {"layer": "all", "count": counts.total(), "parameters": total, "share": 1.0}]


def _layers(network: Network) -> Iterator[tuple[str, int]]:
    """Yield the kind of each layer, and the number of its own parameters."""
    if isinstance(network, Graph):
        yield from network.layers
        return
    if hasattr(network, "children"):  # PyTorch's
        parameters = sum(parameter.numel() for parameter in network.parameters(recurse=False))
        inside = list(network.children())
        if parameters or not (inside or type(network).__name__ == "Identity"):
            yield type(network).__name__, parameters
    else:
        members = getattr(network, "layers", ())
        inside = [layer for layer in members if type(layer).__name__ != "InputLayer"]
        if not inside:
            yield type(network).__name__, sum(prod(weight.shape) for weight in network.weights)
    for layer in inside:
        yield from _layers(layer)


def signature(config: ExportConfig) -> Rows:
    """Return one row for each tensor of each served model, in order: its name for clients, its type
    and shape, and its meaning. Tensors that differ only by their names share a row.
    """
    parts = ensemble.parts(config)
    rows: dict[tuple[Value, ...], list[str]] = {}
    for part in parts:
        model = {"model": part.name} if len(parts) > 1 else {}
        for kind, tensors in (("input", part.inputs), ("output", part.outputs)):
            for name, spec in tensors.items():
                row = {**model, "tensor": kind, "name": "", **_row(spec, part.flat.get(spec.name))}
                called = name if name == spec.name else f"{name} ({spec.name} in its graph)"
                rows.setdefault(tuple(row.items()), []).append(called)  # type: ignore[arg-type]
    return [
        {**dict(row), "name": ", ".join(names)}  # type: ignore[arg-type]
        for row, names in rows.items()
    ]


def _row(tensor: Tensor, flat: int | None) -> dict[str, Value]:
    shape = ["batch", *map(str, tensor.shape)]
    if flat:
        shape = [f"{flat} of each sample"]
    elif -1 in tensor.shape:
        shape = ["any" if size < 0 else str(size) for size in tensor.shape]
    return {"dtype": tensor.dtype, "shape": " x ".join(shape), "what it is": tensor.meaning}


def show_calls(artifact: Artifact) -> "Markdown":
    """Show the calls of tools that made an artifact, as one would type them."""
    from IPython.display import Markdown

    calls = artifact.facts.get("calls")
    lines = calls if isinstance(calls, list) and calls else ["# none: the file is taken as it is"]
    block = "\n".join(["```python", *map(str, lines), "```"])
    return Markdown(block)  # type: ignore[no-untyped-call]


def operators(artifact: Artifact) -> Rows:
    """Return one row for each of the most frequent operators of an artifact's graph, one for all
    others, and one for the total. If they were not counted, the only row has the reason.
    """
    counts = counted(artifact)
    if not counts:
        reason = artifact.facts.get("operators", "not listed by this format")
        return [{"operator": str(reason), "count": None}]
    shown = counts.most_common(MOST)
    if len(counts) > MOST:
        others = counts.total() - sum(count for _, count in shown)
        shown.append((f"{len(counts) - MOST} other kinds", others))
    shown.append(("all", counts.total()))
    return [{"operator": kind, "count": count} for kind, count in shown]


def counted(artifact: Artifact) -> Counter[str]:
    """Return the operators of an artifact's graph by kind; none if they were not counted."""
    recorded = artifact.facts.get("operators")
    counts = recorded if isinstance(recorded, dict) else {}
    return Counter({kind: count for kind, count in counts.items() if isinstance(count, int)})
