"""The pages that need no run of ours: NVIDIA's rows, and the fidelity to NVIDIA's setup."""

from pathlib import Path

from helpers.report.nvidia.documents import FOLDER
from helpers.report.site import TEMPLATE
from helpers.store import ROOT, digest, file_digest, package_files


def write_pages(outputs: Path) -> None:
    """Write both pages and their CSV files into `outputs`, where they are not up to date.

    A parameter file at fault is named on the page. Raises `DataError` or `WorkspaceError` if rows
    cannot be read or `outputs` cannot be written.
    """
    files = sorted([*TEMPLATE.iterdir(), *FOLDER.iterdir()])
    rows = digest([package_files(), [file_digest(path) for path in files]])
    params = sorted((ROOT / "params").glob("*.yaml"))
    both = digest([rows, [file_digest(path) for path in params]])
    if not _is_up_to_date(outputs / "published.html", rows):
        from helpers.report.nvidia import rows_page  # slow to import

        rows_page.write_page(outputs, rows)
    if not _is_up_to_date(outputs / "fidelity.html", both):
        from helpers.report.nvidia import fidelity_page

        fidelity_page.write_fidelity(outputs, both)


def _is_up_to_date(page: Path, made_from: str) -> bool:
    """Tell whether a page and its data are there, and made from sources of this digest."""
    is_there = page.exists() and page.with_suffix(".csv").exists()
    return is_there and made_from in page.read_text(errors="replace")
