"""What `feature_spec.yaml` says of a split-binary folder: features, their tables and their files.

The format is that of NVIDIA's DLRM and DCNv2 (its FeatureSpec): `feature_spec` gives each feature's
type and the cardinality of a categorical one, `channel_spec` the order of the features,
`source_spec` the files of each part, `metadata` what a writer likes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from helpers.errors import DataError
from helpers.models._criteo.tables import CATEGORICAL, NUMERICAL

FILE = "feature_spec.yaml"
PARTS = ("train", "test")
LAYOUT = f"expected a split-binary folder: {FILE}, train and test"
NUMERICAL_FILE, LABEL_FILE = "numerical.bin", "label.bin"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Feature(_Strict):
    dtype: Literal["bool", "int8", "int16", "int32", "float16"]
    cardinality: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    hotness: Literal[1] = 1  # ids of a sample: a synthetic set may have more, but not in this type


class _Source(_Strict):
    type: Literal["split_binary"]
    features: Annotated[list[str], Field(min_length=1)]
    files: Annotated[list[str], Field(min_length=1, max_length=1)]


class _Channels(_Strict):
    categorical: Annotated[list[str], Field(min_length=CATEGORICAL, max_length=CATEGORICAL)]
    numerical: Annotated[list[str], Field(min_length=NUMERICAL, max_length=NUMERICAL)]
    label: Annotated[list[str], Field(min_length=1, max_length=1)]


class _File(_Strict):
    feature_spec: dict[str, _Feature]
    source_spec: dict[str, list[_Source]]
    channel_spec: _Channels
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Files:
    """Where the features of one part lie."""

    categorical: tuple[Path, ...]  # one of each feature, in the order of the tables
    numerical: Path
    label: Path


@dataclass(frozen=True)
class Spec:
    """What a checked `feature_spec.yaml` says."""

    cardinalities: tuple[int, ...]  # rows of the tables, in their order
    dtypes: tuple[str, ...]  # of the ids, likewise
    parts: dict[str, Files]  # of "train" and "test"
    metadata: dict[str, Any]


def categorical_files() -> list[str]:
    """Name the files of the categorical features, in the order of the tables."""
    return [f"cat_{place}.bin" for place in range(CATEGORICAL)]


def id_type(cardinality: int) -> str:
    """Give the smallest of int8, int16 and int32 whose largest number exceeds `cardinality`."""
    fits = (name for name in ("int8", "int16", "int32") if cardinality < np.iinfo(name).max)
    return next(fits)


def write(folder: Path, cardinalities: tuple[int, ...], metadata: dict[str, Any]) -> Spec:
    """Write `feature_spec.yaml` for tables of these sizes, with NVIDIA's names, and read it."""
    ids = categorical_files()  # which are NVIDIA's names of the features, too
    numbers = [f"num_{place}" for place in range(NUMERICAL)]
    features: dict[str, Any] = {
        name: {"dtype": id_type(rows), "cardinality": rows}
        for name, rows in zip(ids, cardinalities, strict=True)
    }
    features |= {name: {"dtype": "float16"} for name in numbers} | {"label": {"dtype": "bool"}}
    groups = {NUMERICAL_FILE: numbers, LABEL_FILE: ["label"]} | {name: [name] for name in ids}
    content = {
        "feature_spec": features,
        "source_spec": {
            part: [
                {"type": "split_binary", "features": list(names), "files": [f"{part}/{file}"]}
                for file, names in groups.items()
            ]
            for part in PARTS
        },
        "channel_spec": {"categorical": list(ids), "numerical": list(numbers), "label": ["label"]},
        "metadata": metadata,
    }
    (folder / FILE).write_text(yaml.safe_dump(content))
    return read(folder)


def read(folder: Path) -> Spec:
    """Read and check `feature_spec.yaml`; the files that it names are not opened.

    Raises DataError, naming the file, the feature and what was expected.
    """
    path = folder / FILE
    content = _load(path)
    features, channels = content.feature_spec, content.channel_spec
    named = [*channels.categorical, *channels.numerical, *channels.label]
    for name in named:
        if named.count(name) > 1:
            raise DataError(f"{path}: channel_spec names {name} twice")
        if name not in features:
            raise DataError(f"{path}: channel_spec names {name}, which feature_spec lacks")
    surplus = [name for name in features if name not in named]
    if surplus:
        raise DataError(f"{path}: feature_spec has {surplus[0]}, which is in no channel")
    for name in channels.categorical:
        _check_table(path, name, features[name])
    for names, dtypes in (
        (channels.numerical, ("float16",)),
        (channels.label, ("bool", "int8")),
    ):
        for name in names:
            if (dtype := features[name].dtype) not in dtypes:
                raise DataError(f"{path}: {name} is {dtype} and should be {' or '.join(dtypes)}")
    return Spec(
        tuple(features[name].cardinality or 0 for name in channels.categorical),
        tuple(features[name].dtype for name in channels.categorical),
        {part: _files(path, content, part) for part in PARTS},
        content.metadata or {},
    )


def _load(path: Path) -> _File:
    if not path.is_file():
        raise DataError(f"{path.parent} holds no {FILE}: {LAYOUT}")
    try:
        return _File.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise DataError(f"{path}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no YAML: {' '.join(str(error).split())[:120]}") from None


def _check_table(path: Path, name: str, feature: _Feature) -> None:
    if feature.cardinality is None:
        raise DataError(f"{path}: {name} is categorical and has no cardinality")
    if feature.dtype not in ("int8", "int16", "int32"):
        raise DataError(f"{path}: {name} is {feature.dtype} and should be int8, int16 or int32")
    if feature.cardinality - 1 > np.iinfo(feature.dtype).max:
        raise DataError(
            f"{path}: {name} is {feature.dtype}, too small for a cardinality of "
            f"{feature.cardinality:,}"
        )


def _files(path: Path, content: _File, part: str) -> Files:
    """Find the file of every feature of a part."""
    if part not in content.source_spec:
        raise DataError(f"{path}: source_spec has no {part}")
    channels, found = content.channel_spec, {}
    for source in content.source_spec[part]:
        first = source.features[0]
        together = channels.numerical if first in channels.numerical else [first]
        if source.features != together:
            raise DataError(
                f"{path}: {source.files[0]} should hold "
                + ("the numerical features in their order" if len(together) > 1 else "one feature")
            )
        if first in found:
            raise DataError(f"{path}: source_spec.{part} has {first} twice")
        found[first] = path.parent / source.files[0]
    wanted = [*channels.categorical, channels.numerical[0], *channels.label]
    for name in wanted:
        if name not in found:
            raise DataError(f"{path}: source_spec.{part} has no file of {name}")
    *ids, numbers, label = (found[name] for name in wanted)
    return Files(tuple(ids), numbers, label)
