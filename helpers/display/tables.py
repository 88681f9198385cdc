"""Show measurements and configurations as HTML tables for JupyterLab and for pages.

Styles are inline because JupyterLab does not load the page's style sheet. pandas' Styler was tried:
its tables are larger, and take a hundred times as long for 240 rows.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame, Series

NAMES = {
    "gpu": "GPU",
    "throughput": "throughput (samples/s)",
    "in_process_throughput": "in-process throughput (samples/s)",
    "noop_latency_ms": "no-op model latency (ms)",
    "machine_gflops": "machine speed (GFLOP/s)",
    "rate": "rate (requests/s)",
    "p50_sent_ms": "p50 since sent (ms)",
    "p99_sent_ms": "p99 since sent (ms)",
    "send_delay_p99_ms": "p99 send delay (ms)",
    "gflops": "GFLOP/s",
    "intensity": "FLOP/byte",
    "roofline_share": "share of roofline",
    "littles_law": "Little's law",
    "framework": "reference",
    "bound": "required",
    "max_bound": "max tolerance",
    "mean_bound": "mean tolerance",
    "default_share": "default vectors",
    "background_cpu_cores": "CPU cores used by others",
    "distinct_rows": "different samples",
    "sha256": "SHA-256",
    "cuda_graph": "CUDA graph",
}
UNITS = {"ms": "ms", "us": "µs", "ns": "ns", "s": "s", "seconds": "s", "mb": "MB", "gb": "GB"}
UNITS |= {"bytes": "bytes", "percent": "%", "mhz": "MHz", "w": "W", "c": "°C"}
FORMATS = {"margin_of_error": ".1%", "littles_law": ".3f"}
SHARES = ("client_overhead", "gpu_utilisation", "gpu_utilisation_max", "roofline_share")
FORMATS |= dict.fromkeys(SHARES, ".0%") | {"share": ".1%"}
FORMATS |= dict.fromkeys(("framework", "served", "bound"), ".4f")  # a metric: 0.9997 is not 1.000
FORMATS |= dict.fromkeys(("max_difference", "mean_difference", "max_bound", "mean_bound"), ".1e")
JUDGED = ("quality", "result")  # columns of badges, with the reason below each badge
# Badges have their own background, so that they can be read in a light and in a dark theme.
BADGES = dict.fromkeys(("passed", "stable", "consistent"), "background:#dcf2e2;color:#14532d")
BADGES |= dict.fromkeys(("failed", "differ"), "background:#fbdcd9;color:#7f1d1d")
BADGES |= dict.fromkeys(
    ("imprecise", "noisy", "too few requests", "client-bound", "saturated", "unstable"),
    "background:#fdecc8;color:#6b4000",
)
ABSENT = "–"
NAME = "Table"  # if it has no caption
LEFT = ' style="text-align:left"'
SHORT = ' style="text-align:left;white-space:nowrap"'
# a sentence, which a narrow page would break after each word
WRAPPED = ' style="text-align:left;min-width:14em"'
LONG = ' style="text-align:left;overflow-wrap:anywhere"'


@dataclass(frozen=True, repr=False)
class Table:
    """An HTML table that a notebook displays; its plain text is the caption."""

    html: str
    caption: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"Table: {self.caption}"


def display(*values: object) -> None:
    """Display values in a notebook, one below the other."""
    from IPython import display as notebook

    for value in values:
        notebook.display(value)  # type: ignore[no-untyped-call]


def table(
    data: "DataFrame | Iterable[Mapping[str, object]] | Mapping[str, object]",
    caption: str = "",
    formats: Mapping[str, str] | None = None,
) -> Table:
    """Show rows as a table, or one mapping as keys and values.

    `formats` maps a column to a format specification such as '.2e'. A column `quality` or `result`
    becomes a badge with the row's `reason` below it. Everything is escaped.
    """
    formats = {**FORMATS, **(formats or {})}
    head = f"<caption{LEFT}>{escape(caption)}</caption>" if caption else ""
    if isinstance(data, Mapping):
        rows = [
            f'<th scope="row" title="{escape(str(key))}"{SHORT}>{escape(pretty(str(key)))}</th>'
            f"<td{LONG}>{escape(_text(value, formats.get(str(key))))}</td>"
            for key, value in data.items()
        ]
    else:
        titles, *cells = list(zip(*_columns(data, formats), strict=True)) or [()]
        head += f"<thead><tr>{''.join(titles)}</tr></thead>"
        rows = ["".join(row) for row in cells]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    # a box that scrolls can be reached and is named, for those who use a keyboard
    label = escape(caption or NAME)
    box = f'style="overflow-x:auto" tabindex="0" role="region" aria-label="{label}"'
    return Table(f"<div {box}><table>{head}<tbody>{body}</tbody></table></div>", caption)


def pretty(name: str) -> str:
    """Return a column's name as a header: `p99_latency_ms` becomes 'p99 latency (ms)'."""
    if name in NAMES:
        return NAMES[name]
    stem, _, unit = name.rpartition("_")
    header = f"{stem} ({UNITS[unit]})" if stem and unit in UNITS else name
    return re.sub(r"\bsha256\b", "SHA-256", header.replace("_", " "))


def digits(value: float) -> str:
    """Return a number in at least four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short(value: float) -> str:
    """Return a number in three digits, or all those before the point: never as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _columns(
    data: "DataFrame | Iterable[Mapping[str, object]]", formats: Mapping[str, str]
) -> Iterable[list[str]]:
    """Yield the cells of each column, the header first."""
    from pandas import DataFrame
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame = data if isinstance(data, DataFrame) else DataFrame(list(data))
    for name, values in frame.items():
        if name == "reason" and frame.columns.isin(JUDGED).any():
            continue
        is_number = is_numeric_dtype(values) and not is_bool_dtype(values)
        spec = formats.get(str(name)) or (_spec(values) if is_number else None)
        texts = [escape(_text(value, spec)) for value in values]
        is_short = max(map(len, texts), default=0) <= 24
        style = ' class="number"' if is_number else SHORT if is_short else WRAPPED
        if name in JUDGED:
            reasons = frame["reason"] if "reason" in frame else [None] * len(frame)
            texts, style = list(map(_badge, values, reasons)), LEFT
        header = f'<th scope="col"{style}>{escape(pretty(str(name)))}</th>'
        yield [header, *(f"<td{style}>{text}</td>" for text in texts)]


def _spec(values: "Series[float]") -> str:
    """Return one format for a column: three digits of its smallest value, at most 3 decimals."""
    sizes = values.dropna().abs()
    if (sizes % 1 == 0).all():
        return ",.0f"
    smallest, largest = sizes[sizes > 0].min(), sizes.max()
    if largest < 0.01:
        return ".3g"
    return f",.{min(max(2 - floor(log10(smallest)), 0), 3)}f"


def _text(value: object, spec: str | None = None) -> str:
    """Return a value as plain text; what is absent becomes a dash."""
    if value is None or value != value or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items()) or ABSENT
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value) or ABSENT
    if spec and not isinstance(value, str):
        return format(value, spec)
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _badge(quality: object, reason: object) -> str:
    """Return a quality or a result as a badge, and its reason below."""
    word, why = escape(_text(quality)), _text(reason)
    look = f"{BADGES.get(word, '')};padding:.1em .6em;border-radius:1em;white-space:nowrap"
    text = f'<span class="quality quality-{word.replace(" ", "-")}" style="{look}">{word}</span>'
    small = f'<small style="display:inline-block;min-width:12em">{escape(why)}</small>'
    return text if why == ABSENT else f"{text}<br>{small}"
