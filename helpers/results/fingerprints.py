"""What a stage's outcome depends on, as hashes that are taken before it runs."""

import json
import sys
from pathlib import Path

from helpers.config import ExportConfig, StageConfig, notebook_file, results_folder
from helpers.inference import inputs
from helpers.machine import provenance
from helpers.results.types import Fingerprint
from helpers.store import ROOT, digest, display_path, file_digest, package_files

PARTS = {"config": "configuration", "notebook": "notebook", "inputs": "input"}
PARTS |= {"versions": "version"}


def fingerprint(config: StageConfig) -> Fingerprint:
    """Take the fingerprint of a stage, but for the files of this package that it reads: those are
    known once it has run, see `files_read`.
    """
    cells = json.loads(notebook_file(config.model, config.stage).read_text())["cells"]
    return Fingerprint(
        config=config.cache_fields(config.stage),
        notebook=digest([(cell["cell_type"], cell["source"]) for cell in cells]),
        versions=provenance.versions(config),
        inputs=inputs(config, config.stage)
        if isinstance(config, ExportConfig)
        else _report_inputs(config),
    )


def _report_inputs(config: StageConfig) -> dict[str, str]:
    base = results_folder(config)
    found = [path for name in config.experiments for path in sorted((base / name).glob("*.json"))]
    published = ROOT / "params" / "published" / f"{config.model}.csv"
    return {display_path(path): file_digest(path) for path in (*found, published) if path.exists()}


def files_read() -> dict[str, str]:
    """SHA-256 of every file of this package that this process read, as it was when the stage's
    configuration was resolved: a file that is edited meanwhile does not pass for what ran.

    These are the loaded modules, and the files that a module names in `COMPANIONS` because it
    copies or starts them instead of importing them.
    """
    paths = set()
    for name, module in sys.modules.copy().items():
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] == "helpers" and path:
            own = Path(path)
            companions = getattr(module, "COMPANIONS", ())
            paths |= {own, *(own.with_name(companion) for companion in companions)}
    known = package_files()
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    return {name: known.get(name, "new") for name in names}


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Say in a few words in what two fingerprints differ, but for the package's files; empty if
    they are equal.
    """
    for part, word in PARTS.items():
        old, new = getattr(before, part), getattr(now, part)
        if isinstance(old, str) and old != new:
            return f"its {word} changed"
        if old != new:
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            return f"its {word} changed ({', '.join(names)})"
    return ""
