"""Numbers as people read them."""

import math

import pandas as pd
import pytest

from profiler.figures import units


def plain(text: str) -> str:
    return text.replace(units.NBSP, " ")


@pytest.mark.parametrize("value, text", [
    (0, "0 B"), (512, "512 B"), (999, "999 B"), (1000, "1.00 kB"), (999_499, "999 kB"), (999_700, "1.00 MB"),
    (536_870_912, "537 MB"), (33_554_432, "33.6 MB"), (3_181_600_000, "3.18 GB"), (1_082_700_000, "1.08 GB"),
    (4.81e12, "4.81 TB"),
])
def test_bytes(value, text):
    assert plain(units.nbytes(value)) == text


@pytest.mark.parametrize("value, text", [
    (2048, "2,048"), (34_428.9, "34,429"), (27.46, "27.5"), (94.8, "94.8"), (9.996, "10.0"), (0.002_04, "0.00204"),
    (0.000_02, "2.00e−5"), (-12.34, "−12.3"), (math.inf, "∞"), (0, "0"),
])
def test_number(value, text):
    assert units.number(value) == text


@pytest.mark.parametrize("ns, text", [(3968, "3.97 µs"), (154_123, "154 µs"), (999_999, "1.00 ms"), (2.5e9, "2.50 s"),
                                      (12, "12.0 ns")])
def test_duration(ns, text):
    assert plain(units.duration(ns)) == text


@pytest.mark.parametrize("null", [None, math.nan, pd.NA, float("nan"), pd.NaT])
@pytest.mark.parametrize("words", [units.nbytes, units.number, units.duration, units.percent, units.flops, units.times,
                                   units.whole, units.intensity])
def test_null_is_never_a_number(null, words):
    assert words(null) == "not available"


def test_rates_and_ratios():
    assert plain(units.flops(944e12)) == "944 TFLOP/s"
    assert plain(units.flop(68_719_476_736)) == "68.7 GFLOP"
    assert plain(units.intensity(2048)) == "2,048 FLOP/B"
    assert units.times(94.8) == "94.8×"
    assert units.percent(27.3123) == "27.3%"
    assert units.percent(0.0367) == "0.04%"
    assert units.whole(16_384) == "16,384"


@pytest.mark.parametrize("value, unit, text", [
    (200e6, "B", "200 MB"), (1e9, "B", "1 GB"), (2.5e9, "B", "2.5 GB"), (0, "B", "0 B"), (1000, "", "1,000"),
    (0.5, "", "0.5"), (1e6, "ns", "1 ms"), (20, "%", "20%"), (2.5e6, "ns", "2.5 ms"),
])
def test_tick(value, unit, text):
    assert plain(units.tick(value, unit)) == text
