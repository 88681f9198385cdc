"""Every kind of page in a real browser: it fits, asks for nothing, says nothing to the console, can
be used with a keyboard and without JavaScript, and axe-core finds nothing serious.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.report.site import Target, outputs_index, target_index
from tests.browser import LANDSCAPE, PORTRAIT, Browser, started
from tests.conftest import BROWSER, Project, wait_for
from tests.report.test_publish import answers, stages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="chromium: none on PATH to open a page with"),
]

AXE = Path(os.environ.get("AXE_CORE", "axe.min.js"))  # of npm's axe-core
VIEWS = [(width, medium) for width in (1280, 390) for medium in ("light", "dark")]
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder's indexes, with stages in every state and recommendations of every kind."""
    folder = tmp_path_factory.mktemp("outputs")
    target = Target("cpu", "CPU", stages(), answers())
    target_index(folder / "cpu", target, stages()[:1])
    outputs_index(folder, [target, Target("other", "NVIDIA A30", [], {})])
    return folder


def pages(finished: Project, indexes: Path) -> list[Path]:
    """All pages of a run, and indexes of another."""
    found = sorted((finished.root / "outputs").rglob("*.html"))
    assert len(found) == 15
    return [*found, *sorted(indexes.rglob("*.html"))]


def test_every_page_fits_asks_for_nothing_and_writes_nothing_to_the_console(
    finished: Project, indexes: Path, browser: Browser
) -> None:
    for page in pages(finished, indexes):
        browser.open(page.as_uri())
        paper = LANDSCAPE if "A4 landscape" in page.read_text() else PORTRAIT
        for width, medium in [*VIEWS, (paper, "print")]:
            browser.show(width, medium)
            assert browser.evaluate(TOO_WIDE) == 0, (page, width, medium)
        asked = [url for url in browser.requests if not url.startswith("data:")]
        assert asked == [page.as_uri()]
        assert browser.console == []


def test_axe_finds_nothing_serious_in_light_and_dark(
    finished: Project, indexes: Path, browser: Browser
) -> None:
    if not AXE.exists():
        pytest.skip("axe: AXE_CORE names no axe.min.js: npm install --prefix DIR axe-core@4.14.1")
    kinds = {
        page.relative_to(finished.root).parts[-1]: page for page in pages(finished, indexes)[:15]
    }
    found = {}
    for page in [*kinds.values(), *sorted(indexes.rglob("*.html"))]:
        browser.open(page.as_uri())
        browser.evaluate(AXE.read_text() + SHORTENED)
        for width, medium in VIEWS[1:3]:
            browser.show(width, medium)
            if serious := browser.evaluate(SERIOUS):
                found[f"{page} {width} {medium}"] = serious
    assert not found, json.dumps(found, indent=1)


def test_the_index_is_filtered_with_the_keyboard(indexes: Path, browser: Browser) -> None:
    browser.open((indexes / "cpu/index.html").as_uri())
    browser.show(1280)

    walked = []
    while not walked or walked[-1][0] != "Stages of bert":
        browser.press("Tab")
        walked.append(browser.evaluate(FOCUSED))
    states = ["checkbox"] * 5  # done, failed, blocked, skipped, not run
    assert [name for name, _ in walked] == [
        *("All targets", "Glossary", "Documentation", "all measurements (CSV)", "search"),
        *states,
        *("Recommended by the report of each model", "bert", "bert", "Stages of bert"),
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


def test_the_first_page_is_searched_for_targets_models_and_experiments(
    indexes: Path, browser: Browser
) -> None:
    for words, sections in (("int8", 1), ("cpu bert", 1), ("a30", 0), ("nothing", 0), ("", 1)):
        browser.open((indexes / "index.html").as_uri() + f"#search={words}")
        shown = (
            "[...document.querySelectorAll('section')].filter((e) => e.checkVisibility()).length"
        )
        assert browser.evaluate(shown) == sections, words


def test_without_javascript_everything_is_readable_but_the_filters(
    finished: Project, indexes: Path, browser: Browser
) -> None:
    for page in pages(finished, indexes):
        browser.open(page.as_uri(), scripts=False)
        browser.show(1280)
        assert browser.evaluate(HIDDEN) == [], page
        shown = "[...document.forms].filter((form) => form.checkVisibility()).length"
        assert browser.evaluate(shown) == 0


def test_an_index_is_loaded_again_while_a_run_is_under_way_but_not_under_a_readers_hands(
    tmp_path: Path, browser: Browser
) -> None:
    running = [*stages()[:-1], stages()[-1].__class__("bert", "", "report", "running")]
    page = target_index(tmp_path, Target("cpu", "CPU", running, {}))
    text = page.read_text()
    assert 'data-refresh="10"' in text
    page.write_text(text.replace('data-refresh="10"', 'data-refresh="0.2"'))

    browser.open(page.as_uri())
    wait_for(lambda: browser.evaluate("1") and browser.loads > 1)
    browser.evaluate("words.focus()")
    before = browser.loads
    browser.evaluate("new Promise((done) => setTimeout(done, 600))")
    assert browser.loads == before


def test_print_leaves_out_what_paper_cannot_do_and_opens_what_is_folded(
    finished: Project, indexes: Path, browser: Browser
) -> None:
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
