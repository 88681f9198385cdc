"""The number of features of a sample, and the rows of each categorical feature's table.

T15, T3 and T0 are the lists of NVIDIA's preprocessing of the Criteo 1TB click logs. It joins the
ids that occur fewer than 15, 3 or 1 times into one. T15 has the features in the order of the logs.
T3 and T0 have them in the order of their numbers as text: 0, 1, 10, 11, ..., 19, 2, 20, and so on.
"""

NUMERICAL, CATEGORICAL = 13, 26
DIMENSION = 128  # of every embedding

_ROWS = {
    "T15": """
        7912889 33823 17139 7339 20046 4 7105 1382 63 5554114 582469 245828 11 2209 10667 104 4 968
        15 8165896 2675940 7156453 302516 12022 97 35
    """,
    "T3": """
        45833188 36747 1572176 345139 11 2209 11268 128 4 975 15 48937457 17246 11316796 40094537
        452104 12607 105 36 7414 20244 4 7115 1442 63 29275261
    """,
    "T0": """
        227605432 39061 3067956 405283 11 2209 11939 155 4 977 15 292775614 17296 40790948 187188510
        590152 12974 109 37 7425 20266 4 7123 1544 64 130229467
    """,
}
_PUBLISHED = {variant: tuple(map(int, rows.split())) for variant, rows in _ROWS.items()}
# The first is the CPU target's: T15 with tables that a laptop has memory for.
TABLES = {"T15-10k": tuple(min(rows, 10_000) for rows in _PUBLISHED["T15"]), **_PUBLISHED}
# Occurrences from which on a hash of raw days has a row of its own. The tables of a variant that is
# not in TABLES are as large as the user's data set and checkpoint say.
THRESHOLDS = {"T15": 15, "T3": 3, "T0": 1, "own": 15, "own-T3": 3, "own-T0": 1}
OWN = ("own", "own-T3", "own-T0")


def order(variant: str) -> list[int]:
    """Return the columns in the logs of the 26 tables' features."""
    return sorted(range(CATEGORICAL), key=str if variant in ("T3", "T0") else int)
