"""Return the paths of the project and its outputs, and display paths.

outputs/data/<key>/                               data sets, checkpoints, references
outputs/<target>/artifacts/<key>/                 exports, conversions, repositories
outputs/<target>/<model>/<experiment>/<stage>.*   executed notebook, page, result
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS_VARIABLE = "TRITON_NOTEBOOKS_OUTPUTS"  # set by the batch command for its kernels


def outputs() -> Path:
    """Return the outputs folder: the batch command's, else `outputs/` of the project."""
    return Path(os.environ.get(OUTPUTS_VARIABLE, ROOT / "outputs"))


def from_root(path: str) -> Path:
    """Resolve a user's path; a relative one starts at the project's root."""
    return ROOT / os.path.expanduser(path)


def display_path(path: Path) -> str:
    """Return a path for a reader, relative to the project or the outputs folder if it is in one."""
    if path.is_relative_to(outputs()):
        return str(outputs().name / path.relative_to(outputs()))
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
