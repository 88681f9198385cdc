"""How many features a sample has, and how many rows the table of each categorical one has.

T15, T3 and T0 are the lists of NVIDIA's preprocessing of the Criteo 1TB click logs, which joins the
ids that come fewer than 15, 3 or 1 times into one; the order of the features in T15 is another one.
"""

from helpers.errors import ParameterError

NUMERICAL = 13
CATEGORICAL = 26
DIMENSION = 128  # of every embedding
CAP = 10_000  # rows of a table that a laptop has room for

_T15 = """
    7912889 33823 17139 7339 20046 4 7105 1382 63 5554114 582469 245828 11 2209 10667 104 4 968 15
    8165896 2675940 7156453 302516 12022 97 35
"""
_T3 = """
    45833188 36747 1572176 345139 11 2209 11268 128 4 975 15 48937457 17246 11316796 40094537 452104
    12607 105 36 7414 20244 4 7115 1442 63 29275261
"""
_T0 = """
    227605432 39061 3067956 405283 11 2209 11939 155 4 977 15 292775614 17296 40790948 187188510
    590152 12974 109 37 7425 20266 4 7123 1544 64 130229467
"""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


# The first is the CPU target's: the tables of T15, none above CAP.
TABLES: dict[str, tuple[int, ...]] = {
    "T15-10k": tuple(min(rows, CAP) for rows in _numbers(_T15)),
    "T15": _numbers(_T15),
    "T3": _numbers(_T3),
    "T0": _numbers(_T0),
}


def sizes(variant: str) -> tuple[int, ...]:
    """Give the rows of the 26 tables of `variant`; raise ParameterError if there is no such one."""
    if variant not in TABLES:
        raise ParameterError(f"unknown tables '{variant}': this package has {', '.join(TABLES)}")
    return TABLES[variant]
