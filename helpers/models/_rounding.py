"""Tolerances of an exported network's outputs, which follow from rounding alone.

Rounding errors accumulate along the longest path of a network, from an input to an output. For n
roundings with the unit roundoff u, Higham and Mary ("A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4) bound the relative error by

    exp(lambda sqrt(n) u + n u^2 / (1 - u)) - 1

where the errors are independent with mean zero, and where lambda sets the probability. That
replaces the n u of the worst case (Higham, "Accuracy and Stability of Numerical Algorithms",
section 3.1), which no real network comes near. The bound is on the sum of the terms' magnitudes.
Here it applies to differences in standard deviations of an output, which are of a similar size.

int8 has no exponent: a tensor's range is cut into 256 equal steps. With a range of four deviations
to each side, half a step is 2^-6 deviations. Uniform errors within it have a deviation of 2^-6 /
sqrt(3). Values outside the range are clipped, with larger errors than rounding: hence twice the
lambda. So int8 cannot distinguish two similar samples.
"""

from collections.abc import Sequence
from math import expm1, sqrt

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11, "int8": 2.0**-6 / sqrt(3)}
LARGEST, MEAN = 4, 1  # lambda: of 10,000 normal errors the largest is about 4 deviations
LARGEST_INT8 = 8


def tolerances_for(sums: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Return the largest (max, mean) difference for each precision.

    `sums` has the number of terms of each sum on the longest path. They are the inner dimensions of
    its matrix multiplications and convolutions, for each step of a recurrent layer. In fp32 every
    term rounds. Lower precisions round only weights and results, so each sum has two roundings.
    """
    tolerances = {}
    for precision, u in UNIT_ROUNDOFF.items():
        n = sum(sums) if precision == "fp32" else 2 * len(sums)
        root, rest = sqrt(n), n * u * u / (1 - u)
        largest = LARGEST_INT8 if precision == "int8" else LARGEST
        tolerances[precision] = expm1(largest * root * u + rest), expm1(MEAN * root * u + rest)
    return tolerances
