"""Pages are self-contained, honest about failures and the same bytes each time."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.errors import WorkspaceError
from helpers.report.answers import Answer, Recommendation
from helpers.report.site import Link, StageState, Target, outputs_index, page, target_index
from tests.conftest import BROWSER, browse

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


class Page(HTMLParser):
    """Collects a page's tags with their attributes, and its text outside of style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "style":
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def cell(source: str, *outputs: Any, count: int | None = 1, tags: tuple[str, ...] = ()) -> Any:
    return new_code_cell(  # type: ignore[no-untyped-call]
        source, outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)}
    )


def stream(text: str, name: str = "stdout") -> Any:
    return new_output("stream", name=name, text=text)  # type: ignore[no-untyped-call]


def shown(data: dict[str, str], metadata: dict[str, Any] | None = None) -> Any:
    return new_output("display_data", data=data, metadata=metadata or {})  # type: ignore[no-untyped-call]


def error(name: str, value: str) -> Any:
    lines = [f"\x1b[31m{name}\x1b[39m: {value}"]
    return new_output("error", ename=name, evalue=value, traceback=lines)  # type: ignore[no-untyped-call]


def write(path: Path, *cells: Any) -> Path:
    first = new_markdown_cell("# Convert `ResNet50` & co\n\nWhy it is done.")  # type: ignore[no-untyped-call]
    for place, one in enumerate([first, *cells]):
        one["id"] = f"cell{place}"
    notebook = new_notebook(cells=[first, *cells])  # type: ignore[no-untyped-call]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return path


@pytest.fixture
def executed(tmp_path: Path) -> Path:
    """A notebook with an output of every kind, some of them hostile."""
    result = new_output(  # type: ignore[no-untyped-call]
        "execute_result",
        data={"text/html": "<table><tr><td>7</td></tr></table>"},
        execution_count=1,
    )
    return write(
        tmp_path / "convert.ipynb",
        cell("gpu: str = 'CPU'", tags=("parameters",)),
        cell("gpu = 'NVIDIA A30'", tags=("injected-parameters",)),
        cell("print(1)", stream("one <b>line</b>\n"), stream("a warning\n" * 20, "stderr")),
        cell("table", result),
        cell(
            "plot", shown({"image/png": PNG}, {"image/png": {"alt": 'best: "5" < 6', "width": 9}})
        ),
        cell("more", shown({"application/javascript": "alert(1)", "text/plain": "a <script>"})),
        new_markdown_cell("# A second title\n\n```sh\n# no title\n```"),  # type: ignore[no-untyped-call]
    )


def html(notebook: Path, **more: Any) -> str:
    return page(notebook, notebook.with_suffix(".html"), **more).read_text()


def test_a_page_has_one_heading_which_is_its_title(executed: Path) -> None:
    text = html(executed)
    assert len(Page(text).all("h1")) == 1
    assert "<title>Convert ResNet50 &amp; co</title>" in text
    assert "A second title" in Page(text).text


def test_a_notebook_without_a_heading_is_titled_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "deploy.ipynb")
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    notebook.cells[0].source = "No title."
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    assert "<h1>deploy</h1>" in html(path)


def test_a_figure_keeps_its_alternative_text(executed: Path) -> None:
    (image,) = Page(html(executed)).all("img")
    assert image["alt"] == 'best: "5" < 6'
    assert image["width"] == "9"
    assert str(image["src"]).startswith("data:image/png;base64,")


def test_a_page_loads_nothing_and_runs_nothing(executed: Path) -> None:
    text = html(executed, links=[Link("../index.html", "up")])
    tags = Page(text)
    assert not tags.all("script") + tags.all("iframe") + tags.all("object")
    sources = [value for _, tag in tags.tags for key, value in tag.items() if key == "src"]
    assert all(str(value).startswith("data:") for value in sources)
    assert not re.search(r"https?://", text)
    assert "alert(1)" not in text
    assert len(text) < 30_000


def test_the_same_notebook_gives_the_same_bytes(executed: Path) -> None:
    first = html(executed, state="done")
    assert html(executed, state="done") == first
    assert sorted(path.name for path in executed.parent.iterdir()) == [
        "convert.html",
        "convert.ipynb",
    ]


