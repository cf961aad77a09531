import math

import pytest

from profiler.model import log_slope


def test_a_power_law_gives_its_exponent_without_error():
    x = [512, 1024, 2048, 4096]
    fit = log_slope(x, [3 * n**2 for n in x])
    assert fit.value == pytest.approx(2)
    assert fit.error == pytest.approx(0, abs=1e-9)
    assert fit.at(100) == pytest.approx(30_000)


def test_standard_error_by_hand():
    # log2 x = 0, 1, 2 and log2 y = 0, 1.5, 2: slope 1, intercept 1/6, residuals −1/6, 1/3, −1/6, Σ² = 1/6
    fit = log_slope([1, 2, 4], [1, 2**1.5, 4])
    assert fit.value == pytest.approx(1)
    assert fit.error == pytest.approx(math.sqrt((1 / 6) / 1 / 2))
    assert fit.points == 3


def test_too_few_points_have_no_slope_and_two_no_error():
    assert log_slope([5, 5], [1, 2]) is None
    assert log_slope([1], [1]) is None
    assert log_slope([1, 2], [1, 2]).error is None
