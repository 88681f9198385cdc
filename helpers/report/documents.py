"""Documents as pages of the site: the glossary and the repository's Markdown files, with links."""

import os
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from helpers.report.site import DOCUMENTS, GLOSSARY, Link, first_heading, has_documents, render
from helpers.store import GRAMMARS, ROOT, block_import, digest, package_files, write_atomic

FOLDERS = (
    *(".", "notebooks", "params", "params/models", "params/published"),
    *("docker", "helpers", "tests"),
)
TERMS = Path(__file__).parent / "prose" / "glossary.md"
PUBLISHED = ROOT / "params" / "published"  # has a page of another kind


def sources() -> dict[Path, str]:
    """Return the page of each document, the glossary last: the only one without a repository."""
    groups = (sorted((ROOT / folder).glob("*.md")) for folder in FOLDERS if has_documents())
    ordered = (sorted(paths, key=lambda path: path.stem != "README") for paths in groups)
    return {path: page_name(path) for paths in ordered for path in paths} | {TERMS: GLOSSARY}


def page_name(path: Path) -> str:
    """Return the page of a document: `documentation-notebooks.html` is that of their README."""
    parts = [*path.relative_to(ROOT).parent.parts, path.stem]
    names = [part.lower() for part in parts if part != "README"]
    return "-".join([Path(DOCUMENTS).stem, *names]) + ".html"


def anchor(title: str) -> str:
    """Return the anchor that forges give a heading, here without its formatting."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def title_of(path: Path) -> str:
    """Return the first heading of a document."""
    return first_heading(path.read_text(encoding="utf-8")) or path.stem


def target(path: Path, url: str, pages: dict[Path, str]) -> str:
    """Return where a link of a document leads to on the site; '' to a file that has no page."""
    parts = urlsplit(url)
    if parts.scheme or not parts.path:
        return url
    there = Path(os.path.normpath(path.parent / parts.path))
    page = pages.get(there) or pages.get(there / "README.md")
    page = "published.html" if there == PUBLISHED else page
    return f"{page}#{parts.fragment}" if page and parts.fragment else page or ""


def body(path: Path, pages: dict[Path, str]) -> str:
    """Return a document as HTML, with its images in it."""
    with block_import(GRAMMARS):
        from mistune import create_markdown
        from nbconvert.filters.markdown_mistune import IPythonRenderer

    class Renderer(IPythonRenderer):
        """A document with the anchors of forges, whose links lead to the pages."""

        def heading(self, text: str, level: int, **_: Any) -> str:
            slug = anchor(unescape(re.sub("<[^>]*>", "", text)))
            return f'<h{level} id="{slug}">{text}</h{level}>\n'

        def def_list_head(self, text: str) -> str:
            return f'<dt id="{anchor(unescape(text))}">{text}</dt>\n'

        def link(self, text: str, url: str, title: str | None = None) -> str:
            there = target(path, url, pages)
            return super().link(text, there, title) if there else text

        def codespan(self, text: str) -> str:
            return super().codespan(text.replace("\\|", "|"))  # so escaped in a table

        def image(self, text: str, url: str, title: str | None = None) -> str:
            shown = super().image(text, os.path.relpath(path.parent / url, ROOT), title)
            return shown if 'src="data:' in shown else text  # an image of Docker has no pictures

    renderer = Renderer(escape=False, embed_images=True, path=str(ROOT))
    markdown = create_markdown(renderer=renderer, plugins=["table", "def_list"])
    html = str(markdown(path.read_text("utf-8")))
    return html.replace("<table>", '<table tabindex="0">')


def write_pages(outputs: Path) -> None:
    """Write a page for each document into `outputs`, unless all are there and up to date."""
    pages = sources()
    texts = {page: path.read_text(encoding="utf-8") for path, page in pages.items()}
    made_from = digest([package_files(), texts])
    front = outputs / next(iter(pages.values()))
    if front.exists() and made_from in front.read_text(encoding="utf-8"):
        return
    documents = [Link(page, title_of(path)) for path, page in pages.items() if path != TERMS]
    for path, page in reversed(pages.items()):  # the front last: the others are there with it
        context = {
            "title": title_of(path),
            "made_from": made_from,
            "documents": documents,
            "body": body(path, pages),
        }
        write_atomic(outputs / page, render("document.html.j2", context))
