"""Pages are self-contained, honest about failures and the same bytes each time."""

import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.errors import WorkspaceError
from helpers.report import Answer
from helpers.report.site import Link, Target, outputs_index, page, target_index
from tests.comparisons import compared
from tests.report.builders import Page, answers, stage, stages

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def cell(source, *outputs, count=1, tags=()):
    ran = {"outputs": list(outputs), "execution_count": count}
    return new_code_cell(source, **ran, metadata={"tags": list(tags)})


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def shown(data, metadata=None):
    return new_output("display_data", data=data, metadata=metadata or {})


def write(path, *cells, head="# Convert `ResNet50` & co\n\nWhy it is done."):
    cells = [new_markdown_cell(head), *cells]
    for place, one in enumerate(cells):
        one["id"] = f"cell{place}"
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.fixture
def executed(tmp_path):
    """A notebook with an output of every kind, some of them hostile."""
    table = {"text/html": "<table><tr><td>7</td></tr></table>"}
    figure = shown({"image/png": PNG}, {"image/png": {"alt": 'best: "5" < 6', "width": 9}})
    return write(
        tmp_path / "convert.ipynb",
        cell("gpu: str = 'CPU'", tags=("parameters",)),
        cell("gpu = 'NVIDIA A30'", tags=("injected-parameters",)),
        cell("print(1)", stream("one <b>line</b>\n"), stream("a warning\n" * 20, "stderr")),
        cell("table", new_output("execute_result", data=table, execution_count=1)),
        cell("plot", figure),
        cell("more", shown({"application/javascript": "alert(1)", "text/plain": "a <script>"})),
        new_markdown_cell("# A second title\n\n```sh\n# no title\n```"),
        new_markdown_cell("<b>RED</b>", metadata={"tags": ["papermill-error-cell-tag"]}),
    )


def html(notebook, **more):
    return page(notebook, notebook.with_suffix(".html"), **more).read_text()


def opened(page, kind):
    return ["open" in tag for tag in page.all("details") if tag.get("class") == kind]


def test_a_page_has_one_title_folded_code_and_what_was_shown(executed):
    text = html(executed)

    tags = Page(text)
    assert len(tags.all("h1")) == 1
    (image,) = tags.all("img")
    assert (image["alt"], image["width"]) == ('best: "5" < 6', "9")
    assert (opened(tags, "code"), opened(tags, "log")) == ([False] * 6, [False])
    for said in ("A second title", "parameters and their defaults", "parameters of this run"):
        assert said in tags.text
    for said in (
        *("<title>Convert ResNet50 &amp; co</title>", "log, 20 lines", "<td>7</td>"),
        "one &lt;b&gt;line&lt;/b&gt;",
    ):
        assert said in text
    assert "RED" not in text  # papermill's own cell


def test_a_page_loads_nothing_runs_nothing_and_is_the_same_bytes_each_time(executed):
    text = html(executed, links=[Link("../index.html", "up")])

    tags = Page(text)
    assert not tags.all("script") + tags.all("iframe") + tags.all("object")
    sources = [value for _, tag in tags.tags for key, value in tag.items() if key == "src"]
    assert [value.partition(",")[0] for value in sources] == ["data:image/png;base64"]
    assert not re.search(r"https?://", text)
    assert "alert(1)" not in text
    assert len(text) < 30_000
    assert html(executed, links=[Link("../index.html", "up")]) == text
    assert {path.name for path in executed.parent.iterdir()} == {"convert.html", "convert.ipynb"}


def test_a_short_log_is_open_and_has_the_last_state_of_a_progress_bar(tmp_path):
    progress = cell("x", stream("50%", "stderr"), stream("\r100%\nend\n", "stderr"))
    tags = Page(html(write(tmp_path / "short.ipynb", progress, head="No title.")))

    assert opened(tags, "log") == [True]
    assert ("log, 2 lines" in tags.text, "50%" in tags.text) == (True, False)
    assert tags.text.startswith("short short No title.")  # titled by its name


