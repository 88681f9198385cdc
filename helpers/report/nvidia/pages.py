"""The pages that need no run of ours: NVIDIA's rows, and what our experiments do as NVIDIA did."""

from pathlib import Path

from helpers.report.nvidia.documents import FOLDER
from helpers.report.site import TEMPLATE
from helpers.store import ROOT, digest, file_digest, package_files

NAMES = ("published.html", "published.csv", "fidelity.html", "fidelity.csv")


def write_pages(outputs: Path) -> None:
    """Write both pages and their CSV files into `outputs`, unless all are up to date.

    A parameter file at fault is named on the page. Raises `DataError` or `WorkspaceError` if rows
    cannot be read or `outputs` cannot be written.
    """
    files = sorted([*TEMPLATE.iterdir(), *FOLDER.iterdir(), *(ROOT / "params").glob("*.yaml")])
    made_from = digest([package_files(), [file_digest(path) for path in files]])
    found = [path for path in (outputs / name for name in NAMES) if path.exists()]
    pages = [path.read_text(errors="replace") for path in found if path.suffix == ".html"]
    if len(found) == len(NAMES) and all(made_from in page for page in pages):
        return
    from helpers.report.nvidia import fidelity_page, rows_page  # slow to import

    rows_page.write_page(outputs, made_from)
    fidelity_page.write_fidelity(outputs, made_from)
