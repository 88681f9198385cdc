"""How rows and configurations are shown: HTML tables that read well in JupyterLab and on a page.

Styles are inline because JupyterLab knows nothing of the page's style sheet; badges carry their own
background, so they are readable in a light and in a dark theme.
"""

import re
from collections.abc import Iterable, Mapping
from html import escape
from math import floor, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame, Series

NAMES = {
    "gpu": "GPU",
    "throughput": "throughput (samples/s)",
    "bare_throughput": "bare throughput (samples/s)",
    "served_bare_ratio": "served / bare",
    "served_bare_min": "served / bare, lowest",
    "served_bare_max": "served / bare, highest",
    "littles_law": "Little's law",
    "sha256": "SHA-256",
    "cuda_graph": "CUDA graph",
}
UNITS = {"ms": "ms", "us": "µs", "ns": "ns", "s": "s", "seconds": "s", "mb": "MB", "gb": "GB"}
UNITS |= {"bytes": "bytes", "percent": "%", "mhz": "MHz", "w": "W", "c": "°C"}
FORMATS = {"spread": ".1%", "littles_law": ".3f"}
FORMATS |= dict.fromkeys(("gpu_utilisation", "gpu_utilisation_max"), ".0%")
FORMATS |= dict.fromkeys(("max_difference", "mean_difference", "max_bound", "mean_bound"), ".1e")
BADGES = {
    "green": "background:#dcf2e2;color:#14532d",
    "red": "background:#fbdcd9;color:#7f1d1d",
    "stable": "background:#dcf2e2;color:#14532d",
    "unstable": "background:#fdecc8;color:#6b4000",
    "disturbed": "background:#fdecc8;color:#6b4000",
    "few requests": "background:#fdecc8;color:#6b4000",
    "failed": "background:#fbdcd9;color:#7f1d1d",
}
NOTHING = "–"
LEFT = ' style="text-align:left"'
SHORT = ' style="text-align:left;white-space:nowrap"'
LONG = ' style="text-align:left;overflow-wrap:anywhere"'


class Table:
    """An HTML table that a notebook displays; its plain text is the caption."""

    def __init__(self, html: str, caption: str) -> None:
        self.html = html
        self.caption = caption

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Table: {self.caption}"


def table(
    data: "DataFrame | Iterable[Mapping[str, Any]] | Mapping[str, Any]",
    caption: str = "",
    formats: Mapping[str, str] | None = None,
) -> Table:
    """Show rows as a table, or one mapping as keys and values.

    `formats` maps a column to a format specification such as '.2e'. A column `verdict` becomes a
    coloured word with the row's `reason` below it. Everything is escaped.
    """
    formats = {**FORMATS, **(formats or {})}
    head = f"<caption{LEFT}>{escape(caption)}</caption>" if caption else ""
    if isinstance(data, Mapping):
        body = "".join(
            f'<tr><th scope="row" title="{escape(str(key))}"{SHORT}>{escape(pretty(str(key)))}</th>'
            f"<td{LONG}>{escape(_text(value, formats.get(str(key))))}</td></tr>"
            for key, value in data.items()
        )
    else:
        columns = _columns(data, formats)
        head += f"<thead><tr>{''.join(name for name, _ in columns)}</tr></thead>"
        rows = zip(*(cells for _, cells in columns), strict=True)
        body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    html = f'<div style="overflow-x:auto"><table>{head}<tbody>{body}</tbody></table></div>'
    return Table(html, caption)


def pretty(name: str) -> str:
    """Return a column's name as a header: `p99_latency_ms` becomes 'p99 latency (ms)'."""
    if name in NAMES:
        return NAMES[name]
    stem, _, unit = name.rpartition("_")
    words = f"{stem} ({UNITS[unit]})" if stem and unit in UNITS else name
    return re.sub(r"\bsha256\b", "SHA-256", words.replace("_", " "))


def _columns(
    data: "DataFrame | Iterable[Mapping[str, Any]]", formats: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """Return each column as its header cell and its body cells."""
    from pandas import DataFrame
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame = data if isinstance(data, DataFrame) else DataFrame(list(data))
    columns = []
    for name in frame.columns:
        if name == "reason" and "verdict" in frame:
            continue
        values = frame[name]
        is_number = is_numeric_dtype(values) and not is_bool_dtype(values)
        spec = formats.get(str(name)) or (_spec(values) if is_number else None)
        texts = [_text(value, spec) for value in values]
        is_short = max(map(len, texts), default=0) <= 24
        look = ' class="number"' if is_number else SHORT if is_short else LEFT
        bodies = [escape(text) for text in texts]
        if name == "verdict":
            reasons = frame["reason"] if "reason" in frame else [None] * len(frame)
            bodies = [_badge(*pair) for pair in zip(texts, reasons, strict=True)]
            look = LEFT
        title = f'<th scope="col"{look}>{escape(pretty(str(name)))}</th>'
        columns.append((title, [f"<td{look}>{body}</td>" for body in bodies]))
    return columns


def _spec(values: "Series[Any]") -> str:
    """Choose one format for a column: three digits of its smallest value, at most 3 decimals."""
    sizes = values.dropna().abs()
    if (sizes % 1 == 0).all():
        return ",.0f"
    smallest, largest = sizes[sizes > 0].min(), sizes.max()
    if largest < 0.01:
        return ".3g"
    return f",.{min(max(2 - floor(log10(smallest)), 0), 3)}f"


def _text(value: Any, spec: str | None = None) -> str:
    """Return a value as plain text; what is absent becomes a dash."""
    if value is None or value != value or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value) or NOTHING
    if spec:
        return format(value, spec)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _badge(verdict: str, reason: Any) -> str:
    """Return a verdict as a coloured word, and its reason below."""
    why = _text(reason)
    name = f'class="verdict verdict-{escape(verdict.replace(" ", "-"))}"'
    look = f"{BADGES.get(verdict, '')};padding:.1em .6em;border-radius:1em;white-space:nowrap"
    text = f'<span {name} style="{look}">{escape(verdict)}</span>'
    small = f'<small style="display:inline-block;min-width:12em">{escape(why)}</small>'
    return text if why == NOTHING else f"{text}<br>{small}"
