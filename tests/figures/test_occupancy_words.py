"""Why occupancy is low and whether that is fine: every number worked out by hand from made-up launches."""

import pandas as pd
import pytest

from profiler.bundle import Bundle
from profiler.figures.occupancy_words import answers, resident
from profiler.figures.quadrant import quadrant
from tests.figures.samples import BUNDLE, SHAPE
from tests.figures.test_figures import doctored, text, words


def said(bundle, *arguments) -> dict[str, str]:
    return {question: answer.replace("\u00a0", " ") for question, answer in answers(bundle, *arguments)}


@pytest.fixture
def low():
    """flash2 with three blocks of 128 threads an SM: 1,024 ÷ (2.5858… · 132) = 3, 12 of 64 warps = 18.75%."""
    return doctored(BUNDLE, "flash2", grid="1024,1,1", block="128,1,1", waves_per_sm=1024 / (3 * 132), sm_count=132.0,
                    registers_per_thread=154.0, shared_bytes_per_block=74_784.0, theoretical_occupancy_pct=18.75,
                    achieved_occupancy_pct=16.8, occupancy_limiter="registers, shared memory")


def test_why_it_is_low(low):
    answer = said(low, SHAPE, ("naive", "flash2"))["Why is the occupancy low?"]
    assert "154 registers for each of its 128 threads and 74.8 kB of shared memory" in answer
    assert "By registers and shared memory three such blocks fit on an SM at once, 12 of 64 warps" in answer
    assert "18.8% at most, 16.8% achieved. The grid makes 2.59 waves." in answer


def test_whether_it_is_fine_beside_naive_and_without(low):
    assert said(low, SHAPE, ("naive", "flash2"))["Is it fine?"].startswith("Yes: with 16.8% of the warps")
    idle = doctored(low, "flash2", tensor_pipe_pct=0.5)
    assert said(idle, SHAPE, ("naive", "flash2"))["Is it fine?"].startswith("Not by this alone")
    few = doctored(BUNDLE, "flash2", tensor_pipe_pct=20.0, achieved_occupancy_pct=6.0)
    few = Bundle(few.name, few.profile, few.launches, timings=few.timings.assign(median_ns=1e9))  # no roof is near
    assert said(few, SHAPE, ("naive", "flash2"))["Is it fine?"].startswith("In part: with 6.00% of the warps")
    gone = doctored(low, "flash2", tensor_pipe_pct=pd.NA)
    assert "not both collected" in said(gone, SHAPE, ("naive", "flash2"))["Is it fine?"]
    slow = Bundle(low.name, low.profile, low.launches,
                  timings=low.timings.assign(median_ns=low.timings["median_ns"] * 1000))
    assert said(slow, SHAPE, ("flash2",))["Is it fine?"].startswith("This data cannot tell")


def test_exponentials_and_matmuls_of_equal_weight_are_said_to_need_overlap():
    """D 64: 4·D FLOPs at 4,096 a cycle take as long as one exponential at 16 a cycle."""
    assert "one after the other" in said(BUNDLE, SHAPE, ("flash2",))["What limits it?"]


def test_what_was_not_collected_is_named():
    bare = doctored(BUNDLE, "flash2", achieved_occupancy_pct=pd.NA)
    found = said(bare, SHAPE, ("flash2",))
    assert found["Why is the occupancy as it is?"] == "Not available: occupancy was not collected."
    assert "--section WarpStateStats" in found["What do its warps wait for?"]
    assert answers(BUNDLE, SHAPE, ("fa4",)) == []
    assert answers(Bundle("empty", {})) == []


@pytest.mark.parametrize("row, blocks", [
    ({"grid": "65535,1,1", "waves_per_sm": 102.3984375, "sm_count": 80.0}, 8),
    ({"grid": "4,2,3", "waves_per_sm": 0.5, "sm_count": 10.0}, None),  # 4.8 blocks: not a whole number
    ({"grid": None, "waves_per_sm": 1.0, "sm_count": 10.0}, None),
    ({"grid": "8,1,1", "waves_per_sm": None, "sm_count": 10.0}, None),
], ids=["eight", "fraction", "no grid", "no waves"])
def test_resident_blocks(row, blocks):
    assert resident(row) == blocks


def test_a_report_that_names_no_call_is_drawn_by_kernel():
    rows = BUNDLE.launches.assign(implementation=pd.NA, stage=pd.NA, nq=pd.NA)
    foreign = Bundle("foreign", BUNDLE.profile, rows)
    figure = quadrant(foreign, None, ())
    assert "takes the most time: occupancy" in words(figure)
    assert f"{len(rows)} launches. One point a launch" in text(figure)
    assert sum(len(trace.x) for trace in figure.data) == rows["tensor_pipe_pct"].notna().sum()
    assert said(foreign)["What limits it?"]
