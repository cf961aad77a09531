"""Points and roofs: ΣFLOP over Σbytes over Σtime, worked out by hand, and what is not drawn."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.figures import canvas
from profiler.figures.ceilings import device_roofs
from profiler.figures.normalised import frame as normalised_frame
from profiler.figures.normalised import normalised
from profiler.figures.points import _by_kernel, _derive, attention_points, attention_roofs, launch_points
from profiler.figures.roofline import roofline
from profiler.figures.roofline_words import change, ridge_of, roof_of, share
from profiler.metrics import resolve
from profiler.model import pick
from profiler.model.roofs import ARCHITECTURE, COUNTERS, DATA_SHEET, ENTERED, Roof
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


def rows_of(*launches):
    """A report with these launches; what a launch does not say is null."""
    return Bundle("a", {}, table.make("launches", [{"source": "a", "launch": i, "cc": "8.0", **row}
                                                   for i, row in enumerate(launches)]))


A100 = {"device": "NVIDIA A100 80GB PCIe", "sm_count": 108, "sm_clock_hz": 1.05e9, "dram_peak_bytes_per_s": 1.93e12,
        "duration_ns": 13_056.0, "dram_read_bytes": 1_345_152.0, "dram_write_bytes": 0.0}


def test_integer_operations_stand_apart_under_a_roof_of_their_own():
    launch = A100 | {"tensor_ops": 905_969_664.0, "tensor_flops": 0.0, "tensor_dtype": "int8"}
    bundle = rows_of(launch | {"fp32_flops": 0.0}, launch | {"fp32_flops": 9e6})
    points = launch_points(bundle)
    assert list(points["unit"]) == ["FLOP", "op", "op"] and list(points["flops"]) == [9e6, 905_969_664, 905_969_664]
    roofs = device_roofs(bundle)
    assert pick(roofs[""], "tensor") is None
    integer = pick(roofs[""], "integer")
    # 4,096 int8 operations a cycle and SM: the share of that roof is what the report's own pipe counter says, 14.94%
    assert integer.value == 4096 * 108 * 1.05e9 and integer.unit == "op/s"
    r = points.iloc[1].to_dict()
    assert share(r, roofs, "dram")[0] == pytest.approx(0.1494, rel=0.001)
    assert ridge_of(r, roofs, "dram") == pytest.approx(4096 * 108 * 1.05e9 / 1.93e12)
    assert roof_of(points.iloc[0].to_dict(), roofs).name == "fp32"
    assert "TOP/s" in roofline(points, roofs).layout.yaxis.title.text


def test_cuda_core_flops_by_hand_from_the_counters():
    raw = {f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": (n, "inst")
           for op, n in (("fadd", 1e6), ("fmul", 2e6), ("ffma", 3e6))}
    fp32 = resolve(raw, "9.0").values["fp32_flops"]
    assert fp32 == 1e6 + 2e6 + 2 * 3e6 == 9e6
    point = launch_points(rows_of(A100 | {"fp32_flops": fp32})).iloc[0]
    assert (point["flops"], point["work"]) == (9e6, "fp32")


def test_two_kernels_of_one_name_are_sums_not_a_mean_of_ratios():
    one = A100 | {"kernel": "k", "tensor_flops": 1e9, "tensor_dtype": "fp16", "dram_read_bytes": 1e6,
                  "duration_ns": 1e4}
    two = one | {"tensor_flops": 3e9, "dram_read_bytes": 9e6, "duration_ns": 3e4}
    point = _derive(_by_kernel(launch_points(rows_of(one, two))), "dram").iloc[0]
    assert point["intensity"] == 4e9 / 10e6  # a mean of 1,000 and 333 would say 667
    assert point["flops_per_s"] == pytest.approx(4e9 / 4e4 * 1e9)


def test_a_share_above_its_roof_is_kept_and_explained():
    bundle = rows_of(A100 | {"tensor_flops": 1.089e9, "tensor_dtype": "fp16", "tensor_peak_flops_per_s": 1e14,
                             "duration_ns": 1e4, "dram_read_bytes": 1e4})
    roofs = device_roofs(bundle)
    figure = roofline(launch_points(bundle), roofs)
    assert drawn_points(figure)[1][0] == pytest.approx(1.089e14)
    assert drawn_points(figure)[2][0][9].startswith("108.9% of the lower roof there<br>above it, perhaps because")
    said = " ".join(a.text for a in figure.layout.annotations if a.text).replace("<br>", " ")
    assert "at 108.9% of dense fp16 tensor; perhaps" in said


def test_a_short_launch_does_not_set_the_roof():
    """V100: in 11.36 µs the memory clock counted 532.39 MHz of 877: 1,024 B × that is 545 GB/s, below what others move.
    """
    v100 = {"device": "Tesla V100-SXM2-32GB", "cc": "7.0", "sm_count": 80}
    short = v100 | {"duration_ns": 11_360.0, "dram_peak_bytes_per_s": 1024 * 532.394366e6, "sm_clock_hz": 784.2e6}
    long = v100 | {"duration_ns": 6_190_944.0, "dram_peak_bytes_per_s": 1024 * 876.604279e6, "sm_clock_hz": 1.295e9}
    memory = pick(device_roofs(rows_of(short, long))[""], "dram")
    assert memory.value == pytest.approx(897.64e9, rel=1e-4)  # the sheet says 900
    assert "60.7% as many cycles" in memory.how and "545" in memory.how
    alone = pick(device_roofs(rows_of(short))[""], "dram")
    assert alone.value == pytest.approx(545.17e9, rel=1e-4) and "cycles" not in alone.how


def test_a_typed_roof_stands_first_and_an_unknown_gpu_has_no_sheet():
    bundle = rows_of(A100 | {"device": "NVIDIA X1", "tensor_flops": 1e9, "tensor_dtype": "fp16"})
    found = device_roofs(bundle, {"tensor": 3e14, "dram": 5e11})[""]
    assert {r.source for r in found} == {ENTERED, COUNTERS, ARCHITECTURE}
    assert pick(found, "dram").value == 5e11 and pick(found, "dram").source == ENTERED
    assert roof_of(launch_points(bundle).iloc[0].to_dict(), {"": found}).value == 3e14


def test_work_from_l2_has_a_badge():
    inside = A100 | {"tensor_flops": 1e9, "tensor_dtype": "fp16", "l2_size_bytes": 4e7, "l2_to_sm_bytes": 1e7}
    points = launch_points(rows_of(inside, inside | {"l2_to_sm_bytes": 2e6}, inside | {"l2_size_bytes": 1e6},
                                   inside | {"l2_to_sm_bytes": None}))
    assert list(points["in_l2"]) == [True, False, False, False]
    assert any(", in L2" in a.text for a in roofline(points, device_roofs(rows_of(inside))).layout.annotations)


def test_in_units_of_its_own_ridge():
    roofs = {"A": [Roof("tensor", 2e14, "FLOP/s", COUNTERS, "", "fp16"), Roof("dram", 1e12, "B/s", COUNTERS, "")],
             "B": [Roof("tensor", 4e14, "FLOP/s", COUNTERS, "", "fp16"), Roof("dram", 1e12, "B/s", COUNTERS, "")]}
    launch = A100 | {"tensor_flops": 1e10, "tensor_dtype": "fp16", "dram_read_bytes": 1e8, "duration_ns": 1e5}
    data = normalised_frame(launch_points(rows_of(*(launch | {"device": d} for d in "ABC"))), roofs)
    assert list(data["x"])[:2] == [0.5, 0.25] and list(data["y"])[:2] == [0.5, 0.25]  # 100 FLOP/B, 100 TFLOP/s
    assert list(data["why_not_drawn"].isna()) == [True, True, False]
    assert normalised(data[launch_points(rows_of(launch)).columns], roofs).data


def test_an_l1_roof_where_the_counter_sees_all_of_the_traffic():
    name = "l1tex__lsu_writeback_active_mem_lg.sum"
    raw = table.make("metrics", [{"launch": 0, "metric": name, "unit": "cycle", "value": "65280", "used_for": None}])
    bundle = replace(rows_of(A100 | {"fp32_flops": 1e6}), metrics=raw)
    # the report says 4.4098% of peak: 65,280 × 128 B in 13.056 µs is 640 GB/s, of 108 × 128 B × 1.05 GHz
    point = launch_points(bundle, level="l1").iloc[0]
    assert point["bytes"] == 65_280 * 128
    assert point["bytes"] / point["ns"] / pick(device_roofs(bundle)[""], "l1").value * 1e9 == pytest.approx(
        0.044098, rel=1e-3)
    hopper = replace(bundle, launches=bundle.launches.assign(cc=pd.array(["9.0"], "string")))
    assert launch_points(hopper, level="l1").iloc[0]["why_not_drawn"] == "L1 bytes not collected"  # TMA not counted


def test_device_memory_is_called_what_it_is():
    from profiler.figures import memory_kind

    spec = {"title": {"text": "FLOP per HBM byte"}, "HBM": ["HBM bytes not collected", 3]}
    assert memory_kind.kind(["8.6", "8.9"]) == "GDDR" and memory_kind.kind(["9.0"]) == "HBM"
    assert memory_kind.kind(["9.0", "8.6"]) == "DRAM" and memory_kind.kind([]) == "HBM"
    assert memory_kind.called(spec, "GDDR") == {"title": {"text": "FLOP per GDDR byte"},
                                                "HBM": ["GDDR bytes not collected", 3]}


def test_the_gpus_of_a_figure_are_named_where_a_roof_rises_through_the_usual_corner():
    """A GPU of which only a bandwidth is known: its line goes on through the place of the key."""
    points = attention_points(BUNDLE, SHAPE, ("naive", "flash2"), stages=())
    own = next(iter(device_roofs(BUNDLE).values()))
    roofs = {"NVIDIA One": own, "NVIDIA Two with a name of some length":
             [Roof("dram", 3.35e12, "B/s", "data sheet of some length", "made up")],
             "NVIDIA Three": [Roof("dram", 2.4e12, "B/s", COUNTERS, "made up")]}
    for theme in ("light", "dark"):
        figure = roofline(points.assign(device="NVIDIA One"), roofs, {}, theme=theme)
        key = [note.text for note in figure.layout.annotations if note.name == "key"]
        assert len(key) == 1 and all(name.removeprefix("NVIDIA ") in key[0] for name in roofs)


def test_sources_that_agree_share_a_name():
    """flash2 twice, the second time 1% slower: one name with both numbers; naive 1.5 times as slow: a name each."""
    one = attention_points(BUNDLE, SHAPE, ("naive", "flash2"), stages=()).assign(source="first")
    slower = {"naive": 1.5, "flash2": 1.01}
    two = one.assign(source="second", flops_per_s=[r.flops_per_s / slower[r.implementation] for r in one.itertuples()])
    both = pd.concat([part.assign(label=part["label"] + " · " + part["source"]) for part in (one, two)],
                     ignore_index=True)
    figure = roofline(both, attention_roofs(BUNDLE, SHAPE, ("flash2",)), arrow=None)
    names = [a.text.replace("<br>", " ") for a in figure.layout.annotations]
    assert sum("naive" in text and "· first" in text for text in names[3:]) == 1
    assert sum("naive" in text and "· second" in text for text in names[3:]) == 1
    (shared,) = [text for text in names[3:] if "FlashAttention" in text]
    fast = point(one, "flash2")["flops_per_s"] / 1e12
    assert f"{fast:.0f} and {fast / 1.01:.0f}" in shared and "first" not in shared
    assert "Two numbers at a name: first and second." in names[1]
