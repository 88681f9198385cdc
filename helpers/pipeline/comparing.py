"""Decide close rows of two outputs folders: both deployments are served at once and interleaved."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from helpers import results
from helpers.config import TuneConfig, changed, configure
from helpers.display import Lines, digits
from helpers.errors import ArtifactError, DeploymentError
from helpers.inference import open_dataset, requests
from helpers.machine import why_lesson_unavailable
from helpers.measure import match_rate, open_session
from helpers.pipeline.publishing import last_parameters
from helpers.report import Finding, FolderComparison, judge
from helpers.store import OUTPUTS_VARIABLE, environment, find_artifact
from helpers.triton import Server, serve

ROUNDS = 8  # of a row
Side = tuple[Server, TuneConfig]  # the deployment of A or B


def measure_close(comparison: FolderComparison, say: Lines) -> FolderComparison:
    """Measure the rows that are not known to be within or beyond the limit, and the predictions of
    their experiments. Rows that cannot be measured keep their interval, with the reason.
    """
    findings, limit = list(comparison.findings), comparison.limit
    close = [n for n, finding in enumerate(findings) if _is_close(finding, limit)]
    for served, group in groupby(close, lambda n: (findings[n].place, _scenario(findings[n]))):
        numbers = list(group)
        try:
            with ExitStack() as opened:
                sides = [opened.enter_context(_served(one, *served)) for one in comparison.folders]
                findings.append(_predictions(findings[numbers[0]], sides))
                while numbers:
                    measured = _measure(findings[numbers[0]], sides)
                    measured = judge(measured, comparison.count, limit, ROUNDS - 1)
                    times = measured.ratio.times if measured.ratio else ""
                    say(f"measured {' '.join(measured.place)} {measured.what}: {times}")
                    findings[numbers.pop(0)] = measured
        except DeploymentError as error:
            for n in numbers:
                findings[n] = replace(findings[n], reason=f"not measured: {error}")
    return replace(comparison, findings=findings)


def _scenario(finding: Finding) -> str:
    return finding.rows[0].scenario if finding.rows else ""


def _is_close(finding: Finding, limit: float | None) -> bool:
    """Return whether interleaved rounds of a closed loop may decide a row."""
    if not finding.rows or any(row.rate or row.repeated for row in finding.rows):
        return False
    ratio = finding.ratio
    return not (ratio and ratio.low and ratio.high) or ratio.low < 1 - (limit or 0) < ratio.high


@contextmanager
def _served(folder: Path, place: tuple[str, str, str], scenario: str) -> Iterator[Side]:
    """Serve a deployment of an outputs folder, which is that of this process meanwhile."""
    _, model, experiment = place
    path = folder.joinpath(*place, "deploy.json")
    if not path.exists():  # its only target has another name
        path = next(folder.glob(f"*/{model}/{experiment}/deploy.json"), path)
    result, base = results.read(path), path.parents[2]
    with environment(**{OUTPUTS_VARIABLE: str(folder.resolve())}):
        config = configure(last_parameters(folder, base.name), model, experiment, "tune")
        assert isinstance(config, TuneConfig)
        if reason := why_lesson_unavailable(config):
            raise DeploymentError(reason)
        made = result and result.artifact
        repository = made and find_artifact(base / "artifacts" / made.folder)
        if not repository:
            raise ArtifactError(f"{path} has no artifact on this machine.")
        with serve(config, repository, scenario, log=path.with_name("diff_server.log")) as server:
            yield server, config


def _measure(finding: Finding, sides: Sequence[Side]) -> Finding:
    """Measure the ratio of one row's load anew."""
    assert finding.rows
    size, clients = finding.rows[1].batch_size, finding.rows[1].concurrency
    loads = [(server, changed(config, {"online_batch_size": size})) for server, config in sides]
    with open_session(loads[1][1], loads[1][0]) as session:
        first, second = (session.warm(server, config, clients) for server, config in loads)
        found = session.compare(first, second, ROUNDS, is_race=False)
    speeds = found.throughput / found.ratio.value, found.throughput
    before, after = (f"{digits(speed)} samples/s" for speed in speeds)
    measured = replace(finding, ratio=found.ratio, figures=(before, after), machine_speed=1.0)
    return replace(measured, reason=f"{found.rounds} interleaved rounds")


def _predictions(finding: Finding, sides: Sequence[Side]) -> Finding:
    """Compare the predictions for the evaluation set, one request at a time."""
    decisions = []
    for server, config in sides:
        dataset = open_dataset(config)
        outputs = server.infer_all(config.model, requests(config, dataset, 1))
        decisions.append(dataset.decisions(outputs))
    share = match_rate(decisions[0], decisions[1]).served
    outcome, figures = "unchanged" if share == 1 else "changed", ("", f"{share:.2%} are those of A")
    return Finding(finding.place, f"{_scenario(finding)} predictions", outcome, figures)
