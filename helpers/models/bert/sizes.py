"""Sizes of the variants of BERT.

"large" and "base" are those of Devlin et al. (section 3). The 30,522 rows of the vocabulary are
rounded up to a multiple of 8, as in NVIDIA's checkpoint. "small" is for the generated sets.
"""

from dataclasses import dataclass

POSITIONS = 512


@dataclass(frozen=True)
class Size:
    """Layers, hidden width, attention heads and rows of the word embedding."""

    layers: int
    hidden: int
    heads: int
    rows: int


SIZES = {
    "small": Size(layers=4, hidden=256, heads=4, rows=1280),
    "base": Size(layers=12, hidden=768, heads=12, rows=30528),
    "large": Size(layers=24, hidden=1024, heads=16, rows=30528),
}
