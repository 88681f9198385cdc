"""Every kind of page in a real browser: it fits, asks for nothing, says nothing to the console, can
be used with a keyboard and without JavaScript, and axe-core finds nothing serious.
"""

import json
import os
from pathlib import Path

import pytest
from pandas import DataFrame

from helpers.display import table
from helpers.measure import with_intervals
from helpers.report import performance
from helpers.report.sections import OFFLINE, ONLINE, RATES
from helpers.report.site import Target, outputs_index, target_index
from helpers.results import Row
from helpers.store import ROOT
from tests.browser import LANDSCAPE, PORTRAIT
from tests.conftest import wait_for
from tests.report.builders import answers, stage, stages

pytestmark = pytest.mark.slow

AXE = Path(os.environ.get("AXE_CORE", "axe.min.js"))  # of npm's axe-core
VIEWS = [(width, medium) for width in (1280, 390) for medium in ("light", "dark")]
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# tables that are wider than the box in which they scroll, with everything unfolded
CUT = """[...document.querySelectorAll("details")].forEach((each) => { each.open = true; });
    [...document.querySelectorAll("table")].map((each) => {
        let box = each;
        while (box.parentElement && getComputedStyle(box).overflowX !== "auto")
            box = box.parentElement;
        return [each.innerText.slice(0, 60), box.scrollWidth, box.clientWidth];
    }).filter(([, needs, has]) => needs > has)"""
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
    .filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(" ")}`))"""
FOCUSED = """(() => {
    const it = document.activeElement, look = getComputedStyle(it);
    return [it.type || it.ariaLabel || it.textContent, look.outlineStyle !== "none"];
})()"""
SHOWN = """[...document.querySelectorAll("tr[data-states] th")]
    .filter((each) => each.checkVisibility()).map((each) => each.textContent.trim())"""
SHORTENED = """document.querySelectorAll("tbody tr:nth-child(n+40), details.table:nth-of-type(n+9)")
    .forEach((each) => each.remove())"""  # what looks like what is left
HIDDEN = """[...document.querySelectorAll("main :is(h1, h2, p, tr, img, dd)")]
    .filter((each) => !each.checkVisibility() && !each.closest("details, form, noscript")
        && !each.closest("thead")).map((each) => each.outerHTML)"""


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """An outputs folder's indexes, with stages in every state and recommendations of every kind."""
    folder = tmp_path_factory.mktemp("outputs")
    target = Target("cpu", "CPU", stages(), answers())
    target_index(folder / "cpu", target, stages()[:1])
    outputs_index(folder, [target, Target("other", "NVIDIA A30", [], {})])
    return folder


def pages(finished, indexes):
    found = sorted((finished.root / "outputs").rglob("*.html"))
    assert len(found) == 16
    return [*found, *sorted(indexes.rglob("*.html"))]


def test_every_page_fits_with_its_tables_and_asks_for_nothing_and_writes_nothing_to_the_console(
    finished, indexes, browser
):
    for page in pages(finished, indexes):
        browser.open(page.as_uri())
        paper = LANDSCAPE if "A4 landscape" in page.read_text() else PORTRAIT
        for width, medium in [*VIEWS, (paper, "print")]:
            browser.show(width, medium)
            assert browser.evaluate(TOO_WIDE) == 0, (page, width, medium)
        asked = [url for url in browser.requests if not url.startswith("data:")]
        assert asked == [page.as_uri()]
        assert browser.console == []
        browser.show(1280)
        assert browser.evaluate(CUT) == [], page


def test_no_table_is_cut_at_1280_pixels_with_long_names_large_numbers_and_reasons(
    browser, tmp_path
):
    wide = tmp_path / "wide.html"
    style = (ROOT / "helpers/report/template/style.css").read_text()
    body = "".join(f'<div class="output html">{shown.html}</div>' for shown in widest())
    wide.write_text(f'<meta charset="utf-8"><style>{style}</style><main>{body}</main>')

    browser.open(wide.as_uri())
    browser.show(1280)
    assert browser.evaluate(CUT) == []


def widest():
    """Return the tables of measurements with most columns: long names, and numbers that differ."""
    kinds = (float | None, int | None, int)
    numbers = [name for name, field in Row.model_fields.items() if field.annotation in kinds]
    wide = {name: [12_345.678 * factor for factor in (1, 2, 3)] for name in numbers}
    wide |= {
        "experiment": ("openvino-int8~max_batch_size=64", "torchscript-trace-fp32", "onnx"),
        "roofline_share": [0.5, 1.2, 0.07],
        "budget": ["unconfirmed", "not met", "met"],
        "quality": ["too few requests", "noisy", "client-bound"],
        "reason": [f"{count} of 368 requests: re-run on an idle machine" for count in (1, 2, 3)],
        "repeated": [True, False, False],
        "relative_quality": ["too few pairs", "stable", "imprecise"],
        "noop_reason": ["a server on another host has none", "", ""],
    }
    shown = (OFFLINE, ONLINE, RATES)
    shown += (performance.OFFLINE, performance.IN_PROCESS, performance.ONLINE, performance.RATES)
    return [table(with_intervals(DataFrame(wide), columns), "Wide") for columns in shown]


def test_axe_finds_nothing_serious_in_light_and_dark(finished, indexes, browser):
    if not AXE.exists():
        pytest.skip("axe: AXE_CORE names no axe.min.js: npm install --prefix DIR axe-core@4.14.1")
    *run, one, other = pages(finished, indexes)
    found = {}
    for page in [*{page.name: page for page in run}.values(), one, other]:
        browser.open(page.as_uri())
        browser.evaluate(AXE.read_text() + SHORTENED)
        for width, medium in VIEWS[1:3]:
            browser.show(width, medium)
            if serious := browser.evaluate(SERIOUS):
                found[f"{page} {width} {medium}"] = serious
    assert not found, json.dumps(found, indent=1)


def test_the_index_is_filtered_with_the_keyboard(indexes, browser):
    browser.open((indexes / "cpu/index.html").as_uri())
    browser.show(1280)

    walked = []
    while not walked or walked[-1][0] != "Stages of bert":
        browser.press("Tab")
        walked.append(browser.evaluate(FOCUSED))
    assert [name for name, _ in walked] == [
        *("All targets", "Glossary", "Documentation", "all measurements (CSV)", "search"),
        *["checkbox"] * 5,  # done, failed, blocked, skipped, not run
        *("Measured side by side by the stage compare", "bert", "bert", "Stages of bert"),
    ]
    assert all(is_seen for _, is_seen in walked)

    browser.open((indexes / "cpu/index.html").as_uri())
    for _ in range(5):
        browser.press("Tab")
    browser.type("GPU bert")
    assert browser.evaluate(SHOWN) == ["onnx"]
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#search=GPU+bert"
    assert browser.loads == 1
    browser.press("Escape")
    assert browser.evaluate(SHOWN) == ["bertsmall", "bertlarge", "onnx", "second"]
    for _ in range(5):
        browser.press("Tab")
        browser.press(" ") if browser.evaluate("document.activeElement.value") != "failed" else None
    assert browser.evaluate(SHOWN) == ["bertsmall", "bertlarge", "onnx"]
    assert browser.evaluate("count.textContent") == "1 of 2 experiments"

    browser.open(browser.evaluate("location.href"))  # the address keeps the choice
    assert browser.evaluate(SHOWN) == ["bertsmall", "bertlarge", "onnx"]


def test_the_first_page_is_searched_for_targets_models_and_experiments(indexes, browser):
    shown = "[...document.querySelectorAll('section')].filter((e) => e.checkVisibility()).length"
    for words, sections in (("int8", 1), ("cpu bert", 1), ("a30", 0), ("nothing", 0), ("", 1)):
        browser.open((indexes / "index.html").as_uri() + f"#search={words}")
        assert browser.evaluate(shown) == sections, words


def test_without_javascript_everything_is_readable_but_the_filters(finished, indexes, browser):
    for page in pages(finished, indexes):
        browser.open(page.as_uri(), scripts=False)
        browser.show(1280)
        assert browser.evaluate(HIDDEN) == [], page
        shown = "[...document.forms].filter((form) => form.checkVisibility()).length"
        assert browser.evaluate(shown) == 0


def test_an_index_is_loaded_again_while_a_run_is_under_way_but_not_under_a_readers_hands(
    tmp_path, browser
):
    running = [*stages()[:-1], stage("report", "running", experiment="")]
    page = target_index(tmp_path, Target("cpu", "CPU", running, {}))
    before, _, after = page.read_text().partition('data-refresh="10"')
    page.write_text(f'{before}data-refresh="0.2"{after}')

    browser.open(page.as_uri())
    wait_for(lambda: browser.evaluate("1") and browser.loads > 1)
    browser.evaluate("words.focus()")
    before = browser.loads
    browser.evaluate("new Promise((done) => setTimeout(done, 600))")
    assert browser.loads == before


def test_print_leaves_out_what_paper_cannot_do_and_opens_what_is_folded(finished, indexes, browser):
    useless = """[...document.querySelectorAll("nav, form, details.code")]
        .filter((each) => each.checkVisibility()).map((each) => each.outerHTML)"""
    folded = """[...document.querySelectorAll(".html details td")]
        .map((each) => each.checkVisibility())"""
    add = """document.querySelector(".html")?.insertAdjacentHTML("beforeend",
        "<details><summary>more</summary><table><tr><td>folded</table></details>")"""
    for page in (finished.target / "dummy/report.html", indexes / "cpu/index.html"):
        browser.open(page.as_uri())
        browser.evaluate(add)
        browser.show(LANDSCAPE)
        assert browser.evaluate(useless)
        assert not any(browser.evaluate(folded))
        browser.show(LANDSCAPE, "print")
        assert browser.evaluate(useless) == []
        assert all(browser.evaluate(folded))
        assert browser.pdf().startswith(b"%PDF")
