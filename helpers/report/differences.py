"""Compare two outputs folders: the speed of each row, accuracy, and what differs in settings.

Rows that were measured apart contain a drift of the machine. So an interval covers the ratio of two
rows as measured and per machine speed, if both are of one machine. The intervals of all rows hold
together with 95% probability (Bonferroni), so those of equal folders seldom exclude 1.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, isclose
from pathlib import Path

from helpers import results
from helpers.config import STAGE, Value, field_changes
from helpers.display import digits, table
from helpers.errors import WorkspaceError
from helpers.report.analysis import TRUSTED, ratio
from helpers.report.describe import escaped
from helpers.report.site import render
from helpers.results import Estimate, Result, Row, clients_of
from helpers.store import write_atomic

COMPANIONS = ("template/differences.html.j2", "template/junit.xml.j2")
# Fields of one value in both results, or they measure different things
WORKLOAD = {"dataset", "variant", "max_seq_length", "crop_size", "dimensions", "labels"}
WORKLOAD |= {"online_batch_size", "shared_memory", "distinct_rows"}
HARDWARE = ("host_processor_model_name", "host_processor_vcpu_count", "accelerator_model_name")
ERROR = 0.05  # the probability that any interval of equal folders excludes 1
SAME_METRIC, SAME_SHARE = 1e-6, 0.01  # relative; of a tolerance
EQUAL, REFUSED, ONLY = "no significant difference", "not compared", ("only in A", "only in B")
ORDER = ("failed", "slower", "changed", "faster", EQUAL, REFUSED, *ONLY, "unchanged")
SKIPPED = (REFUSED, *ONLY)
NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd]")
PREDICTIONS = "results store no predictions: without --measure only match rates are compared"

Place = tuple[str, str, str]  # target, model and experiment


@dataclass(frozen=True)
class Finding:
    """What became of a row, a metric, a parity check or a stage of A in B."""

    place: Place
    what: str
    outcome: str  # one of ORDER
    figures: tuple[str, ...] = ("", "")  # A's and B's
    reason: str = ""
    is_failure: bool = False
    ratio: Estimate | None = None  # of B's speed to A's
    machine_speed: float = 1.0  # of B to A
    rows: tuple[Row, Row] | None = None  # of one load

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of a table."""
        interval = self.ratio.shown(".2f", "×") if self.ratio else ""
        outcome = {"result": self.outcome, "reason": self.reason, "B / A (95% CI)": interval}
        names = {"experiment": " ".join(self.place), "measurement": self.what}
        return {**names, **outcome, "A": self.figures[0], "B": self.figures[1]}


@dataclass(frozen=True)
class FolderComparison:
    """What differs between two outputs folders, A and B."""

    folders: tuple[Path, Path]
    limit: float | None  # the share by which a row may be slower
    findings: Sequence[Finding]
    notes: Sequence[str]  # what differs in configuration, versions and machine
    count: int  # of intervals that hold together

    @property
    def is_failure(self) -> bool:
        """Return whether any finding is a failure, or no row tells whether B is slower."""
        is_unknown = self.limit is not None and not any(each.ratio for each in self.findings)
        return is_unknown or any(finding.is_failure for finding in self.findings)

    @property
    def shown(self) -> list[Finding]:
        """Return the findings but those that are unchanged, failures first."""
        shown = [finding for finding in self.findings if finding.outcome != "unchanged"]
        return sorted(shown, key=lambda each: (not each.is_failure, ORDER.index(each.outcome)))

    @property
    def headline(self) -> str:
        """Return how many findings there are of each outcome."""
        counts = Counter(finding.outcome for finding in self.findings)
        words = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])
        return f"{'failed' if self.is_failure else 'passed'}: {words}"

    def lines(self) -> Iterator[str]:
        """Yield a line per finding; what is not compared for one reason has one line."""

        def kind(each: Finding) -> tuple[object, ...]:
            return each.place, each.outcome, each.reason, each.outcome in SKIPPED or each.what

        for _, group in groupby(self.shown, kind):
            first, *rest = group
            whats = "; ".join(each.what for each in (first, *rest))
            figures = " -> ".join(first.figures) if any(first.figures) and not rest else ""
            parts = first.outcome, first.ratio.times if first.ratio else "", figures, first.reason
            yield f"{' '.join(first.place)} {whats}: {', '.join(filter(None, parts))}"
        yield from (f"note: {note}" for note in self.notes)
        yield self.headline

    def write(self, template: str, path: Path) -> Path:
        """Write a page, or JUnit XML with a test case per finding."""
        shown = table([finding.columns for finding in self.shown], "Differences, failures first")
        is_inside = path.parent == self.folders[1]  # next to the other pages
        context = {"comparison": self, "skipped": SKIPPED, "table": shown, "is_inside": is_inside}
        return write_atomic(path, NOT_XML.sub("?", render(template, context)))

    def write_markdown(self, path: Path) -> Path:
        """Write a table and the notes for a pull request."""
        rows = [[*map(escaped, finding.columns.values())] for finding in self.shown]
        head = [*self.shown[0].columns] if self.shown else []
        lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        text = [f"**{self.headline}**", "", *lines, "", *(f"- {escaped(n)}" for n in self.notes)]
        return write_atomic(path, "\n".join(text) + "\n")


