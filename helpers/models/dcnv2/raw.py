"""The public data of DCNv2: the Criteo 1TB click logs, as for all of this family."""

from helpers.models._criteo.raw import holds_raw, prepare_raw

__all__ = ["holds_raw", "prepare_raw"]