def test_a_failed_notebook_says_so_first_and_marks_what_did_not_run(tmp_path):
    name, value = "ServerError", "no <model> here"
    lines = [f"\x1b[31m{name}\x1b[39m: {value}"]
    error = new_output("error", ename=name, evalue=value, traceback=lines)
    path = write(tmp_path / "deploy.ipynb", cell("boom()", error), cell("after()", count=None))

    text = html(path, state="failed", note="after 62 s & no more")

    assert text.index("ServerError: no &lt;model&gt; here") < text.index("<h1")
    for part in ('id="error"', 'href="#error"', "after 62 s &amp; no more", "code (not run)"):
        assert part in text
    is_open = [tag.get("class") for tag in Page(text).all("details") if "open" in tag]
    assert is_open == ["code", None]
    assert "\x1b" not in text


def test_a_file_that_is_no_notebook_is_one_line_that_names_it(tmp_path):
    broken = tmp_path / "export.ipynb"
    for content in (None, "{"):
        if content:
            broken.write_text(content)
        with pytest.raises(WorkspaceError, match="export.ipynb cannot be read as a notebook"):
            page(broken, tmp_path / "export.html")
    assert not (tmp_path / "export.html").exists()


@pytest.mark.parametrize("count", [2, 3])
def test_a_page_of_three_sections_lists_them(count, tmp_path):
    titles = ("The `graph`", "Is it right & fast?", "The graph")[:count]
    cells = [new_markdown_cell(f"## {title}") for title in titles]
    tags = Page(html(write(tmp_path / "n.ipynb", *cells)))

    anchors = ["the-graph", "is-it-right-fast", "the-graph-2"][:count]
    assert [tag["id"] for tag in tags.all("h2")] == anchors
    links = [f"#{anchor}" for anchor in anchors] if count > 2 else []
    assert [tag["href"] for tag in tags.all("a")] == links


# The indexes


def index(folder, states, answers=None):
    return target_index(folder, Target("cpu <1>", "CPU", states, answers or {})).read_text()


def deployed(text):
    return Page(text.partition('id="bert"')[0]).text.partition("What to deploy")[2]


def test_the_index_shows_every_stage_its_reason_and_its_page(tmp_path):
    third = stage("export", "done", experiment="third", shared_with="onnx")
    text = index(tmp_path, [*stages(), third])

    tags = Page(text)
    assert [tag["href"] for tag in tags.all("a")] == [
        *("../index.html", "../glossary.html", "../documentation.html", "results.csv"),
        *("bert/report.html", "bert/onnx/export.html", "bert/onnx/deploy.html"),
    ]
    for said in (
        *("2 min 5 s", "needs a GPU", "last stage finished 2025-03-04 11:20", "shared with onnx"),
        # what experiments share is counted once
        *("✓ 3 done", "✗ 1 failed", "■ 2 blocked", "– 1 skipped", "○ 2 not run"),
    ):
        assert said in tags.text
    assert "&lt;script&gt;alert(1)" in text
    assert (len(tags.all("script")), len(tags.all("h1"))) == (1, 1)  # its own, for the filters
    assert text.count("deploy failed") == 1  # stages that are blocked for one reason share a cell
    assert 'data-of="perf offline to perf online" colspan="2"' in text


def test_the_index_says_what_to_deploy_above_the_stages(tmp_path):
    text = index(tmp_path, stages(), answers())

    assert (
        "bert small onnx <fp32> No significant difference from near. int8 is 4.00× as fast as onnx "
        "<fp32>, but too slow: p99 is 241 ms with 4 clients. the baseline p99 is 55 ms with 4 "
        "clients: within the budget of 200 ms not checked int8 4.00× onnx <fp32> 1.00× near 0.98×"
    ) in deployed(text)
    large = "bert large No experiment meets the budget of 200 ms at p99. onnx is the baseline"
    assert large in deployed(text)
    bars = re.findall(r"<li.*?><span>(.*?)</span><span class=\"bar\" style=\"--share: (\d+)%", text)
    assert bars == [("int8", "100"), ("onnx &lt;fp32&gt;", "25"), ("near", "24"), ("onnx", "100")]
    assert '<li class="best"><span>onnx &lt;' in text