def compare_folders(
    first: Path, second: Path, limit: float | None = None, looks: int = 1
) -> FolderComparison:
    """Compare two outputs folders. With a `limit`, a row fails if its whole interval is slower by
    more than that share. `looks` is how often a row may get an interval.

    Raises `WorkspaceError` if one is not an outputs folder, or if they have nothing in common.
    """
    (before, unread), (after, more) = _read(first), _read(second)
    old, new = ({target for target, *_ in side} for side in (before, after))
    findings, changes = list[Finding](), dict[str, list[str]]()
    if len(old) == len(new) == 1 and old != new:  # of two machines
        after = {(min(old), *place[1:]): stages for place, stages in after.items()}
        unread = [f"target: {min(old)} -> {min(new)}", *unread]
    for place in {**before, **after}:
        pairs = [(before.get(place, {}).get(n), after.get(place, {}).get(n)) for n in STAGE]
        for one, other in pairs:
            findings += _compare(place, one, other)
        settings = (field_changes(_settings(a), _settings(b)) for a, b in pairs if a and b)
        for line in dict.fromkeys(line for lines in settings for line in lines):
            changes.setdefault(line, []).append(" ".join(place))
    if all(finding.outcome in ONLY and not finding.is_failure for finding in findings):
        raise WorkspaceError(f"{first} and {second} have no measurement or metric in common.")
    most = len(before.keys() & after.keys())
    notes = [f"{k} ({', '.join(v)})" if len(v) < most else k for k, v in changes.items()]
    count = looks * sum(bool(each.ratio or (looks > 1 and each.rows)) for each in findings)
    judged = [judge(finding, count, limit) for finding in findings]
    return FolderComparison(
        (first, second), limit, judged, [*unread, *more, *notes, PREDICTIONS], count
    )


def _read(folder: Path) -> tuple[dict[Place, dict[str, Result]], list[str]]:
    """Read the results of all experiments; return a note for each of another schema."""
    found, unread = dict[Place, dict[str, Result]](), list[str]()
    for path in (path for path in sorted(folder.glob("*/*/*/*.json")) if path.stem in STAGE):
        if result := results.read(path):
            target, model, experiment, _ = path.relative_to(folder).parts
            found.setdefault((target, model, experiment), {})[path.stem] = result
        else:
            unread.append(f"{path} is of another schema and was not read")
    if not found:
        nothing = "no results, so it is not an outputs folder"
        why = "only results of another schema" if unread else nothing
        raise WorkspaceError(f"{folder} has {why}. Run: triton-notebooks run")
    return found, unread


def _settings(result: Result) -> dict[str, Value]:
    """Return what a result depends on."""
    settings: dict[str, Value] = {"machine": {**result.machine}}
    settings["commit"] = result.source.git_commit if result.source else ""
    if made := result.fingerprint:
        settings |= {f"{result.stage}.ipynb": made.notebook[:12], "versions": {**made.versions}}
    return settings | (made.config if made else {})


def _different_work(before: Result, after: Result) -> str:
    """Return how two results measure different things; empty if they do not."""
    if not before.fingerprint or not after.fingerprint:
        return "its configuration is unknown"
    old, new = before.fingerprint.config, after.fingerprint.config
    shared = sorted(WORKLOAD & old.keys() & new.keys())
    return ", ".join(line for name in shared for line in field_changes(old[name], new[name], name))


