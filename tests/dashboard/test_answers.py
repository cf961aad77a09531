"""What the pages answer on the recorded profiles, in sentences: their numbers are those of the recorded tables."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from profiler import bundle
from tests.dashboard.conftest import REPORTS, data, recorded, shipped, upload, visit  # noqa: F401 (fixtures)

DATA = Path(__file__).resolve().parents[2] / "data"


def said(app) -> str:
    assert not app.exception and not app.error
    return html.unescape(" ".join(m.value for m in app.markdown)).replace("\u00a0", " ").replace("\\", "")


def median(source: str, head_dim: int, **knobs: int) -> float:
    """Microseconds of flash2 on N 4,096, full mask, with these settings in its recorded parameters."""
    rows = bundle.read(DATA / source).timings
    rows = rows[rows["implementation"].eq("flash2") & rows["nq"].eq(4096) & rows["head_dim"].eq(head_dim)
                & rows["mask"].eq("full")]
    for name, value in knobs.items():
        rows = rows[rows["parameters"].str.contains(f'"{name}":{value}[,}}]')]
    return float(rows["median_ns"].min()) / 1e3


@pytest.mark.parametrize("head_dim, shipped_in", [(64, "h200-evidence"), (128, "h200-tuning")])
def test_tuning_tells_how_far_the_shipped_configuration_is_from_the_fastest(head_dim, shipped_in, shipped):  # noqa: F811
    knobs = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 2} if head_dim == 64 else \
        {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 3}
    own, best = median(shipped_in, head_dim, **knobs), median("h200-tuning", head_dim)
    words = said(visit("tuning", shape=f"B1-H16-N4096-D{head_dim}-bf16"))
    assert f"{own:.0f} µs" in words and f"{100 * (own / best - 1):.1f}% more than the fastest here" in words
    assert "chosen before this suite was recorded" in words
    assert "| the fastest |" in words and "| – |" not in words  # every row says what it lost to
    assert "1.82 ms" in words and "the article's" in words


def test_scaling_tells_where_the_gain_is_least(shipped):  # noqa: F811
    words = said(visit("scaling"))
    assert "gains least at N = 512, where it is 2.45× faster" in words and "most at N = 8,192: 10.3×" in words


def test_occupancy_answers_on_a_bundle_and_on_a_report(shipped):  # noqa: F811
    words = said(visit("occupancy"))
    assert "**Is it fine?** Yes: with 16.8% of the warps" in words and "12 of 64 warps" in words
    assert "registers, shared memory" in words  # the limiter, in the table
    app = upload(visit("launches"), REPORTS / "h100_five_kernels.ncu-rep")
    app.switch_page("profiler/dashboard/pages/occupancy.py").run()
    words = said(app)
    assert "The grid has one block" in words and "**Is it fine?**" in words