def test_code_is_folded_and_parameters_are_named(executed: Path) -> None:
    tags = Page(html(executed))
    code = [tag for tag in tags.all("details") if tag["class"] == "code"]
    assert len(code) == 6
    assert not any("open" in tag for tag in code)
    assert "parameters and their defaults" in tags.text
    assert "parameters of this run" in tags.text


def test_a_long_log_is_folded_and_a_short_one_is_not(executed: Path, tmp_path: Path) -> None:
    def logs(text: str) -> list[bool]:
        return ["open" in tag for tag in Page(text).all("details") if tag["class"] == "log"]

    assert logs(html(executed)) == [False]
    assert "log, 20 lines" in html(executed)
    progress = cell("x", stream("50%", "stderr"), stream("\r100%\nend\n", "stderr"))
    text = html(write(tmp_path / "short.ipynb", progress))
    assert logs(text) == [True]
    assert "log, 2 lines" in text
    assert "50%" not in Page(text).text


def test_outputs_and_tables_are_shown(executed: Path) -> None:
    text = html(executed)
    assert "<td>7</td>" in text
    assert "one &lt;b&gt;line&lt;/b&gt;" in text


def test_a_failed_notebook_says_so_first_and_marks_what_did_not_run(tmp_path: Path) -> None:
    path = write(
        tmp_path / "deploy.ipynb",
        cell("boom()", error("ServerError", "no <model> here")),
        cell("after()", count=None),
    )
    text = html(path, state="failed", note="after 62 s & no more")
    assert text.index("ServerError: no &lt;model&gt; here") < text.index("<h1")
    assert 'id="error"' in text
    assert 'href="#error"' in text
    assert "after 62 s &amp; no more" in text
    assert "code (not run)" in text
    opened = [tag for tag in Page(text).all("details") if "open" in tag]
    assert [tag.get("class") for tag in opened] == ["code", None]
    assert "\x1b" not in text


def test_papermills_red_cells_are_left_out(tmp_path: Path) -> None:
    red = new_markdown_cell("<b>RED</b>", metadata={"tags": ["papermill-error-cell-tag"]})  # type: ignore[no-untyped-call]
    assert "RED" not in html(write(tmp_path / "a.ipynb", red))


def test_a_file_that_is_no_notebook_is_one_line_that_names_it(tmp_path: Path) -> None:
    broken = tmp_path / "export.ipynb"
    with pytest.raises(WorkspaceError, match="export.ipynb cannot be read as a notebook"):
        page(broken, tmp_path / "export.html")
    broken.write_text("{")
    with pytest.raises(WorkspaceError, match="export.ipynb cannot be read as a notebook"):
        page(broken, tmp_path / "export.html")
    assert not (tmp_path / "export.html").exists()


