"""Kaggle's outbrain-click-prediction, from its CSV files to the rows that the network takes."""

from helpers.models.widedeep.raw.prepare import holds_raw, prepare_raw

__all__ = ["holds_raw", "prepare_raw"]
