"""The user's preprocessing on the server: the first model of an ensemble, before the network."""

import ast
import json
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.models import Config, Part, Session
from helpers.models._own import before

if TYPE_CHECKING:
    from helpers.models._own import Own

FOLDER = "preprocessing"


@dataclass(eq=False)
class Preprocessing:
    """The function of a module in the folder `preprocessing` of a model's package."""

    own: "Own"
    FOLDER: str = FOLDER
    CODE: Path = Path(before.__file__)
    RUNTIME: tuple[str, ...] = ("numpy",)

    def parts(self, config: Config) -> tuple[Part, Part]:
        """Describe the function and the network; both may have tensors of the same name."""
        prepared = {f"prepared_{t.name}": t for t in self.own.network_inputs(config)}
        requests = {t.name: t for t in self.own.inputs(config)}
        outputs = {t.name: t for t in self.own.outputs(config)}
        first = Part(f"{config.model}_{FOLDER}", requests, prepared)
        return first, Part(f"{config.model}_network", prepared, outputs)

    def write(self, config: Config, checkpoint: Path, path: Path) -> None:
        """Copy the module and the files beside it."""
        shutil.copytree(self._folder, path, ignore=shutil.ignore_patterns("__pycache__"))
        (path / before.FILE).write_text(json.dumps(self._function))

    def load(self, path: Path, threads: int, device: str) -> Session:
        return before.load(path, threads, device)

    def configure(self, config: Config, path: Path) -> tuple[str, ...]:
        """Return what the module imports beside the standard library."""
        return imports(path / f"{self._function.partition(':')[0]}.py")

    def codec_in(self, path: Path) -> None:
        """Return None: samples need no encoding."""

    def mapped(self, config: Config, checkpoint: Path) -> Session:
        """Load the function from the package itself, as a client would call it."""
        return before.Preprocessing(self._folder, self._function)

    @property
    def _folder(self) -> Path:
        return self.own.folder / FOLDER

    @property
    def _function(self) -> str:
        return self.own.description.preprocessing


def imports(module: Path) -> tuple[str, ...]:
    """List the distributions that a module imports, such as pillow for `PIL`."""
    names = packages_distributions()
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return tuple(names.get(name, [name])[0] for name in sorted(found - sys.stdlib_module_names))
