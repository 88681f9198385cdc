"""What is held in memory: a row for each document and each ad, and the weights of labels.

The weight of a label (topic, entity or category) in a document is its confidence there times
ln(N / documents with the label), where N is the largest document id plus one, as the number of rows
of the sparse matrix that NVTabular's `ColumnSimilarity` (metric "tfidf") builds. The similarity of
two documents is the cosine of their weights, and 0 if one has no labels or none of any weight
(where NVTabular may divide by 0).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from helpers.errors import DataError
from helpers.models.widedeep.features import HOTNESS, MULTI_HOT
from helpers.models.widedeep.raw.files import Files, refuse_repeated
from helpers.models.widedeep.raw.hashing import hashed

if TYPE_CHECKING:
    from polars import DataFrame, Expr, LazyFrame, Series
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped, unused-ignore]

KINDS = {"topics": "topic_id", "entities": "entity_id", "categories": "category_id"}
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$"


@dataclass(frozen=True)
class Tables:
    """The documents of all files and the ads, whose columns from their document end in `_promo`.

    A document has source_id, publisher_id, published (milliseconds since 1970) and, for each kind
    of label, the first three hashed (`topic_id_list`) and its row in the weights (`topics_row`).
    """

    documents: "DataFrame"
    ads: "DataFrame"
    weights: "dict[str, csr_matrix]"  # kind -> [documents + 1, labels]; the last row is empty

    def similarity(self, kind: str) -> "Expr":
        """Give the cosine (Float32) of a row's two documents, by their rows in the weights."""
        import polars as pl

        weights = self.weights[kind]
        nothing = weights.shape[0] - 1

        def cosines(pair: "Sequence[Series]") -> "Series":
            left, right = (weights[rows.fill_null(nothing).to_numpy()] for rows in pair)
            return pl.Series(left.multiply(right).sum(axis=1).A1, dtype=pl.Float32)

        pair = [f"{kind}_row", f"{kind}_row_promo"]
        return pl.map_batches(pair, cosines, pl.Float32, is_elementwise=True)


def read_tables(files: Files) -> Tables:
    """Read the five files of documents and ads."""
    import polars as pl

    documents, weights = _read_meta(files), {}
    for kind in KINDS:
        labels, weights[kind] = read_labels(files.scan(f"documents_{kind}"), kind)
        documents = documents.join(labels, on="document_id", how="full", coalesce=True)
    promoted = documents.select(pl.exclude(MULTI_HOT).name.suffix("_promo"))
    ads = files.scan("promoted_content").rename({"document_id": "document_id_promo"}).collect()
    ads = ads.join(promoted, on="document_id_promo", how="left", maintain_order="left")
    refuse_repeated(ads, "ad_id", files.paths["promoted_content"])
    return Tables(documents, ads, weights)


def _read_meta(files: Files) -> "DataFrame":
    """Read documents_meta.csv; a document without a publisher gets one of its own, as NVIDIA's.

    A time that no calendar has counts as missing; raises DataError for one of another form.
    """
    import polars as pl

    path = files.paths["documents_meta"]
    meta = files.scan("documents_meta").collect(engine="streaming")
    times = meta["publish_time"]
    if len(wrong := times.filter(~times.str.contains(TIME))):
        raise DataError(f"{path} is damaged: publish_time {wrong[0][:40]!r}")
    refuse_repeated(meta, "document_id", path)
    publisher = pl.col("publisher_id").cast(pl.Int64)
    own = publisher.is_null().cum_sum() + publisher.max().fill_null(0) + 1
    seconds = pl.col("publish_time").str.slice(0, 19)
    published = seconds.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    return meta.select(
        "document_id",
        "source_id",
        pl.coalesce(publisher, own),
        published=published.dt.timestamp("ms"),
    )


def read_labels(table: "LazyFrame", kind: str) -> "tuple[DataFrame, csr_matrix]":
    """Give the documents of a table (document_id, label, confidence_level), and the weights."""
    import polars as pl
    from scipy.sparse import csr_matrix

    feature = f"{KINDS[kind]}_list"
    label = hashed(pl.col(KINDS[kind])).alias(feature)
    rows = table.select("document_id", label, "confidence_level").collect(engine="streaming")
    codes = rows.select(pl.col(feature).unique().sort()).with_row_index("code")
    rows = rows.join(codes, on=feature, how="left", maintain_order="left")
    rows = rows.sort("document_id", maintain_order=True)
    first = (pl.col(feature).head(HOTNESS) % MULTI_HOT[feature][0]).cast(pl.Int32)
    documents = rows.group_by("document_id", maintain_order=True).agg(first, pl.len())
    counts, code = documents["len"].to_numpy(), rows["code"].to_numpy().astype(np.int32)
    starts = np.cumsum(np.append(0, counts))
    inverse_frequency = np.log((float(rows["document_id"][-1]) + 1) / np.bincount(code))
    weights = rows["confidence_level"].to_numpy() * inverse_frequency[code]
    lengths = np.sqrt(np.add.reduceat(weights**2, starts[:-1]))
    weights /= np.repeat(np.where(lengths > 0, lengths, 1), counts)
    shape = (len(documents) + 1, len(codes))
    matrix = csr_matrix((weights, code, np.append(starts, starts[-1])), shape)
    matrix.sum_duplicates()
    return documents.drop("len").with_row_index(f"{kind}_row"), matrix
