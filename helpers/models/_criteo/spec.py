"""The `feature_spec.yaml` of a split-binary folder: features, their tables and their files.

The format is that of NVIDIA's DLRM and DCNv2 (its FeatureSpec): `feature_spec` has each feature's
type, and the cardinality of a categorical one. `channel_spec` has the order of the features,
`source_spec` the files of each part, `metadata` anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helpers.errors import DataError, one_line
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL

FILE = "feature_spec.yaml"
PARTS = ("train", "test")
TYPES = {
    "categorical": ("int8", "int16", "int32"),
    "numerical": ("float16",),
    "label": ("bool", "int8"),
}
NUMBERS = [f"num_{feature}" for feature in range(NUMERICAL)]
IDS = [f"cat_{feature}.bin" for feature in range(CATEGORICAL)]
# The files of a part that is written here and the features in each, by NVIDIA's names.
FEATURES_OF = {"numerical.bin": NUMBERS, "label.bin": ["label"], **{name: [name] for name in IDS}}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Feature(_Strict):
    dtype: str
    cardinality: int | None = None
    hotness: Literal[1] = 1  # ids of a sample; only synthetic sets of another type have more


class _Source(_Strict):
    type: Literal["split_binary"]
    features: list[str]
    files: Annotated[list[str], Field(min_length=1, max_length=1)]


class _Sources(_Strict):
    train: list[_Source]
    test: list[_Source]


class _Channels(_Strict):
    categorical: Annotated[list[str], Field(min_length=CATEGORICAL, max_length=CATEGORICAL)]
    numerical: Annotated[list[str], Field(min_length=NUMERICAL, max_length=NUMERICAL)]
    label: Annotated[list[str], Field(min_length=1, max_length=1)]


class _File(_Strict):
    feature_spec: dict[str, _Feature]
    source_spec: _Sources
    channel_spec: _Channels
    metadata: dict[str, object] | None = None


@dataclass(frozen=True)
class Spec:
    """The content of a valid `feature_spec.yaml`."""

    cardinalities: tuple[int, ...]  # rows of the tables, in their order
    dtypes: tuple[str, ...]  # of the ids, likewise
    parts: dict[str, list[Path]]  # files of "train" and "test": the numbers, the label, each id
    metadata: Mapping[str, object]


def id_type(cardinality: int) -> str:
    """Return the smallest of int8, int16 and int32 whose largest number exceeds `cardinality`."""
    return next(name for name in TYPES["categorical"] if cardinality < np.iinfo(name).max)


def write(folder: Path, cardinalities: tuple[int, ...], metadata: Mapping[str, object]) -> None:
    """Write `feature_spec.yaml` for tables of these sizes, with NVIDIA's names."""
    ids = {
        name: {"dtype": id_type(rows), "cardinality": rows}
        for name, rows in zip(IDS, cardinalities, strict=True)
    }
    numbers = {name: {"dtype": "float16"} for name in NUMBERS}
    sources = {
        part: [
            {"type": "split_binary", "features": list(names), "files": [f"{part}/{file}"]}
            for file, names in FEATURES_OF.items()
        ]
        for part in PARTS
    }
    content = {
        "feature_spec": {**ids, **numbers, "label": {"dtype": "bool"}},
        "source_spec": sources,
        "channel_spec": {"categorical": list(ids), "numerical": list(numbers), "label": ["label"]},
        "metadata": dict(metadata),
    }
    (folder / FILE).write_text(yaml.safe_dump(content))


def read(folder: Path) -> Spec:
    """Read and check `feature_spec.yaml`, not the files that it names; raise DataError."""
    path = folder / FILE
    if not path.is_file():
        hint = f"Use a split-binary folder, with {FILE}, train and test."
        raise DataError(f"{folder} has no {FILE}. {hint}")
    try:
        content = _File.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error)}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not YAML: {one_line(error, 120)}") from None
    channels, features = content.channel_spec.model_dump(), content.feature_spec
    named = [name for names in channels.values() for name in names]
    for name in [*named, *features]:
        if named.count(name) != 1 or name not in features:
            raise DataError(f"{path}: {name} should be once in feature_spec and in channel_spec")
    for channel, dtypes in TYPES.items():
        for name in channels[channel]:
            if (dtype := features[name].dtype) not in dtypes:
                raise DataError(f"{path}: {name} is {dtype} and should be {' or '.join(dtypes)}")
    tables = {name: features[name] for name in channels["categorical"]}
    for name, table in tables.items():
        if not 0 <= (table.cardinality or 0) - 1 <= np.iinfo(table.dtype).max:
            text = f"is {table.dtype} and has an impossible cardinality, {table.cardinality}"
            raise DataError(f"{path}: {name} {text}")
    return Spec(
        tuple(table.cardinality or 0 for table in tables.values()),
        tuple(table.dtype for table in tables.values()),
        {part: _files(path, content, part) for part in PARTS},
        content.metadata or {},
    )


def first_fault(error: ValidationError) -> str:
    """Describe the first fault and its location in one line."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _files(path: Path, content: _File, part: str) -> list[Path]:
    """Find the files of a part, in the order of `Spec.parts`."""
    channels, paths = content.channel_spec, []
    for names in (channels.numerical, channels.label, *([name] for name in channels.categorical)):
        held = [source for source in getattr(content.source_spec, part) if source.features == names]
        if len(held) != 1:
            text = f"should have one file of {', '.join(names)}, but has {len(held)}"
            raise DataError(f"{path}: source_spec.{part} {text}")
        paths.append(path.parent / held[0].files[0])
    return paths