@pytest.mark.slow
def test_a_shown_figure_reaches_the_page_with_a_link_that_resolves(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    path = write(
        tmp_path / "report.ipynb",
        cell(
            "from pathlib import Path\nfrom pandas import DataFrame\n"
            "from helpers.display import show\nfrom helpers.report.figures import frontier\n"
            "rows = DataFrame({'experiment': ['a'], 'scenario': ['offline'], 'batch_size': [1],\n"
            "    'concurrency': [1], 'throughput': [10.0], 'p99_latency_ms': [1.0],\n"
            "    'throughput_low': [9.0], 'throughput_high': [11.0], 'p99_low_ms': [0.9],\n"
            "    'p99_high_ms': [1.1], 'variant': [''], 'dataset': ['d'], 'quality': ['stable']})\n"
            "show(frontier(rows), 'one point', rows, Path('a b.csv'))",
            count=None,
        ),
    )
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    setup = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    notebook.cells.insert(1, cell(setup, count=None))
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    tags = Page(html(path))
    assert [image["alt"] for image in tags.all("img")] == ["one point"]
    (link,) = tags.all("a")
    assert (tmp_path / str(link["href"]).replace("%20", " ")).read_text().startswith("experiment,")


def sections(*titles: str) -> list[Any]:
    return [new_markdown_cell(f"## {title}") for title in titles]  # type: ignore[no-untyped-call]


def test_a_page_of_several_sections_lists_them(tmp_path: Path) -> None:
    path = write(tmp_path / "n.ipynb", *sections("The `graph`", "Is it right & fast?", "The graph"))

    tags = Page(html(path))

    anchors = [tag["id"] for tag in tags.all("h2")]
    assert anchors == ["the-graph", "is-it-right-fast", "the-graph-2"]
    assert [tag["href"] for tag in tags.all("a")] == [f"#{anchor}" for anchor in anchors]


def test_a_short_page_lists_nothing(tmp_path: Path) -> None:
    tags = Page(html(write(tmp_path / "n.ipynb", *sections("One", "Two"))))

    assert [tag["id"] for tag in tags.all("h2")] == ["one", "two"]
    assert not tags.all("a")


def stage(name: str, state: str, *, experiment: str = "onnx", **more: Any) -> StageState:
    return StageState("bert", experiment, name, state, **more)


def stages() -> list[StageState]:
    blocked = {"reason": "deploy failed"}
    return [
        stage("export", "done", headline="436 MB", href="bert/onnx/export.html", seconds=125.0),
        stage("convert", "skipped", reason="needs a GPU"),
        stage("deploy", "failed", reason="<script>alert(1)</script>", href="bert/onnx/deploy.html"),
        stage("perf_offline", "blocked", **blocked),
        stage("perf_online", "blocked", **blocked),
        stage("export", "done", experiment="second", finished="2025-03-04 11:20"),
        *(stage(name, "missing", experiment="second") for name in ("convert", "deploy")),
        stage("report", "done", experiment="", headline="10 samples/s", href="bert/report.html"),
    ]


Answers = Mapping[str, Sequence[Answer]]


def target(states: list[StageState], answers: Answers | None = None, gpu: str = "CPU") -> Target:
    return Target("cpu <1>", gpu, states, answers or {})


def index(folder: Path, states: list[StageState], answers: Answers | None = None) -> str:
    return target_index(folder, target(states, answers)).read_text()


def test_the_index_shows_every_stage_its_reason_and_its_page(tmp_path: Path) -> None:
    text = index(tmp_path, stages())
    tags = Page(text)
    links = [tag["href"] for tag in tags.all("a")]
    assert links == [
        "../index.html",
        "../glossary.html",
        "../documentation.html",
        "results.csv",
        "bert/report.html",
        "bert/onnx/export.html",
        "bert/onnx/deploy.html",
    ]
    assert "2 min 5 s" in tags.text
    assert "needs a GPU" in tags.text
    assert "last stage finished 2025-03-04 11:20" in tags.text
    assert "&lt;script&gt;alert(1)" in text
    assert len(tags.all("script")) == 1  # its own, for the filters
    assert len(tags.all("h1")) == 1


def answers() -> Answers:
    """BERT's, of two workloads: one has two choices, and of the other no point is known."""
    within = Recommendation(
        "within 9 ms (p99)",
        "onnx <fp32>",
        "why",
        throughput=50.0,
        p99_latency_ms=8.25,
        load="batch size 1, 4 clients, online",
        accuracy="kept",
        command="serve",
    )
    fastest = Recommendation(
        "for throughput", "int8", "why", 200.0, None, "batch size 8, offline", "kept"
    )
    found = Answer("small", (within, fastest), {"onnx <fp32>": 50.0, "int8": 200.0})
    return {"bert": [found, Answer("large", (), {})]}


def test_the_index_says_what_to_deploy_above_the_stages(tmp_path: Path) -> None:
    text = index(tmp_path, stages(), answers())

    said = Page(text.partition('id="bert"')[0]).text
    assert (
        "bert small onnx <fp32> within 9 ms (p99): batch size 1, 4 clients, online "
        "for throughput: int8, 200 samples/s: batch size 8, offline; accuracy kept 50 8.25 kept"
    ) in said
    assert "bert large no throughput is known well enough" in said
    bars = re.findall(r"<li.*?><span>(.*?)</span><span class=\"bar\" style=\"--share: (\d+)%", text)
    assert bars == [("onnx &lt;fp32&gt;", "25"), ("int8", "100")]
    assert '<li class="best"><span>onnx' in text


def noted(state: str, reason: str, found: Answers, tmp_path: Path) -> str:
    report = stage("report", state, experiment="", reason=reason)
    text = index(tmp_path, [*stages()[:-1], report], found)
    return Page(text.partition('id="bert"')[0].partition("What to deploy")[2]).text


def test_the_index_says_how_old_an_answer_is_or_why_there_is_none(tmp_path: Path) -> None:
    progress = "a run is in progress, 2 of 8 stages are done"

    assert f"no report yet; {progress}" in noted("waiting", "", {}, tmp_path)
    assert f"from the last report; {progress}" in noted("running", "", answers(), tmp_path)
    assert f"so far: 1 of 2; {progress}" in noted("waiting", "so far: 1 of 2", answers(), tmp_path)
    assert "so far: 1 of 2" in noted("done", "so far: 1 of 2", answers(), tmp_path)
    assert "no report yet" in noted("missing", "", {}, tmp_path)
    assert "no report yet" not in noted("done", "", answers(), tmp_path)


def test_a_report_of_an_older_release_is_shown_by_its_headline(tmp_path: Path) -> None:
    assert "10 samples/s" in index(tmp_path, stages()).partition('id="bert"')[0]


def test_what_experiments_share_is_counted_once_and_says_so(tmp_path: Path) -> None:
    states = [*stages(), stage("export", "done", experiment="third", shared_with="onnx")]

    said = Page(index(tmp_path, states)).text

    assert "✓ 3 done" in said
    assert "shared with onnx" in said


def test_the_index_counts_stages_by_their_state(tmp_path: Path) -> None:
    text = Page(index(tmp_path, stages())).text
    for count in ("✓ 3 done", "✗ 1 failed", "■ 2 blocked", "– 1 skipped", "○ 2 not run"):
        assert count in text


def test_stages_blocked_for_one_reason_share_a_cell_and_say_it_once(tmp_path: Path) -> None:
    text = index(tmp_path, stages())
    assert text.count("deploy failed") == 1
    assert 'data-stage="perf offline to perf online" colspan="2"' in text


def test_an_index_of_nothing_says_so(tmp_path: Path) -> None:
    assert "No stage of this target has run yet." in index(tmp_path, [])
    assert "No target has run yet." in outputs_index(tmp_path, []).read_text()


def test_the_first_page_has_each_targets_counts_and_what_to_deploy(tmp_path: Path) -> None:
    text = outputs_index(tmp_path, [target(stages(), answers(), "NVIDIA A30")]).read_text()

    said = Page(text).text
    assert [tag["href"] for tag in Page(text).all("a")] == [
        "published.html",
        "fidelity.html",
        "glossary.html",
        "documentation.html",
        "cpu%20%3C1%3E/index.html",
        "cpu%20%3C1%3E/bert/report.html",
        "cpu%20%3C1%3E/bert/report.html",
    ]
    assert "cpu <1> NVIDIA A30 ✓ 3 done ✗ 1 failed ■ 2 blocked" in said
    assert "small onnx <fp32> within 9 ms" in said
    assert len(Page(text).all("script")) == 1


def test_importing_publish_loads_no_heavy_library() -> None:
    heavy = "{'nbconvert', 'jinja2', 'pandas', 'matplotlib'}"
    code = f"import sys, helpers.report.site; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="chromium: none on PATH to open a page with")
def test_a_browser_opens_a_page_without_a_request_or_a_console_error(
    executed: Path, site: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = site
    html(executed, links=[Link("index.html", "up")])
    index(tmp_path, stages())
    for name in ("convert.html", "index.html"):
        asked.clear()
        assert browse(f"{address}/{name}", tmp_path / "profile") == []
        assert asked == [f"/{name}"]


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="chromium: none on PATH to open a page with")
def test_a_browser_refuses_what_a_hostile_output_would_load(
    site: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = site
    hostile = "<img src='x.png'><script>console.log('ran')</script><script src='x.js'></script>"
    html(write(tmp_path / "a.ipynb", cell("x", shown({"text/html": hostile}))))
    (tmp_path / "control.html").write_text(f"<!DOCTYPE html><html><body>{hostile}</body></html>")
    assert any("ran" in line for line in browse(f"{address}/control.html", tmp_path / "profile"))
    assert {"/x.png", "/x.js"} <= set(asked)
    asked.clear()
    lines = browse(f"{address}/a.html", tmp_path / "profile")
    assert asked == ["/a.html"]
    assert lines
    assert all("Content Security Policy" in line for line in lines)
