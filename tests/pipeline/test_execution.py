"""Running a notebook with a real kernel: what counts as success, and one line for each failure."""

import os
import tempfile

import nbformat
import pytest

from helpers.errors import StageError
from helpers.pipeline.notebook import execute

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

DONE = """
import json
from pathlib import Path
names = {"model": "m", "experiment": "e", "stage": "deploy", "gpu": "g"}
Path(result + ".new").write_text(json.dumps(names | {"state": "done", "headline": "well"}))
Path(result + ".new").rename(result)
"""


def run(tmp_path, *sources, cell_seconds=60):
    notebook = nbformat.v4.new_notebook()
    first = nbformat.v4.new_code_cell('result: str = ""')
    first.metadata["tags"] = ["parameters"]
    notebook.cells = [first, *(nbformat.v4.new_code_cell(s) for s in sources)]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(notebook, tmp_path / "source.ipynb")
    result = tmp_path / "result.json"
    return execute(tmp_path / "source.ipynb", result, {"result": str(result)}, cell_seconds)


@pytest.mark.parametrize(
    ("sources", "seconds", "line"),
    [
        (["raise ValueError('no\\nway')"], 60, "ValueError: no way"),
        (["from helpers.errors import DataError", "raise DataError('x is bad')"], 60, "x is bad"),
        (["import sys", "sys.exit(0)", DONE], 60, "stopped early: 1 cell did not run. Look for"),
        (["import time; time.sleep(60)"], 2, "A cell took longer than 2 s. Raise the limit by"),
        (["import os; os.kill(os.getpid(), 9)"], 60, "The kernel was killed, probably out of"),
        (["1 + 1"], 60, "The notebook saved no result. Its last code cell must call save()."),
        ([DONE.replace('"done"', '"failed", "reason": "red"')], 60, "red"),
    ],
)
def test_every_other_end_is_one_line(tmp_path, sources, seconds, line):
    run(tmp_path, DONE)
    with pytest.raises(StageError, match=r"^[^\n]+\Z") as raised:
        run(tmp_path, *sources, cell_seconds=seconds)
    assert line in str(raised.value)
    assert (tmp_path / "result.ipynb").exists()


def test_a_notebook_that_is_run_again_is_replaced_whole(tmp_path):
    """One that was killed while it was written would be half a notebook."""
    run(tmp_path, DONE)
    before = (tmp_path / "result.ipynb").read_bytes()
    os.link(tmp_path / "result.ipynb", tmp_path / "before.ipynb")

    run(tmp_path, DONE.replace('"well"', '"better"'))

    assert (tmp_path / "before.ipynb").read_bytes() == before
    assert (tmp_path / "result.ipynb").read_bytes() != before
    assert not [*tmp_path.glob(".result.ipynb*")]


def test_sockets_fit_below_a_temporary_folder_with_a_long_name(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 130)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    assert run(tmp_path, DONE).headline == "well"


def test_a_kernel_that_cannot_start_is_one_line_and_the_old_result_stays(tmp_path, monkeypatch):
    run(tmp_path, DONE)
    before = (tmp_path / "result.json").read_bytes()
    broken = tmp_path / "broken" / "ipykernel_launcher.py"
    broken.parent.mkdir()
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))

    with pytest.raises(StageError, match="^the kernel did not start: [^\n]+$"):
        run(tmp_path, DONE)

    assert (tmp_path / "result.json").read_bytes() == before
