"""The tolerances of the parity checks: what rounding does to sums, and what differs from it."""

import numpy as np
import pytest

from helpers import models
from helpers.measure.checks import difference
from helpers.models._rounding import tolerances_for


def test_the_bounds_follow_the_published_formula():
    found = tolerances_for([60, 40])

    assert found["fp32"] == pytest.approx((4 * 10 * 2**-24, 10 * 2**-24), rel=1e-5)
    assert found["bf16"] == pytest.approx(
        (np.expm1(8 / 256 + 4 / 256**2 / (1 - 1 / 256)), np.expm1(2 / 256 + 4 / 256**2 * 256 / 255))
    )
    assert found["fp16"][0] == pytest.approx(8 / 2048, rel=1e-2)
    u = 3**-0.5 / 64
    rest = 4 * u**2 / (1 - u)
    assert found["int8"] == pytest.approx((np.expm1(16 * u + rest), np.expm1(2 * u + rest)))


@pytest.mark.parametrize("terms", [100, 10_000])
def test_sums_in_float32_stay_within_the_bound_of_their_length(terms):
    """In order, as no library adds: others have smaller errors."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, 1000, terms), dtype=np.float32)
    exact = (left.astype(np.float64) * right).sum(axis=1)

    found = difference(
        "sums", np.cumsum(left * right, axis=1)[:, -1], exact, tolerances_for([terms])["fp32"]
    )

    assert found.ok
    assert found.max_difference > found.max_bound / 100


def test_every_step_of_lower_precision_has_bounds_of_its_own():
    for name in models.names():
        found = models.get(name).TOLERANCES
        assert list(found) == ["fp32", "bf16", "fp16", "int8"]
        assert found["fp32"][0] < found["fp16"][0] / 100 < found["bf16"][0] / 400
        assert found["fp16"][1] < found["int8"][1] / 4
        assert all(mean < largest / 3.9 for largest, mean in found.values())


def test_a_rounding_to_float16_is_no_rounding_to_float32():
    values = np.random.default_rng(0).standard_normal((64, 100)).astype(np.float32)
    for name in models.names():
        rounded = values.astype(np.float16).astype(np.float32)
        assert not difference("o", rounded, values, models.get(name).TOLERANCES["fp32"]).ok
        assert difference("o", rounded, values, models.get(name).TOLERANCES["fp16"]).ok
