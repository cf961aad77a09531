"""Tuning: what is fastest, why the rest lose, what was refused, and the four block pairs, by hand on made-up rows."""

import pandas as pd
import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import canvas
from profiler.figures.tuning import heatmap
from profiler.figures.tuning_rows import (
    PUBLISHED,
    beside_default,
    block_pairs,
    default,
    frame,
    pairs_sentence,
    per_shape,
    sentence,
    tuned,
)
from profiler.spec import RunConfig, parameters_text
from tests.figures.samples import BUNDLE, SHAPE, TUNING
from tests.figures.test_figures import text, words


def named(data, m, n, warps, stages):
    keys = {"block_m": m, "block_n": n, "num_warps": warps, "num_stages": stages}
    return data[[all(row[k] == v for k, v in keys.items()) for row in data.to_dict("records")]].iloc[0]


def test_fastest_first_and_each_slower_one_with_its_reasons():
    data = frame(TUNING, SHAPE)
    assert len(data) == 16
    first = data.iloc[0]
    assert (first["block_m"], first["block_n"], first["num_warps"], first["num_stages"]) == (128, 64, 4, 3)
    assert first["time"] == 100_000 + 20_000 - 3_000 and first["versus_best"] == 1 and first["reasons"] == "the fastest"
    reason = named(data, 64, 64, 4, 3)["reasons"].replace("\u00a0", " ")
    assert reason == "1.98× the L2 → SM bytes"  # (64 · 2 + 1) / (32 · 2 + 1) whole Q at 64 and 128 rows: 129 / 65
    assert named(data, 128, 128, 4, 3)["reasons"] == \
        "spills: 5,000 requests to local memory, at 168 registers a thread"
    assert named(data, 256, 64, 8, 3)["reasons"] == "6.25% of the warps resident instead of 12.5%, limited by registers"
    assert named(data, 128, 64, 8, 3)["reasons"] == "no counter here differs by more than 5%; 8 warps instead of 4"
    assert named(data, 256, 64, 4, 3)["reasons"] == "did not run: refused: out of resource: shared memory"
    assert data["reasons"].notna().all()
    assert "of the 13 slower ones 4 spill registers to local memory, 4 read more from L2" in sentence(data)


def test_refused_configurations_are_named_and_not_drawn():
    figure = heatmap(TUNING, SHAPE)
    assert words(figure) == "128 × 64, 4 warps, 3 stages: 117 µs is the fastest of 14, 1.52× faster than the slowest"
    gone = "256 × 64, 4 warps, 2 stages; 256 × 64, 4 warps, 3 stages (refused: out of resource"
    assert f"Not drawn: {gone}" in text(figure)
    assert "Blank, because not run: 64 × 128 and 256 × 128." in text(figure).replace("\u00a0", " ")
    cells = [shape for shape in figure.layout.shapes if shape.name in ("cell", "best")]
    assert len(cells) == 14 and sum(len(t.x) for t in figure.data) == 14
    best = [note.text for note in figure.layout.annotations if note.name == "best"]
    assert [b.replace("\u00a0", " ") for b in best] == ["<b>117 µs</b>"]
    held = canvas.to_frame(figure)
    assert held["time"].isna().sum() == 2 and len(held) == 16


def test_other_quantities_stand_beside_the_fastest():
    assert words(heatmap(TUNING, SHAPE, "registers")) == "Registers a thread: 168 to 255, 168 in the fastest"
    assert words(heatmap(TUNING, SHAPE, "spills")) == "Requests to local memory by spills: 0 to 5,000, 0 in the fastest"
    assert words(heatmap(TUNING, SHAPE, "l2_to_sm")) == "L2 → SM bytes: 277 MB to 1.08 GB, 545 MB in the fastest"


def test_without_timings_the_profilers_time_is_used_and_said():
    figure = heatmap(Bundle("counters only", TUNING.profile, TUNING.launches), SHAPE)
    assert "time under the profiler" in text(figure)
    assert set(canvas.to_frame(figure)["time_kind"]) == {"under the profiler"}