def test_the_index_shows_a_ratio_with_its_interval(tmp_path):
    both = [*stages(), stage("compare", "done", experiment="")]
    text = index(tmp_path, both, {"bert": [Answer(compared(onnx=1.0, int8=3.6))]})

    assert "bert int8 3.60× onnx (95% CI 3.50 to 3.71) no budget is set" in deployed(text)
    assert '<th scope="col">compare</th>' not in text


UNKNOWN = "Not measured: the stage compare has not run."
PROGRESS = "a run is in progress, 2 of 8 stages are done"
SKIPPED = {"bert": [Answer(reason="the stage compare is skipped: a <remote> server")]}


@pytest.mark.parametrize(
    ("state", "reason", "found", "said"),
    [
        ("waiting", "", {}, f"{UNKNOWN} {PROGRESS}"),
        ("waiting", "so far: 1 of 2", answers(), f"so far: 1 of 2; {PROGRESS}"),
        ("done", "so far: 1 of 2", answers(), "so far: 1 of 2"),
        ("missing", "", {}, UNKNOWN),
        ("done", "", answers(), "bert small onnx"),
        ("done", "", SKIPPED, "skipped: a <remote> server"),
    ],
)
def test_the_index_says_how_old_an_answer_is_or_why_there_is_none(
    state, reason, found, said, tmp_path
):
    report = stage("report", state, experiment="", reason=reason, headline="10 samples/s")
    text = deployed(index(tmp_path, [*stages()[:-1], report], found))

    assert said in text
    assert (UNKNOWN in text) == (found == {})
    assert "10 samples/s" not in text  # of a report of an older release


@pytest.mark.parametrize("state", ["running", "done"])
def test_an_answer_that_is_being_measured_again_is_that_of_the_last_comparison(state, tmp_path):
    again = stage("compare", state, experiment="", href="bert/compare.html")
    states = [*stages()[:-1], again, stage("report", "waiting", experiment="")]

    said = deployed(index(tmp_path, states, answers()))

    is_old = "from the last comparison; a run is in progress" in said
    assert is_old == ("from the last comparison" in said) == (state == "running")


def test_an_index_of_nothing_says_so(tmp_path):
    assert "No stage of this target has run yet." in index(tmp_path, [])
    assert "No target has run yet." in outputs_index(tmp_path, []).read_text()


def test_the_first_page_has_each_targets_counts_and_what_to_deploy(tmp_path):
    target = Target("cpu <1>", "NVIDIA A30", stages(), answers())
    tags = Page(outputs_index(tmp_path, [target]).read_text())

    report = "cpu%20%3C1%3E/bert/report.html"
    assert [tag["href"] for tag in tags.all("a")] == [
        *("published.html", "fidelity.html", "glossary.html", "documentation.html"),
        *("cpu%20%3C1%3E/index.html", report, report),
    ]
    assert "cpu <1> NVIDIA A30 ✓ 3 done ✗ 1 failed ■ 2 blocked" in tags.text
    assert "small onnx <fp32> No significant difference from near." in tags.text
    assert len(tags.all("script")) == 1


def test_importing_publish_loads_no_heavy_library():
    heavy = "{'nbconvert', 'jinja2', 'pandas', 'matplotlib'}"
    code = f"import sys, helpers.report.site; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_a_browser_refuses_what_a_hostile_output_would_load(site, browser, tmp_path):
    address, asked = site
    hostile = "<img src='x.png'><script>console.log('ran')</script><script src='x.js'></script>"
    html(write(tmp_path / "a.ipynb", cell("x", shown({"text/html": hostile}))))
    (tmp_path / "control.html").write_text(f"<!DOCTYPE html><html><body>{hostile}</body></html>")
    browser.open(f"{address}/control.html")
    assert any("ran" in line for line in browser.console)
    assert {"/x.png", "/x.js"} <= set(asked)
    asked.clear()

    browser.open(f"{address}/a.html")

    assert {*asked} - {"/favicon.ico"} == {"/a.html"}
    assert browser.console
    assert all("Content Security Policy" in line for line in browser.console)
