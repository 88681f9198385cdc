"""The tables in memory: a row for each document and each ad, and the weights of labels.

The weight of a label (topic, entity or category) in a document is its confidence there times ln(N /
documents with the label). N is the largest document id plus one: the number of rows of the sparse
matrix of NVTabular's `ColumnSimilarity` (metric "tfidf"). The similarity of two documents is the
cosine of their weights. It is 0 if one has no labels or none of any weight, where NVTabular may
divide by 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix  # type: ignore[import-untyped, unused-ignore]

from helpers.errors import DataError
from helpers.models._arrays import GOLDEN, mix
from helpers.models.widedeep.features import HOTNESS, MULTI_HOT
from helpers.models.widedeep.raw.files import Files, refuse_repeated

KINDS = {"topics": "topic_id", "entities": "entity_id", "categories": "category_id"}
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$"
MISSING = -1  # stands for a number that is missing, and is hashed as it is


@dataclass(frozen=True)
class Tables:
    """The documents of all files and the ads, whose columns from their document end in `_promo`.

    A document has source_id, publisher_id and published (milliseconds since 1970). For each kind of
    label it has the first three hashed (`topic_id_list`) and its row in the weights (`topics_row`).
    """

    documents: pl.DataFrame
    ads: pl.DataFrame
    weights: dict[str, csr_matrix]  # kind -> [documents + 1, labels]; the last row is empty

    def similarity(self, kind: str) -> pl.Expr:
        """Return the cosine (Float32) of a row's two documents, by their rows in the weights."""
        weights = self.weights[kind]
        nothing = weights.shape[0] - 1

        def cosines(pair: Sequence[pl.Series]) -> pl.Series:
            left, right = (weights[rows.fill_null(nothing).to_numpy()] for rows in pair)
            return pl.Series(left.multiply(right).sum(axis=1).A1, dtype=pl.Float32)

        pair = [f"{kind}_row", f"{kind}_row_promo"]
        return pl.map_batches(pair, cosines, pl.Float32, is_elementwise=True)


def read_tables(files: Files) -> Tables:
    """Read the five files of documents and ads."""
    documents, weights = _read_meta(files), {}
    for kind in KINDS:
        labels, weights[kind] = read_labels(files.read(f"documents_{kind}"), kind)
        documents = documents.join(labels, on="document_id", how="full", coalesce=True)
    promoted = documents.select(pl.exclude(MULTI_HOT).name.suffix("_promo"))
    ads = pl.concat(files.read("promoted_content")).rename({"document_id": "document_id_promo"})
    ads = ads.join(promoted, on="document_id_promo", how="left", maintain_order="left")
    refuse_repeated(ads, "ad_id", files.paths["promoted_content"])
    return Tables(documents, ads, weights)


def _read_meta(files: Files) -> pl.DataFrame:
    """Read documents_meta.csv; a document without a publisher gets one of its own, as NVIDIA's.

    A time that no calendar has counts as missing; raises DataError for one of another form.
    """
    path = files.paths["documents_meta"]
    meta = pl.concat(files.read("documents_meta"))
    times = meta["publish_time"]
    if len(wrong := times.filter(~times.str.contains(TIME))):
        raise DataError(f"{path} is damaged: publish_time {wrong[0][:40]!r}")
    refuse_repeated(meta, "document_id", path)
    publisher = pl.col("publisher_id").cast(pl.Int64)
    substitute = publisher.is_null().cum_sum() + publisher.max().fill_null(0) + 1
    seconds = pl.col("publish_time").str.slice(0, 19)
    published = seconds.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    published = published.dt.timestamp("ms").alias("published")
    return meta.select("document_id", "source_id", pl.coalesce(publisher, substitute), published)


def read_labels(blocks: Iterable[pl.DataFrame], kind: str) -> tuple[pl.DataFrame, csr_matrix]:
    """Return the documents of a table (document_id, label, confidence_level), and the weights."""
    feature = f"{KINDS[kind]}_list"
    label = hashed(pl.col(KINDS[kind])).alias(feature)
    rows = pl.concat(block.select("document_id", label, "confidence_level") for block in blocks)
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


def row_of(ids: pl.Expr, size: int) -> pl.Expr:
    """Return the row of an embedding's table, 0 to `size` - 1 (Int32), of each number or text.

    NVIDIA's pipeline uses cuDF's hash, which exists on a GPU only. This one gives other rows,
    equally spread, and the same ones on every machine and with every version of every library.
    """
    return (hashed(ids) % size).cast(pl.Int32)


def hashed(ids: pl.Expr) -> pl.Expr:
    """Return the hash (UInt64) of each whole number or text."""
    return ids.map_batches(_hash, return_dtype=pl.UInt64, is_elementwise=True)


def _hash(ids: pl.Series) -> pl.Series:
    """Hash numbers, as 64 bits in two's complement, with the first output of SplitMix64, whose seed
    is the number. Hash texts with the first 8 bytes of BLAKE2b as a little-endian number, a missing
    text as an empty one.
    """
    if ids.dtype == pl.String:
        texts = ids.fill_null("")
        distinct = texts.unique()
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in distinct)
        hashes = pl.Series(np.frombuffer(digests, dtype="<u8"))
        return texts.replace_strict(distinct, hashes, return_dtype=pl.UInt64)
    mixed = ids.fill_null(MISSING).cast(pl.Int64).to_numpy().view(np.uint64)
    return pl.Series(ids.name, mix(mixed + GOLDEN))
