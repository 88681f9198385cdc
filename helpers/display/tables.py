"""Show measurements and configurations as HTML tables for JupyterLab and for pages.

Styles are inline because JupyterLab does not load the page's style sheet. pandas' Styler was tried:
its tables are larger, and take a hundred times as long for 240 rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from operator import add
from typing import TYPE_CHECKING, NamedTuple

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
    "roofline_share": "share of roofline",
    "framework": "reference",
    "bound": "required",
    "max_bound": "max tolerance",
    "mean_bound": "mean tolerance",
    "default_share": "default vectors",
    "background_cpu_cores": "CPU cores used by others",
    "distinct_rows": "different samples",
}
UNITS = {"ms": "ms", "us": "µs", "ns": "ns", "s": "s", "seconds": "s", "mb": "MB", "gb": "GB"}
UNITS |= {"bytes": "bytes", "percent": "%", "mhz": "MHz", "w": "W", "c": "°C"}
FORMATS = {"margin_of_error": ".1%", "share": ".1%"}
FORMATS |= {"client_overhead": ".0%", "roofline_share": ".0%"}
FORMATS |= dict.fromkeys(("framework", "served", "bound"), ".4f")  # a metric: 0.9997 is not 1.000
FORMATS |= dict.fromkeys(("max_difference", "mean_difference", "max_bound", "mean_bound"), ".1e")
JUDGED = ("quality", "result")  # columns of badges, with the reason below each badge
# Badges have their own background, so that they can be read in a light and in a dark theme.
GREEN, RED = "background:#dcf2e2;color:#14532d", "background:#fbdcd9;color:#7f1d1d"
AMBER = "background:#fdecc8;color:#6b4000"
BADGES = dict.fromkeys(("passed", "stable", "equivalent", "faster"), GREEN)
BADGES |= dict.fromkeys(("failed", "differ", "slower", "changed"), RED)
BADGES |= dict.fromkeys(("imprecise", "noisy", "too few requests", "client-bound"), AMBER)
BADGES |= dict.fromkeys(("saturated", "not decided", "unstable"), AMBER)
ABSENT = "–"
BELOW = "display:inline-block;min-width:9em;max-width:24em"  # a badge
INTERVAL = "95% CI"
NAME = "Table"  # if it has no caption
LEFT = ' style="text-align:left"'
SHORT = ' style="text-align:left;white-space:nowrap"'
# a sentence, which a narrow page would break after each word
WRAPPED = ' style="text-align:left;min-width:12em"'
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
    becomes a badge with the row's `reason` below it, a column "..., 95% CI" stands below the number
    before it, and what is the same in all rows in the caption. Everything is escaped.
    """
    formats = {**FORMATS, **(formats or {})}
    heading = [escape(caption)] if caption else []
    titles = ""
    if isinstance(data, Mapping):
        rows = [
            f'<th scope="row" title="{escape(str(key))}"{SHORT}>{escape(pretty(str(key)))}</th>'
            f"<td{LONG}>{escape(_text(value, formats.get(str(key))))}</td>"
            for key, value in data.items()
        ]
    else:
        columns, same = _said_once([*_columns(data, formats)])
        heading += [f'<span style="font-weight:400">{same}</span>'] if same else []
        titles = "".join(f'<th scope="col"{each.heading}>{each.title}</th>' for each in columns)
        cells = [[f"<td{each.style}>{text}</td>" for text in each.texts] for each in columns]
        rows = ["".join(row) for row in zip(*cells, strict=True)]
    head = f"<caption{LEFT}>{'<br>'.join(heading)}</caption>" if heading else ""
    head += f"<thead><tr>{titles}</tr></thead>" if titles else ""
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


class Column(NamedTuple):
    """A column of a table as HTML."""

    title: str
    style: str  # of its cells
    heading: str  # and of its header, which may wrap
    texts: Sequence[str]


def _said_once(columns: Sequence[Column]) -> tuple[Sequence[Column], str]:
    """Return the columns that differ between rows, each 95% CI below its number, and a text on the
    others. If no column differs, as in a single row, all are kept.
    """
    differs = [len(set(column.texts)) > 1 for column in columns]
    if not any(differs):
        return columns, ""
    kept: list[Column] = []
    same, empty = [], []
    for index, (title, *_, texts) in enumerate(columns):
        if not differs[index]:
            same += [f"{title}: {texts[0].replace('<br>', ' ')}"] if texts[0] != ABSENT else []
            empty += [title] if texts[0] == ABSENT else []
        elif title.endswith(INTERVAL) and index and differs[index - 1]:
            above = kept.pop()
            small = ["" if text == ABSENT else f"<br><small>{text}</small>" for text in texts]
            title = f"{above.title}<br><small>{INTERVAL}</small>"
            kept.append(above._replace(title=title, texts=[*map(add, above.texts, small)]))
        else:
            kept.append(columns[index])
    parts = {"The same in all rows": same, "Empty in all rows": empty}
    return kept, " ".join(f"{name}: {'; '.join(them)}." for name, them in parts.items() if them)


def _columns(
    data: "DataFrame | Iterable[Mapping[str, object]]", formats: Mapping[str, str]
) -> Iterable[Column]:
    from pandas import DataFrame
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    frame = data if isinstance(data, DataFrame) else DataFrame(list(data))
    for name, values in frame.items():
        if name == "reason" and frame.columns.isin(JUDGED).any():
            continue
        is_number = is_numeric_dtype(values) and not is_bool_dtype(values)
        spec = formats.get(str(name)) or (_spec(values) if is_number else None)
        texts = [escape(_text(value, spec)) for value in values]
        longest = max(map(len, texts), default=0)
        style = SHORT if longest <= 16 else LEFT if longest <= 24 else WRAPPED
        style = ' class="number"' if is_number else style
        if name in JUDGED:
            reasons = frame["reason"] if "reason" in frame else [None] * len(frame)
            texts, style = list(map(_badge, values, reasons)), LEFT
        heading = LEFT if style == SHORT else style
        yield Column(escape(pretty(str(name))), style, heading, texts)


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
    small = f'<small style="{BELOW}">{escape(why)}</small>'
    return text if why == ABSENT else f"{text}<br>{small}"
