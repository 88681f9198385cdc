"""The documents as pages: where their links lead, and that a page is one file like the others."""

import re
from html import unescape

from helpers.report import documents, site
from helpers.store import ROOT

FRONT, BOOKS = ROOT / "README.md", ROOT / "notebooks/README.md"
PAGES = {FRONT: "documentation.html", BOOKS: "documentation-notebooks.html"}


def test_a_link_leads_to_the_page_of_a_document():
    there = {
        (FRONT, "notebooks/README.md"): "documentation-notebooks.html",
        (FRONT, "notebooks/README.md#columns"): "documentation-notebooks.html#columns",
        (FRONT, "notebooks/"): "documentation-notebooks.html",
        (BOOKS, "../README.md"): "documentation.html",
        (BOOKS, "#columns"): "#columns",
        (BOOKS, "https://example.org/a"): "https://example.org/a",
        (BOOKS, "resnet50/export.ipynb"): "",  # it has no page here
    }
    assert {link: documents.target(*link, PAGES) for link in there} == there


def test_an_anchor_is_the_one_that_forges_give():
    anchors = {
        "Reading a report": "reading-a-report",
        "Tested / not tested": "tested--not-tested",
        "What `run` does, in order": "what-run-does-in-order",
    }
    assert {title: documents.anchor(title) for title in anchors} == anchors


def test_every_document_has_a_page_that_loads_nothing_and_is_written_once(tmp_path):
    documents.write_pages(tmp_path)

    pages = documents.sources()
    assert pages[FRONT] == site.DOCUMENTS
    assert pages[ROOT / "notebooks/TROUBLESHOOTING.md"].endswith("notebooks-troubleshooting.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(pages.values())
    for path, page in pages.items():
        text = (tmp_path / page).read_text()
        assert f"<title>{documents.title_of(path)}</title>" in unescape(text)
        assert not re.search(r'src="(?!data:)', text), page
        anchors = set(re.findall(r'id="([^"]+)"', text))
        assert set(re.findall(r'href="#([^"]+)"', text)) <= anchors, page
        inner = {url for url in re.findall(r'href="([^"#:]+)', text) if url.endswith(".html")}
        assert inner <= {*pages.values(), "index.html", "published.html"}, page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    documents.write_pages(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_bar_in_a_table_is_written_without_its_escape(tmp_path):
    path = tmp_path / "table.md"
    path.write_text("| a |\n|---|\n| `1\\|2` |\n")

    assert "<code>1|2</code>" in documents.body(path, {})


def test_without_the_repository_there_is_the_glossary_alone(tmp_path, monkeypatch):
    for module in (documents, site):
        monkeypatch.setattr(module, "ROOT", tmp_path / "installed")

    documents.write_pages(tmp_path)

    (page,) = tmp_path.iterdir()
    assert page.name == "glossary.html"
    assert re.findall(r'<a href="([^"]*)"', page.read_text()) == [
        *("index.html", "glossary.html", "published.html")
    ]
    assert [link.text for link in site.background()] == ["Glossary"]
