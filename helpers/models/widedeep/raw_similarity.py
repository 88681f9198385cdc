"""The labels of documents (topics, entities or categories): which they are, and how alike two are.

A label stands in a document with a confidence. The weight of label t in document d is confidence
(d, t) x ln(N / documents with t), where N is the largest document id plus one, as the number of
rows of the sparse matrix that NVTabular's `ColumnSimilarity` (metric "tfidf") builds; the
similarity is the cosine of two documents' weights. Two documents of which one has no labels, or
none of any weight, have similarity 0 (where NVTabular may divide by 0).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from helpers.models.widedeep.features import HOTNESS, PAD
from helpers.models.widedeep.raw_hashing import hash_numbers, hash_texts

if TYPE_CHECKING:
    from polars import DataFrame, Series

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """Where an id stands in a table: `ids` are sorted and each comes once."""

    ids: NDArray[Any]  # [rows]

    def find(self, ids: NDArray[Any]) -> Integers:
        """Give the row of each id, and the number of rows for one that is not there."""
        ids = ids.astype(self.ids.dtype, copy=False)  # else the whole table would be converted
        rows = np.searchsorted(self.ids, ids)
        there = self.ids[np.minimum(rows, len(self.ids) - 1)] == ids
        return np.asarray(np.where(there, rows, len(self.ids)), dtype=np.int64)


class Labels:
    """The labels of one kind of every document."""

    def __init__(self, table: "DataFrame", size: int) -> None:
        """Take the rows (document_id, label, confidence_level); hash labels to `size` rows."""
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped, unused-ignore]

        order = np.argsort(table["document_id"].to_numpy(), kind="stable")
        documents = table["document_id"].to_numpy()[order]
        codes, hashes = _coded(table[table.columns[1]], size)
        codes = codes[order]
        ids, rows, counts = np.unique(documents, return_inverse=True, return_counts=True)
        self._index, starts = Index(ids), np.concatenate([[0], np.cumsum(counts)])

        rank = np.arange(len(rows)) - starts[rows]
        kept = rank < HOTNESS
        self._first = np.full((len(ids) + 1, HOTNESS), PAD, dtype=np.int32)
        self._first[rows[kept], rank[kept]] = hashes[codes[kept]]
        self._held = np.append(np.minimum(counts, HOTNESS), 0)

        inverse_frequency = np.log((float(ids[-1]) + 1) / np.bincount(codes))
        weights = table["confidence_level"].to_numpy()[order] * inverse_frequency[codes]
        lengths = np.sqrt(np.bincount(rows, weights**2))[rows]
        weights = np.divide(weights, lengths, out=np.zeros_like(weights), where=lengths > 0)
        self._weights = csr_matrix(
            (weights, codes, np.append(starts, starts[-1])), shape=(len(ids) + 1, len(hashes))
        )
        self._weights.sum_duplicates()

    def similarity(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float32]:
        """Give the cosine of each pair of documents, by their ids, all [pairs]."""
        left, right = (self._weights[self._index.find(ids)] for ids in (one, other))
        return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float32).ravel()

    def lists(self, documents: NDArray[Any]) -> "Series":
        """Give each document's first three labels in the file's order, hashed: lists of int32."""
        import polars as pl

        rows = self._index.find(documents)
        frame = pl.DataFrame({"labels": self._first[rows], "held": self._held[rows]})
        return frame.select(pl.col("labels").arr.to_list().list.head("held")).to_series()


def _coded(labels: "Series", size: int) -> tuple[Integers, NDArray[np.int32]]:
    """Number the labels from 0; give each row's number, and each number's hash."""
    import polars as pl

    known = labels.unique().sort()
    numbers = pl.DataFrame([known]).with_row_index("code")
    rows = labels.to_frame().join(numbers, on=labels.name, how="left", maintain_order="left")
    hashed = hash_numbers if known.dtype.is_integer() else hash_texts
    return rows["code"].to_numpy().astype(np.int64), hashed(known.to_numpy(), size)
