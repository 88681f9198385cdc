"""Settings of the two published data sets: columns, splits, scaling, number of series."""

from dataclasses import dataclass

# Lim et al., arXiv 1912.09363, section 6.1: a week of hours in, a day of hours out
HISTORY, HORIZON = 168, 24
LENGTH = HISTORY + HORIZON
QUANTILES = (0.1, 0.5, 0.9)
ID, CATEGORY, TIME = "id", "categorical_id", "hours_from_start"
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Variant:
    """One data set, as NVIDIA's training code configures it."""

    cardinality: int  # series, each with an embedding of its own
    dropout: float
    target: str
    known: tuple[str, ...]  # inputs that are known for the hours to come, in the network's order
    split_column: str
    days: tuple[tuple[int, int], ...]  # [first, last) of train, valid and test
    scaled_per_id: bool  # each series by scalers of its own, else all by one
    quantity: str  # what is forecast, with its unit


VARIANTS = {
    "electricity": Variant(
        cardinality=369,
        dropout=0.1,
        target="power_usage",
        known=("hour", "day_of_week", TIME),
        split_column="days_from_start",
        days=((1096, 1315), (1308, 1339), (1332, 1346)),
        scaled_per_id=True,
        quantity="power (kW)",
    ),
    "traffic": Variant(
        cardinality=963,
        dropout=0.3,
        target="values",
        known=("time_on_day", "day_of_week", TIME),
        split_column="sensor_day",
        days=((0, 151), (144, 166), (159, 173)),
        scaled_per_id=False,
        quantity="lane occupancy (0 to 1)",
    ),
}