def _items(result: Result | None) -> dict[str, Row | float]:
    """Return rows, metrics, and of parity checks the largest difference / tolerance, by name."""
    if not result:
        return {}
    items: dict[str, Row | float] = {score.metric: score.served for score in result.scores}
    for check in result.checks:
        shares = [(one.max_difference or 0) / (one.max_bound or 1) for one in check.differences]
        items[f"{check.name}, difference from {check.reference}"] = max(shares, default=0.0)
    rates = 0  # they are numbered, as every run has its own
    for row in results.rows([result]):
        rates += bool(row.rate)
        load = str(rates) if row.rate else clients_of(row.concurrency)
        if row.scenario == "offline":
            load = f"batch size {row.batch_size}{', repeated' if row.repeated else ''}"
        items[f"{row.scenario} {load}"] = row
    return items


def _compare(place: Place, before: Result | None, after: Result | None) -> Iterator[Finding]:
    """Compare all that a stage of an experiment has in A and in B."""
    old, new = _items(before), _items(after)
    metrics = {score.metric for side in (before, after) if side for score in side.scores}
    if before and after and before.state == "done" != after.state:
        yield Finding(place, after.stage, "failed", reason=after.reason, is_failure=True)
    for what in {**old, **new}:
        one, other = old.get(what), new.get(what)
        if one is None or other is None or not before or not after:
            is_lost = what in metrics and one is not None and after is not None
            yield Finding(place, what, ONLY[one is None], is_failure=is_lost)
        elif reason := _different_work(before, after):
            yield Finding(place, what, REFUSED, reason=reason)
        elif isinstance(one, Row) and isinstance(other, Row):
            figures = tuple(f"{digits(row.throughput or 0)} samples/s" for row in (one, other))
            same_machine = all(before.machine.get(k) == after.machine.get(k) for k in HARDWARE)
            finding = Finding(place, what, REFUSED, figures)
            yield _compare_rows(finding, one, other, same_machine)
        elif isinstance(one, float) and isinstance(other, float):
            slack = 0.0 if what in metrics else SAME_SHARE
            is_same = isclose(one, other, rel_tol=SAME_METRIC, abs_tol=slack)
            outcome, figures = "unchanged" if is_same else "changed", (f"{one:.6g}", f"{other:.6g}")
            yield Finding(place, what, outcome, figures, is_failure=not is_same and not slack)


def _compare_rows(finding: Finding, before: Row, after: Row, same_machine: bool) -> Finding:
    """Return the ratio of two rows' throughput, or why there is none."""
    if after.quality == "failed" != before.quality:
        return replace(finding, outcome="failed", reason=after.reason, is_failure=True)
    if before.rate:
        return replace(finding, reason="each run has its own request rates")
    finding = replace(finding, rows=(before, after))
    for name, row in (("A", before), ("B", after)):
        if row.quality not in TRUSTED or not row.throughput_low:
            word = "no 95% CI" if row.quality in TRUSTED else row.quality
            return replace(finding, reason=f"{word} in {name}")
    old, new = before.machine_gflops, after.machine_gflops
    machine_speed = new / old if same_machine and old and new else 1.0
    return replace(finding, ratio=ratio(after, before), machine_speed=machine_speed)


def judge(finding: Finding, count: int, limit: float | None, freedom: float = inf) -> Finding:
    """Widen an interval, so that those of `count` rows hold together, and by the change of the
    machine's speed; then name the outcome. `freedom` is that of the interval's t distribution.
    """
    from scipy.stats import t

    if not finding.ratio or not finding.ratio.low or not finding.ratio.high:
        return finding
    value, speed = finding.ratio.value, finding.machine_speed
    wider = t.isf(ERROR / 2 / count, freedom) / t.isf(ERROR / 2, freedom)
    low, high = (value * (end / value) ** wider for end in (finding.ratio.low, finding.ratio.high))
    known = Estimate.of(value, (min(low, low / speed), max(high, high / speed)))
    is_hidden = not known.is_significant and (low > 1 or high < 1)
    return replace(
        finding,
        ratio=known,
        outcome="slower" if known.is_below_one else "faster" if known.is_above_one else EQUAL,
        reason=f"machine speed {speed:.2f}×" if is_hidden else finding.reason,
        is_failure=limit is not None and max(high, high / speed) < 1 - limit,
    )
