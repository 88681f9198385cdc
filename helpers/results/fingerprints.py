"""Hash all inputs of a stage before it runs."""

import json
import sys
from functools import cache
from pathlib import Path

from helpers.config import (
    STAGE,
    CompareConfig,
    ExportConfig,
    StageConfig,
    artifact_folder,
    notebook_file,
    results_folder,
)
from helpers.inference import dataset_place, inputs
from helpers.machine import provenance
from helpers.results.types import Fingerprint
from helpers.store import (
    ROOT,
    digest,
    display_path,
    file_digest,
    find_artifact,
    known_digest,
    package_files,
)

PARTS = {"config": "configuration", "notebook": "notebook", "inputs": "input"}
PARTS |= {"versions": "version"}
DRAWING = ("helpers/report/", "helpers/compare/comparison_tables.py")  # they draw measurements
FEW = 3  # names in the line of a difference
ARTIFACT_STAGES = [name for name, stage in STAGE.items() if stage.makes_artifact]


def fingerprint(config: StageConfig) -> Fingerprint:
    """Return a stage's fingerprint without `modules`, which `files_read` returns after it ran."""
    if isinstance(config, CompareConfig):
        read = _compared_inputs(config)
    elif isinstance(config, ExportConfig):
        read = inputs(config, config.stage)
    else:
        read = _report_inputs(config)
    return Fingerprint(
        config=config.cache_fields(config.stage),
        notebook=notebook_digest(notebook_file(config.model, config.stage)),
        versions=provenance.versions(config),
        inputs=read,
    )


def notebook_digest(notebook: Path) -> str:
    """Hash a notebook's cells without their outputs."""
    return _cells_digest(notebook, known_digest(notebook))


@cache
def _cells_digest(notebook: Path, _: str) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    return digest([(cell["cell_type"], cell["source"]) for cell in cells])


def _compared_inputs(config: CompareConfig) -> dict[str, str]:
    """Identify the data set and the deployment of each experiment that is compared. A deployment
    that failed a check counts as none: other machines do not receive it.
    """
    from helpers.results.files import read  # that module imports this one

    found = {}
    for one in (one for one in config.candidates if one.compare):
        artifact = find_artifact(artifact_folder(one, "deploy"))
        made = [read(results_folder(one) / f"{stage}.json") for stage in ARTIFACT_STAGES]
        passed = all(result.state == "done" for result in made if result)
        deployed = artifact.sha256 if artifact and passed and not artifact.failure else ""
        found[f"{one.experiment} data set"] = dataset_place(one).name
        found[f"{one.experiment} deployment"] = deployed or "not deployed"
    return found


def _report_inputs(config: StageConfig) -> dict[str, str]:
    base = results_folder(config)
    results = [path for name in config.experiments for path in sorted((base / name).glob("*.json"))]
    published = ROOT / "params" / "published" / f"{config.model}.csv"
    read = (*results, base / "compare.json", published)
    return {display_path(path): file_digest(path) for path in read if path.exists()}


def files_read(stage: str = "report") -> dict[str, str]:
    """Return the SHA-256 of every file of this package that this process read.

    The hashes are those from when the stage's configuration was resolved, before later edits. The
    files are the loaded modules, and those that a module names in `COMPANIONS` because it copies,
    starts or fills them in. Other stages do not depend on the modules of the report: a change of
    charts and sentences is no reason to measure again.
    """
    paths = set()
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] == "helpers" and (file := getattr(module, "__file__", None)):
            path = Path(file).relative_to(ROOT)
            companions = getattr(module, "COMPANIONS", ())
            paths |= {str(path), *(str(path.parent / companion) for companion in companions)}
    digests = package_files()
    folders = [path for path in paths if (ROOT / path).is_dir()]
    paths = {path for path in paths if path not in folders}
    paths |= {path for path in digests if any(path.startswith(f"{each}/") for each in folders)}
    chosen = sorted(path for path in paths if stage == "report" or not path.startswith(DRAWING))
    return {path: digests.get(path, "new") for path in chosen}


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Return the difference between two fingerprints, without modules; empty if there is none."""
    for part, word in PARTS.items():
        old, new = getattr(before, part), getattr(now, part)
        if isinstance(old, str) and old != new:
            return f"its {word} changed"
        if old != new:
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
            return f"its {word} changed ({', '.join(names[:FEW])}{more})"
    return ""
