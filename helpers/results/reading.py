"""Reading results back."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from helpers.config import StageConfig
from helpers.results.types import Result, Row
from helpers.store import outputs

Results = Mapping[str, Mapping[str, Result]]  # experiment -> stage -> result


def read(path: Path) -> Result | None:
    """Read a result; None if there is none, or it was written by another release."""
    try:
        return Result.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def of_model(config: StageConfig) -> Results:
    """Read the results of all experiments of a model; what is not there is left out."""
    base = outputs() / config.target / config.model
    return {
        name: {
            path.stem: result
            for path in sorted((base / name).glob("*.json"))
            if (result := read(path))
        }
        for name in config.experiments
    }


def rows(results: Iterable[Result]) -> list[Row]:
    """Collect the measured rows of many results."""
    return [row for result in results if result.measurement for row in result.measurement.rows]