def test_without_counters_the_reason_is_not_known():
    figure = heatmap(Bundle("timed only", TUNING.profile, timings=TUNING.timings), SHAPE)
    assert "time the unprofiled median" in text(figure)
    data = frame(Bundle("timed only", TUNING.profile, timings=TUNING.timings), SHAPE)
    assert sentence(data) == "Why the rest lose is not known: no launch counters were collected."
    assert data["reasons"].iloc[1] == "its launch counters were not collected"
    gone = heatmap(Bundle("timed only", TUNING.profile, timings=TUNING.timings), SHAPE, "registers")
    assert not gone.data and words(gone) == "Registers a thread over block sizes: not available"


def test_only_what_ran_with_several_settings_counts_as_tuned():
    assert tuned(TUNING, SHAPE) == ["flash2"]
    assert tuned(BUNDLE, SHAPE) == []


def test_block_pairs_beside_what_is_published_for_another_gpu():
    pairs = block_pairs(TUNING, SHAPE).set_index(["block_m", "block_n"])
    assert pairs["here"].to_dict() == {(64, 64): 157_000, (128, 64): 117_000, (128, 128): 147_000, (256, 64): 157_000}
    assert pairs["here_ratio"][64, 64] == pytest.approx(157 / 117)
    assert pairs["published"].to_dict() == {k: pytest.approx(v) for k, (v, _) in PUBLISHED.items()}
    assert pairs["published_memory"].to_dict()[256, 64] == 72e6
    assert pairs["published_ratio"][128, 128] == pytest.approx(1.41 / 1.35)
    assert block_pairs(BUNDLE, SHAPE)["here"].isna().tolist() == [True, False, True, True]


def test_an_article_s_memory_beside_ours():
    pairs = block_pairs(TUNING, SHAPE)
    said = pairs_sentence(pairs.assign(here_memory=8.6e6)).replace("\u00a0", " ")
    assert said == ("128 × 64 is the fastest of the four there and here. Its memory grows with the block, 42 MB to "
                    "72 MB; here every pair allocates 8.60 MB, for Q, K, V, O and LSE do not depend on the block.")
    assert "no peak was recorded here" in pairs_sentence(pairs.assign(here_memory=pd.NA))
    assert pairs_sentence(pairs.assign(here=pd.NA)) == ""


def shipped(m, n, ns, created="2026-01-01"):
    """A bundle in which flash2 ran on SHAPE with nothing asked for: 4 warps, 3 stages."""
    config = RunConfig("flash2", SHAPE)
    row = config.key() | {"parameters": parameters_text({"block_m": m, "block_n": n, "num_warps": 4, "num_stages": 3}),
                          "status": "ok", "median_ns": ns}
    return Bundle("other", {"created": created, "gpu": {"name": "G"}}, timings=table.make("timings", [row]))


@pytest.mark.parametrize("m, n, ns, said", [
    (128, 64, 999.0, "which is the fastest here."),  # the same settings: this suite's own time counts
    (64, 64, 999.0, "157 µs here, 34% more than the fastest here."),  # 157 ÷ 117
    (64, 128, 130_000.0, "130 µs in other, 11% more than the fastest here; this suite did not run it"),
    (64, 128, 58_500.0, "58.5 µs in other, 50% less"),
], ids=["fastest", "in-suite", "elsewhere", "faster elsewhere"])
def test_the_fastest_beside_what_the_kernels_ship_with(m, n, ns, said):
    found = default(shipped(m, n, ns), SHAPE, "flash2")
    sentence_ = beside_default(frame(TUNING, SHAPE), found, "other", created="2026-02-01").replace("\u00a0", " ")
    assert said in sentence_
    assert "(chosen before this suite was recorded)" in sentence_
    assert default(TUNING, SHAPE, "flash2") is None  # each of its runs asked for something


def test_the_fastest_and_the_slowest_of_each_shape():
    [(shape, best, worst)] = per_shape(TUNING, "flash2")
    assert shape == SHAPE and (best["time"], worst["time"]) == (117_000, 178_000)
    assert per_shape(BUNDLE, "flash2") == []
