"""Points and roofs: ΣFLOP over Σbytes over Σtime, worked out by hand, and what is not drawn."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import canvas
from profiler.figures.ceilings import device_roofs
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.roofline import roofline
from profiler.figures.roofline_words import change
from profiler.model.roofs import COUNTERS, DATA_SHEET, Roof
from tests.figures.samples import ALL, BUNDLE, SHAPE
from tests.figures.test_ledger import Q, S, doctored

FLOPS = 4 * 16 * 4096 * 4096 * 64  # 68,719,476,736
NAIVE_BYTES = 6 * S + 4 * Q
DRAM, TENSOR = 0.8 * 4.8e12, 0.4 * 9.44e14  # the rates that the synthetic durations follow


def drawn_points(figure):
    """All points of the figure: x, y and custom data, trace by trace."""
    traces = [t for t in figure.data if t.name.startswith("points/")]
    return tuple([v for t in traces for v in getattr(t, name)] for name in ("x", "y", "customdata"))


def point(points, name, stage=None):
    at = points["stage"].isna() if stage is None else points["stage"].eq(stage)
    return points[points["implementation"].eq(name) & at].iloc[0]


def test_naive_as_one_point():
    naive = point(attention_points(BUNDLE, SHAPE, ("naive",)), "naive")
    seconds = (4 * S + 2 * (S + 2 * Q)) / DRAM  # every naive launch is bound by memory
    assert naive["flops"] == FLOPS
    assert naive["bytes"] == NAIVE_BYTES
    assert naive["intensity"] == pytest.approx(FLOPS / NAIVE_BYTES)
    assert naive["flops_per_s"] == pytest.approx(FLOPS / seconds)


def test_flash_below_compulsory_is_drawn_at_compulsory():
    bundle = doctored(BUNDLE, "flash2", dram_write_bytes=2e6)
    flash = point(attention_points(bundle, SHAPE, ("flash2",)), "flash2")
    assert flash["bytes_counted"] == 3 * Q + 2e6
    assert flash["bytes"] == 4 * Q
    assert flash["bytes_kind"] == "predicted, compulsory"
    assert flash["intensity"] == pytest.approx(2048)  # FLOPS / 4Q


def test_drawn_points_are_the_frame():
    figure = roofline(attention_points(BUNDLE, SHAPE, ("naive", "flash2")), attention_roofs(BUNDLE, SHAPE, ("flash2",)),
                      BUNDLE.profile)
    data = canvas.to_frame(figure)
    xs, ys, custom = drawn_points(figure)
    rows = data[data["kind"].eq("point") & data["why_not_drawn"].isna()]
    assert sorted(xs) == pytest.approx(sorted(rows["intensity"]))
    assert sorted(ys) == pytest.approx(sorted(rows["flops_per_s"]))
    assert {c[0] for c in custom} == set(rows["launch"])  # a click leads to the launch
    roofs = data[data["kind"].eq("roof")]
    assert set(roofs["roof_value"]) >= {4.8e12, 1.2e13, 9.44e14, 4.2e12, 8.0e14}


def test_launches_without_flops_or_bytes_are_listed_not_drawn():
    points = attention_points(BUNDLE, SHAPE, ("naive",))
    assert point(points, "naive", "softmax")["why_not_drawn"] == "no FLOPs"
    bundle = doctored(BUNDLE, "flash2", dram_read_bytes=0.0, dram_write_bytes=0.0)
    launches = launch_points(bundle)
    assert set(launches.loc[launches["implementation"].eq("flash2"), "why_not_drawn"]) == {"no HBM bytes"}
    figure = roofline(points, attention_roofs(BUNDLE, SHAPE, ("naive",)), BUNDLE.profile)
    assert len(drawn_points(figure)[0]) == 3  # Q·Kᵀ, P·V, naive
    texts = " ".join(a.text for a in figure.layout.annotations).replace("<br>", " ")
    assert "Not drawn: scale and softmax (no FLOPs)." in texts


def test_nulls_are_not_drawn_as_zero():
    bundle = doctored(BUNDLE, "flash2", tensor_flops=pd.NA)
    points = attention_points(bundle, SHAPE, ("flash2",))
    assert point(points, "flash2")["why_not_drawn"] == "FLOPs not collected"
    figure = roofline(points, [], bundle.profile)
    assert not figure.data
    assert "FLOPs not collected" in " ".join(a.text for a in figure.layout.annotations)


def test_roofs_by_source_and_meeting_at_the_ridge():
    roofs = [Roof("dram", 4e12, "B/s", COUNTERS, ""), Roof("tensor", 8e14, "FLOP/s", COUNTERS, ""),
             Roof("dram", 3e12, "B/s", DATA_SHEET, "")]
    figure = roofline(attention_points(BUNDLE, SHAPE, ("naive", "flash2")), roofs)
    lines = [t for t in figure.data if t.name.startswith("roof/")]
    assert [t.line.dash for t in lines if t.name == "roof/dram"] == ["solid", "dot"]
    solid = next(t for t in lines if t.name == "roof/dram" and t.line.dash == "solid")
    assert (solid.x[1], solid.y[1]) == (pytest.approx(200), pytest.approx(8e14))  # ridge: 8e14 / 4e12
    named = [a.text for a in figure.layout.annotations if (a.name or "").startswith("roof/")]
    assert any("4.00\u00a0TB/s, counters" in text for text in named)
    assert any("data sheet" in text for text in named)


def test_a_point_above_a_roof_stays_there():
    roofs = [Roof("dram", 4.8e12, "B/s", COUNTERS, ""), Roof("tensor", 1e14, "FLOP/s", COUNTERS, "")]
    points = attention_points(BUNDLE, SHAPE, ("flash2",))
    figure = roofline(points, roofs)
    assert drawn_points(figure)[1][0] == pytest.approx(TENSOR)  # 3.8e14, above the roof of 1e14
    assert 10 ** figure.layout.yaxis.range[1] > TENSOR


def test_titles_follow_the_data():
    def words(bundle):
        points = attention_points(bundle, SHAPE, ("naive", "flash2"))
        return canvas.title(roofline(points, attention_roofs(bundle, SHAPE, ("naive", "flash2")), bundle.profile))

    assert words(BUNDLE) == "FlashAttention leaves the HBM roof: same FLOPs, 97.0× fewer bytes"  # (6S + 4Q) / 4Q
    worse = words(doctored(BUNDLE, "flash2", dram_read_bytes=2.0 * NAIVE_BYTES))
    assert "both lie left of the HBM ridge" in worse
    assert "more HBM bytes" in worse


def test_the_arrow_says_what_changed():
    naive, flash = {"flops": 2e9, "bytes": 1e9}, {"flops": 2e9, "bytes": 1e7}
    assert change(naive, flash).replace("\u00a0", " ") == "same 2.00 GFLOP, 100× fewer HBM bytes"
    assert change(naive, {**flash, "flops": 1e9}).startswith("1.00\u00a0GFLOP instead of 2.00\u00a0GFLOP")


def test_a_foreign_report_has_a_point_a_launch():
    launches = BUNDLE.launches.head(4).assign(implementation=pd.NA, stage=pd.NA, kernel="void ns::my_kernel<int>(int)")
    points = launch_points(replace(BUNDLE, launches=launches))
    assert list(points["label"]) == ["my_kernel"] * 4
    assert list(points["launch"]) == list(launches["launch"])


@pytest.mark.parametrize("scale, expected", [(1.0, "The one point lies right of the HBM ridge at 197 FLOP/B"),
                                             (1e-3, "The one point lies left of the HBM ridge at 197 FLOP/B")])
def test_one_launch_on_its_side_of_the_ridge(scale, expected):
    rows = BUNDLE.launches[BUNDLE.launches["implementation"].eq("flash2") & BUNDLE.launches["nq"].eq(4096)].head(1)
    rows = rows.assign(implementation=pd.NA, stage=pd.NA, tensor_flops=rows["tensor_flops"] * scale)
    bundle = replace(BUNDLE, launches=rows)
    figure = roofline(launch_points(bundle), attention_roofs(BUNDLE, SHAPE, ("flash2",)), bundle.profile)
    assert canvas.title(figure).replace("\u00a0", " ") == expected  # 9.44e14 / 4.8e12


def test_each_gpu_has_its_own_roof_in_the_hover():
    rows = BUNDLE.launches[BUNDLE.launches["implementation"].eq("flash2") & BUNDLE.launches["nq"].eq(4096)].head(2)
    rows = rows.assign(implementation=pd.NA, stage=pd.NA, device=pd.array(["A", "B"], "string"), tensor_flops=1e10,
                       dram_read_bytes=1e7, dram_write_bytes=0.0, duration_ns=1e5)  # 1,000 FLOP/B, 100 TFLOP/s
    roofs = {"A": [Roof("tensor", 2e14, "FLOP/s", COUNTERS, ""), Roof("dram", 1e12, "B/s", COUNTERS, "")],
             "B": [Roof("tensor", 4e14, "FLOP/s", COUNTERS, ""), Roof("dram", 1e12, "B/s", COUNTERS, "")]}
    figure = roofline(launch_points(replace(BUNDLE, launches=rows)), roofs)
    shares = [custom[9] for custom in drawn_points(figure)[2]]
    assert [s.split("%")[0] for s in shares] == ["50.0", "25.0"]


def test_more_launches_than_anyone_can_tell_apart_are_one_point_a_kernel():
    few = launch_points(BUNDLE)
    rows = pd.concat([BUNDLE.launches] * 20, ignore_index=True)
    many = replace(BUNDLE, launches=rows.assign(launch=pd.array(range(len(rows)), "Int64")))
    assert len(many.launches) > 2_000 > len(few)
    points = launch_points(many)
    assert len(points) == few.groupby(["implementation", "stage", "kernel"]).ngroups
    for r in points.to_dict("records"):
        mine = few[few["kernel"].eq(r["kernel"]) & few["stage"].eq(r["stage"])]
        assert r["count"] == 20 * len(mine) and r["launches"] == f"{mine['launch'].min()} and {r['count'] - 1} more"
        if mine["flops"].sum():
            assert r["intensity"] == pytest.approx(mine["flops"].sum() / mine["bytes_counted"].sum())
            assert r["flops_per_s"] == pytest.approx(mine["flops"].sum() / mine["ns"].sum() * 1e9)
    figure = roofline(points, attention_roofs(BUNDLE, SHAPE, ALL), BUNDLE.profile)
    said = " ".join(a.text for a in figure.layout.annotations if a.text).replace("<br>", " ")
    assert f"A point is a kernel: ΣFLOP over Σbytes and over Σtime of its launches, {len(rows):,} in all." in said
    lacking = rows.assign(dram_read_bytes=rows["dram_read_bytes"].mask(rows.index == 0))
    first = launch_points(replace(many, launches=lacking)).iloc[0]
    assert first["why_not_drawn"] == "HBM bytes not collected"


def test_integer_tensor_work_has_no_tensor_roof():
    rows = table.make("launches", [{"source": "a", "launch": 0, "device": "NVIDIA A100-SXM4-40GB", "cc": "8.0",
                                    "sm_count": 108, "tensor_ops": 1e9, "tensor_dtype": dtype} for dtype in ("int8",)])
    names = {roof.name for roof in device_roofs(Bundle("a", {}, rows))[""]}
    assert "dram" in names and "tensor" not in names
    floating = {roof.name for roof in device_roofs(Bundle("a", {}, rows.assign(
        tensor_dtype=pd.array(["fp16"], "string"))))[""]}
    assert "tensor" in floating
