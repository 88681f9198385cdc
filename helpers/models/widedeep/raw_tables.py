"""What is held in memory of outbrain's documents and ads: a row each, found by its id."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.errors import DataError
from helpers.models.widedeep.features import MULTI_HOT
from helpers.models.widedeep.raw_files import Files
from helpers.models.widedeep.raw_hashing import MISSING
from helpers.models.widedeep.raw_similarity import Index, Labels

if TYPE_CHECKING:
    from polars import Series

Integers = NDArray[np.int64]
NEVER = np.iinfo(np.int64).min  # stands for a time of publication that is missing
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$"


@dataclass(frozen=True)
class Documents:
    """What documents_meta.csv says; the last row is of a document that it lacks."""

    index: Index
    source: Integers  # [documents + 1]
    publisher: Integers  # [documents + 1]
    published: Integers  # [documents + 1], milliseconds since 1970


@dataclass(frozen=True)
class Ads:
    """What promoted_content.csv says of each ad, and documents_meta.csv of its document."""

    index: Index
    keys: dict[str, Integers]  # ad_id, document_id_promo and so on -> [ads]
    published: Integers  # [ads]: when the document was, milliseconds since 1970

    def __len__(self) -> int:
        return len(self.published)


def read_documents(files: Files) -> Documents:
    """Read documents_meta.csv; a document without a publisher gets one of its own, as NVIDIA's."""
    import polars as pl

    table = files.table("documents_meta")
    path = files.path("documents_meta")
    lacking = pl.col("publisher_id").is_null()
    own = lacking.cum_sum() + pl.col("publisher_id").max().fill_null(0) + 1
    table = table.with_columns(
        pl.col("source_id").fill_null(MISSING).cast(pl.Int64),
        pl.when(lacking).then(own).otherwise(pl.col("publisher_id")).cast(pl.Int64),
        _milliseconds(table["publish_time"], path),
    )
    index, table = _indexed(table, "document_id", path)
    columns = {
        name: np.append(table[name].to_numpy(), missing)
        for name, missing in (
            ("source_id", MISSING),
            ("publisher_id", MISSING),
            ("publish_time", NEVER),
        )
    }
    return Documents(index, *columns.values())


def read_ads(files: Files, documents: Documents) -> Ads:
    """Read promoted_content.csv."""
    index, table = _indexed(
        files.table("promoted_content"), "ad_id", files.path("promoted_content")
    )
    rows = documents.index.find(table["document_id"].to_numpy())
    keys = {
        "ad_id": index.ids.astype(np.int64),
        "document_id_promo": table["document_id"].to_numpy().astype(np.int64),
        "campaign_id": table["campaign_id"].to_numpy().astype(np.int64),
        "advertiser_id": table["advertiser_id"].to_numpy().astype(np.int64),
        "source_id_promo": documents.source[rows],
        "publisher_id_promo": documents.publisher[rows],
    }
    return Ads(index, keys, documents.published[rows])


def read_labels(files: Files) -> dict[str, Labels]:
    """Read the three files of labels, by the name of the multi-hot feature."""
    names = {
        "topic_id_list": "documents_topics",
        "entity_id_list": "documents_entities",
        "category_id_list": "documents_categories",
    }
    return {key: Labels(files.table(name), MULTI_HOT[key][0]) for key, name in names.items()}


def _indexed(table: Any, key: str, path: Any) -> tuple[Index, Any]:
    """Sort a table by its key; raise DataError for a key that comes twice."""
    twice = table[key].is_duplicated()
    if twice.any():
        raise DataError(f"{path} is damaged: {key} {table[key].filter(twice)[0]} comes twice")
    table = table.sort(key)
    return Index(table[key].to_numpy()), table


def _milliseconds(times: "Series", path: Any) -> "Series":
    """Read times such as 2016-06-05 00:00:00 as milliseconds since 1970.

    A time that no calendar has counts as missing; what has not even the form is damage.
    """
    import polars as pl

    wrong = ~times.str.contains(TIME).fill_null(True)
    if wrong.any():
        raise DataError(f"{path} is damaged: publish_time {times.filter(wrong)[0][:40]!r}")
    parsed = times.str.slice(0, 19).str.to_datetime(
        "%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False
    )
    return parsed.cast(pl.Int64).fill_null(NEVER)
