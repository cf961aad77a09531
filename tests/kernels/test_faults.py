"""Each fault is wrong on the inputs said to show it and right on those said to hide it; else all are right."""

import math

import numpy as np
import pytest

from kernels.faults import FAULTS, definition, online


def wrong(inputs, fault=""):
    with np.errstate(invalid="ignore", over="raise"):
        return not np.allclose(online(*inputs, fault), definition(*inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_shows_and_hides_where_it_says(fault):
    assert wrong(fault.shows(), fault.name)
    assert not wrong(fault.hides(), fault.name)
    assert not wrong(fault.shows()) and not wrong(fault.hides())


def test_the_definition_by_hand():
    # Scores 0 and ln 3 over visible keys: weights 1/4 and 3/4. The second row sees nothing.
    scores = np.array([[0.0, math.log(3), 50.0], [1.0, 2.0, 3.0]])
    visible = np.array([[True, True, False], [False, False, False]])
    out = definition(scores, visible, np.array([[4.0], [8.0], [1e9]]), 1.0)
    assert out == pytest.approx(np.array([[7.0], [0.0]]))


def test_what_each_fault_gives():
    by_name = {fault.name: fault for fault in FAULTS}

    def given(name):
        with np.errstate(invalid="ignore"):
            return online(*by_name[name].shows(), name)

    assert np.isnan(given("-inf minus -inf")[2]).all() and np.isfinite(given("-inf minus -inf")[:2]).all()
    assert not given("m starts at 0").any()  # every term underflows to 0
    assert np.isfinite(given("scale forgotten")).all()  # no overflow, only other weights
