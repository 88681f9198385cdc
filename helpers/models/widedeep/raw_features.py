"""The 29 features of joined rows: what each is made of."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.models.widedeep.features import CLICKED, DISPLAY, MULTI_HOT, NAMES, ONE_HOT
from helpers.models.widedeep.raw_hashing import hash_numbers
from helpers.models.widedeep.raw_similarity import Labels
from helpers.models.widedeep.raw_statistics import COUNTED, UNKNOWN, Statistics, ages
from helpers.models.widedeep.raw_tables import Ads, Documents, Integers

if TYPE_CHECKING:
    from polars import DataFrame

SIMILARITIES = {
    "topic_id_list": "document_id_document_id_promo_sim_topics",
    "entity_id_list": "document_id_document_id_promo_sim_entities",
    "category_id_list": "document_id_document_id_promo_sim_categories",
}


@dataclass(frozen=True)
class Tables:
    """What is held of ads and documents."""

    ads: Ads
    documents: Documents
    labels: dict[str, Labels]  # by the name of the multi-hot feature

    def ages(self, rows: "DataFrame") -> dict[str, Integers]:
        """Give the age in days of both documents of each row at its event: [rows] each."""
        place = self.documents.index.find(rows["document_id"].to_numpy())
        published = {
            "publish_time_days_since_published": self.documents.published[place],
            "publish_time_promo_days_since_published": self.ads.published[rows["ad"].to_numpy()],
        }
        timestamps = rows["timestamp"].to_numpy()
        return {name: ages(timestamps, times) for name, times in published.items()}

    def features(self, rows: "DataFrame", learnt: Statistics) -> "DataFrame":
        """Give the features of each row, whether it was clicked, and its display, in this order."""
        import polars as pl

        ad, document = rows["ad"].to_numpy(), rows["document_id"].to_numpy()
        place = self.documents.index.find(document)
        ids: dict[str, Any] = {key: values[ad] for key, values in self.ads.keys.items()}
        ids["document_id"], ids["platform"] = document, rows["platform"].to_numpy()
        ids["source_id"] = self.documents.source[place]
        ids["publisher_id"] = self.documents.publisher[place]
        columns: dict[str, Any] = {
            name: hash_numbers(ids[name], size) if name in ids else rows[name]
            for name, (size, _) in ONE_HOT.items()
        }
        for name in MULTI_HOT:
            columns[name] = self.labels[name].lists(document)
            columns[SIMILARITIES[name]] = self.labels[name].similarity(
                document, ids["document_id_promo"]
            )
        columns |= {f"{key}_ctr": rates[ad] for key, rates in learnt.rates.items()}
        columns |= {f"{key}_count": learnt.counts[key][ad] for key in COUNTED}
        for name, days in self.ages(rows).items():
            filled = np.where(days == UNKNOWN, learnt.medians[name], days)
            columns[name] = np.log1p(filled).astype(np.float32)
        columns |= {name: rows[name].cast(pl.Int32) for name in (CLICKED, DISPLAY)}
        return pl.DataFrame({name: columns[name] for name in (*NAMES, CLICKED, DISPLAY)})
