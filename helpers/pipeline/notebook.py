"""Run one notebook through papermill, and check that it ran to its end.

papermill's metadata calls a notebook completed after a timeout or a dead kernel, and its exit code
is 0 after `sys.exit(0)`. So a notebook has succeeded if it raised no error, executed every code
cell, and wrote a result with the state "done".
"""

import io
import logging
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from helpers import errors
from helpers.errors import StageError
from helpers.results import Result, read
from helpers.store import GRAMMARS, block_import, temporary_folder, write_atomic

START_SECONDS = 120
RELAYED_LINES = 6


class Relay(io.TextIOBase):
    """Passes on the output of running cells, but no long output such as a configuration."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def write(self, text: str) -> int:
        lines = text.strip().splitlines()
        for line in lines if len(lines) < RELAYED_LINES else ():
            self._say(f"      {line}")
        return len(text)


@cache
def _write_atomically() -> None:
    """Make papermill write notebooks atomically: the command may be killed while it writes one."""
    from papermill.iorw import LocalHandler, papermill_io

    class AtomicHandler(LocalHandler):  # type: ignore[misc]
        def write(self, buf: str, path: str) -> None:
            write_atomic(Path(path), buf)

    papermill_io.register("/", AtomicHandler())


def execute(
    source: Path,
    result: Path,
    parameters: dict[str, Any],
    cell_seconds: int,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run the notebook `source` with `parameters`, save it next to `result`, and return its result.

    A cell may take `cell_seconds`, and `say` gets the output of cells. Raises `StageError` with one
    line; the executed part of the notebook remains.
    """
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it would log a page on Ctrl-C
    before = read(result)
    result.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), temporary_folder() as sockets:
        warnings.simplefilter("ignore")
        with block_import(GRAMMARS):
            import papermill
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
        from papermill.exceptions import PapermillExecutionError
        from traitlets.config import Config
        from zmq.error import ZMQError

        _write_atomically()
        transport = {"transport": "ipc", "ip": f"{sockets}/kernel"}  # no port is opened
        try:
            notebook = papermill.execute_notebook(
                str(source),
                str(result.with_suffix(".ipynb").absolute()),
                parameters=parameters,
                kernel_name="python3",
                progress_bar=False,
                start_timeout=START_SECONDS,
                execution_timeout=cell_seconds,
                config=Config({"ConnectionFileMixin": transport}),
                stdout_file=Relay(say),
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],  # its end is reported below
                shutdown_kernel="immediate",  # its cells are done; a request would take 0.4 s
            )
        except PapermillExecutionError as error:
            name = "" if hasattr(errors, error.ename) else f"{error.ename}: "
            raise StageError(name + " ".join(str(error.evalue).split())) from error
        except CellTimeoutError as error:
            line = f"A cell took longer than {cell_seconds} s. Raise the limit by --cell-timeout."
            raise StageError(line) from error
        except DeadKernelError as error:
            line = "The kernel was killed, probably out of memory. Free some memory and run again."
            raise StageError(line) from error
        except (RuntimeError, OSError, ZMQError) as error:
            line = " ".join(str(error).split())
            raise StageError(f"the kernel did not start: {line}") from error
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]
    if count := sum(not cell.execution_count for cell in code):
        left = f"{count} cell{'s' * (count > 1)} did not run"
        raise StageError(f"The notebook stopped early: {left}. Look for exit() or an interrupt.")
    executed = read(result)
    if executed is None or executed == before:  # a new result has at least another time
        raise StageError("The notebook saved no result. Its last code cell must call save().")
    if executed.state != "done":
        raise StageError(executed.reason)
    return executed
