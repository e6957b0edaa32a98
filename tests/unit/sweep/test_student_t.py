"""Student's t against published quantiles, against its density and against draws."""

import math
import statistics

import numpy as np
import pytest

from persia_cli.sweep.comparison import half_width

PUBLISHED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 19: 2.093, 30: 2.042, 120: 1.980}
"""Quantile 0.975 by degrees of freedom, as tables have it to three digits."""


@pytest.mark.parametrize("freedom", PUBLISHED)
def test_the_published_quantiles(freedom: int) -> None:
    assert half_width(freedom + 1) == pytest.approx(PUBLISHED[freedom], abs=5e-4)


@pytest.mark.parametrize("values", [2, 3, 4, 7, 50, 301])
@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_the_density_within_has_that_share(values: int, share: float) -> None:
    freedom, half = values - 1, half_width(values, share)
    x = np.linspace(-half, half, 200_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert np.trapezoid(density, x) == pytest.approx(share, abs=1e-6)


def test_many_values_are_as_the_normal_distribution_has_it() -> None:
    assert half_width(100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-4)


@pytest.mark.parametrize("values", [2, 3, 5])
def test_the_true_mean_is_outside_as_often_as_said(values: int) -> None:
    drawn = np.random.default_rng(values).standard_normal((200_000, values))
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(values)
    outside = np.abs(drawn.mean(axis=1)) > half_width(values) * errors
    assert outside.mean() == pytest.approx(0.05, abs=0.002)
