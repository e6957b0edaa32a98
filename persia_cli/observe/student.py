"""Student's t distribution, for confidence intervals of means of few values."""

import math

SURE = 0.95
"""Confidence level: the probability that an interval contains the true mean."""


def half_width(values: int, confidence: float = SURE) -> float:
    """Return half the width, in standard errors, of the confidence interval of a mean of n > 1 values.

    It is the quantile (1 + confidence) / 2 of Student's t with n - 1 degrees of freedom, found by bisection.
    """
    low, high = 0.0, 1.0
    while _within(high, values - 1) < confidence:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (middle, high) if _within(middle, values - 1) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of [-t, t] for a whole number of degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    term = math.cos(angle) if freedom % 2 else 1.0
    series = 0.0
    for power in range(2 + freedom % 2, freedom + 1, 2):
        series += term
        term *= squared * (power - 1) / power
    if freedom % 2:
        return (angle + math.sin(angle) * series) * 2.0 / math.pi
    return math.sin(angle) * series
