"""Columns from raw metrics: every value is worked out by hand here."""

from __future__ import annotations

import math

import pytest

from profiler import metrics, table
from profiler.bundle import Bundle
from profiler.metrics import units
from profiler.metrics.tensor import instruction_ops

SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_{}"
CLOCK = "sm__cycles_elapsed.avg.per_second"


def values(raw, cc="9.0"):
    return metrics.resolve({name: (value, "") if not isinstance(value, tuple) else value for name,
                            value in raw.items()}, cc).values


def test_nine_million_fp32_operations():
    got = values({SASS.format("fadd"): 1_000_000, SASS.format("fmul"): 2_000_000, SASS.format("ffma"): 3_000_000})
    assert got["fp32_flops"] == 9_000_000


def test_half_instructions_work_on_two_lanes():
    got = values({SASS.format("hadd"): 10, SASS.format("hmul"): 20, SASS.format("hfma"): 30})
    assert got["fp16_flops"] == 2 * (10 + 20 + 2 * 30)


def test_an_incomplete_sum_is_no_value():
    assert "fp32_flops" not in values({SASS.format("fadd"): 1_000_000, SASS.format("ffma"): 3_000_000})


def test_rates_a_cycle_times_cycles():
    base = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    raw = {base.format("fadd"): 1.0, base.format("fmul"): 2.0, base.format("ffma"): 3.0,
           "smsp__cycles_elapsed.avg": 1000}
    assert values(raw)["fp32_flops"] == 9000


def test_more_than_the_peak_is_kept():
    assert values({"sm__warps_active.avg.pct_of_peak_sustained_active": (108.9,
                                                                         "%")})["achieved_occupancy_pct"] == 108.9


@pytest.mark.parametrize("cc, name", [("9.0", "dram__bytes_read.sum"), ("12.0", "dram__bytes_op_read.sum")])
def test_dram_names_by_architecture(cc, name):
    found = metrics.resolve({name: (83.886080, "Mbyte")}, cc)
    assert found.values["dram_read_bytes"] == pytest.approx(83_886_080)
    assert found.used["dram_read_bytes"] == (name,) and found.kinds["dram_read_bytes"] == "measured"
    assert name in metrics.collect_list("evidence", cc)


def test_two_names_of_one_thing_are_never_added():
    both = {"dram__bytes_read.sum": (100, "byte"), "dram__bytes_op_read.sum": (100, "byte")}
    assert values(both, "12.0")["dram_read_bytes"] == 100
    assert values(both, "9.0")["dram_read_bytes"] == 100


def test_the_sparse_peak_of_hopper_is_halved():
    """Measured on an H200: 8192 a cycle and SM is the sparse peak, 132 SMs at 1.746 GHz are 944 TFLOP/s dense."""
    name = TENSOR.format("src_bf16_dst_fp32.sum")
    got = values({name: 68_719_476_736, f"{name}.peak_sustained": 8192 * 132, CLOCK: (1.746, "Ghz")})
    assert got["tensor_flops"] == 68_719_476_736 == 4 * 4096**2 * 64 * 16, "the counter counts 2 a multiply-add already"
    assert got["tensor_peak_flops_per_s"] == pytest.approx(943.9e12, rel=1e-3)
    assert got["tensor_dtype"] == "bf16"


def test_the_dense_variant_is_taken_as_it_is():
    name = TENSOR.format("src_bf16_dst_fp32")
    got = values({f"{name}.sum": 10, f"{name}_sparsity_off.sum.peak_sustained": 4096 * 132,
                  f"{name}.sum.peak_sustained": 8192 * 132,
                  CLOCK: (1e9, "hz")})
    assert got["tensor_peak_flops_per_s"] == 4096 * 132 * 1e9


def test_an_unsuffixed_peak_of_ampere_is_not_trusted():
    name = TENSOR.format("src_bf16_dst_fp32.sum")
    assert "tensor_peak_flops_per_s" not in values({name: 10, f"{name}.peak_sustained": 4096 * 108, CLOCK: (1e9, "hz")},
                                                   "8.0")


def test_volta_adds_its_two_accumulators_and_has_no_sparse_peak():
    a, b = (TENSOR.format(f"src_fp16_dst_{d}.sum") for d in ("fp32", "fp16"))
    got = values({a: 300, b: 100, f"{a}.peak_sustained": 1024 * 80, CLOCK: (1e9, "hz")}, "7.0")
    assert got["tensor_flops"] == 400 and got["tensor_peak_flops_per_s"] == 1024 * 80 * 1e9


def test_split_names_are_not_added_to_the_whole():
    whole = {TENSOR.format("src_bf16_dst_fp32.sum"): 100}
    split = {TENSOR.format("op_hgmma_src_bf16_dst_fp32_sparsity_off.sum"): 90,
             TENSOR.format("op_hmma_src_bf16_dst_fp32_sparsity_off.sum"): 10}
    assert values({**whole, **split})["tensor_flops"] == 100
    assert values(split)["tensor_flops"] == 100


def test_integer_operations_are_not_flops():
    got = values({TENSOR.format("src_int8.sum"): 700, TENSOR.format("src_fp16_dst_fp32.sum"): 5}, "8.0")
    assert (got["tensor_ops"], got["tensor_flops"], got["tensor_dtype"]) == (700, 5, "int8")


@pytest.mark.parametrize("cc, counter, peak, factor", [
    ("8.0", "src_bf16_dst_fp32", "src_bf16_dst_fp32_sparsity_off", 1), ("8.9", "src_fp8", "src_fp8_sparsity_off", 1),
    ("8.6", "src_fp16_dst_fp16", "src_fp16_dst_fp16_sparsity_off", 1),
    ("9.0", "src_fp16", "src_fp16", 0.5), ("9.0", "src_fp16", "op_hgmma_src_fp16_sparsity_off", 1),
    ("10.0", "src_bf16_dst_fp32", "op_utchmma_src_bf16_dst_fp32_sparsity_off", 1),
    ("12.0", "src_fp16_dst_fp32", "op_hmma_src_fp16_dst_fp32_sparsity_off", 1),
    ("12.0", "src_fp8_dst_fp16", "src_fp8_dst_fp16_sparsity_off", 1),
])
def test_the_dense_peak_by_architecture(cc, counter, peak, factor):
    raw = {TENSOR.format(counter + ".sum"): 10, TENSOR.format(peak + ".sum.peak_sustained"): 1000, CLOCK: (1e9, "hz")}
    assert values(raw, cc)["tensor_peak_flops_per_s"] == 1000 * factor * 1e9


def test_a_peak_with_another_accumulator_is_not_lent():
    """On GeForce fp32 accumulation runs at half of fp16 accumulation."""
    raw = {TENSOR.format("src_fp16_dst_fp32.sum"): 10, CLOCK: (1e9, "hz"),
           TENSOR.format("src_fp16_dst_fp16_sparsity_off.sum.peak_sustained"): 1000}
    assert "tensor_peak_flops_per_s" not in values(raw, "8.6")


@pytest.mark.parametrize("opcode, work", [
    ("IMMA.16832.S8.S8.SAT", (2 * 16 * 8 * 32, "int8", True)),
    ("HMMA.16816.F32.BF16", (2 * 16 * 8 * 16, "bf16", False)),
    ("HMMA.1688.F32.TF32", (2 * 16 * 8 * 8, "tf32", False)),
    ("HGMMA.64x256x16.F32.BF16", (2 * 64 * 256 * 16 // 4, "bf16", False)),
    ("DMMA.884", (2 * 8 * 8 * 4, "fp64", False)),
    ("HMMA.884.F32.F32.STEP0", None), ("UTCHMMA.gdesc", None),
])
def test_operations_of_a_tensor_instruction(opcode, work):
    assert instruction_ops(opcode) == work


def test_an_instruction_that_does_not_say_its_size_gives_no_value():
    raw = {"sass__inst_executed_per_opcode_with_modifier_all[UTCHMMA.gdesc]": 5}
    assert "tensor_flops" not in values(raw, "10.0")


def test_roofs_from_the_reports_own_counters():
    """H200: 1504 B a cycle at 3.2 GHz; L2 sends 32 B a cycle on each of 96 paths."""
    got = values({"dram__bytes.sum.peak_sustained": (1504, "byte/cycle"),
                  "dram__cycles_elapsed.avg.per_second": (3.2, "Ghz"),
                  "lts__lts2xbar_cycles_active.sum.peak_sustained": 96,
                  "lts__cycles_elapsed.avg.per_second": (1.6, "cycle/nsecond"),
                  "lts__lts2xbar_cycles_active.sum": 1000})
    assert got["dram_peak_bytes_per_s"] == pytest.approx(4.8128e12)
    assert got["l2_peak_bytes_per_s"] == pytest.approx(96 * 32 * 1.6e9)
    assert got["l2_to_xbar_bytes"] == 32_000


def test_exponentials_by_the_special_function_pipe():
    assert values({"smsp__inst_executed_pipe_xu.sum": (8_650_752, "inst")})["special_ops"] == 8_650_752 * 32


def test_the_limiter_is_the_smallest_and_ties_are_named():
    names = ("registers", "shared_mem", "warps", "blocks")
    raw = {f"launch__occupancy_limit_{n}": (v, "block") for n, v in zip(names, (2, 2, 16, 32))}
    assert values(raw)["occupancy_limiter"] == "registers, shared memory"
    del raw["launch__occupancy_limit_warps"]
    assert "occupancy_limiter" not in values(raw), "the smallest of an incomplete list need not be the limiter"


def test_nan_is_no_value_and_is_said():
    found = metrics.resolve({"dram__bytes_read.sum": (math.nan, "byte")}, "9.0")
    assert found.values["dram_read_bytes"] is None and found.no_number == {"dram_read_bytes"}


def test_an_unknown_unit_is_not_guessed():
    found = metrics.resolve({"gpu__time_duration.sum": (5, "fortnight")}, "9.0")
    assert "duration_ns" not in found.values and found.unknown_units == {"gpu__time_duration.sum": "fortnight"}


@pytest.mark.parametrize("unit, base", [
    ("Mbyte", (1e6, "byte")), ("Gbyte", (1e9, "byte")), ("KiB", (1024.0, "byte")), ("B", (1.0, "byte")),
    ("msecond", (1e6, "ns")),
    ("usecond", (1e3, "ns")), ("us", (1e3, "ns")), ("µs", (1e3, "ns")), ("ns", (1.0, "ns")), ("s", (1e9, "ns")),
    ("Ghz", (1e9, "hz")),
    ("GHz", (1e9, "hz")), ("cycle/nsecond", (1e9, "hz")), ("cycle/usecond", (1e6, "hz")), ("Gbyte/s", (1e9, "byte/s")),
    ("Gbyte/second", (1e9, "byte/s")), ("byte/ns", (1e9, "byte/s")), ("Kbyte/block", (1e3, "byte/block")),
    ("%", (1.0, "%")),
    ("", (1.0, "")), ("inst/cycle", (1.0, "inst/cycle")), ("Minst", (1e6, "inst")),
    ("register/thread", (1.0, "register/thread")),
    ("widget", None), ("byte/widget", None),
])
def test_units(unit, base):
    got = units.base(unit)
    assert got == (None if base is None else (pytest.approx(base[0]), base[1]))


def test_a_device_without_dram_counters_says_so():
    rows = table.make("launches", [{"source": "x", "launch": 0, "cc": "12.1", "l2_bytes": 5.0}])
    bundle = Bundle("x", {}, rows)
    assert metrics.provenance(bundle, 0, "dram_read_bytes").kind == "not_available"
    assert "GB10" in metrics.provenance(bundle, 0, "dram_read_bytes").reason
    assert not any(name.startswith("dram__") for name in metrics.collect_list("evidence", "12.1"))


def test_what_was_not_collected_comes_with_the_flag_that_collects_it():
    rows = table.make("launches", [{"source": "x", "launch": 0, "cc": "12.0", "duration_ns": 5.0}])
    raw = table.make("metrics", [{"launch": 0, "metric": "gpu__time_duration.sum", "unit": "ns", "value": "5",
                                  "used_for": "duration_ns"}])
    bundle = Bundle("x", {}, rows, raw)
    absent = metrics.provenance(bundle, 0, "dram_read_bytes")
    assert (absent.kind, absent.flag) == ("not_collected", "--metrics dram__bytes_op_read.sum")
    there = metrics.provenance(bundle, 0, "duration_ns")
    assert (there.kind, there.names) == ("measured", ("gpu__time_duration.sum",))
    command = metrics.advice(bundle, ["duration_ns", "dram_read_bytes", "achieved_occupancy_pct"])
    wanted = "dram__bytes_op_read.sum,sm__warps_active.avg.pct_of_peak_sustained_active"
    assert command.startswith(f"ncu --metrics {wanted} ")
    assert metrics.advice(bundle, ["duration_ns"]) == ""


def test_on_an_unknown_gpu_the_usual_names_are_asked_for():
    names = metrics.collect_list("full", None)
    assert "dram__bytes_read.sum" in names and "dram__bytes_op_read.sum" not in names
    assert not any("_v2" in name or "ops_path_tensor" in name for name in names)


def test_derived_values_are_called_derived():
    raw = {"dram__bytes_read.sum": 6e6, "dram__bytes_write.sum": 4e6, "gpu__time_duration.sum": 1000.0}
    found = metrics.resolve({name: (value, "") for name, value in raw.items()}, "9.0")
    assert found.values["dram_bytes_per_second"] == 1e13 and found.kinds["dram_bytes_per_second"] == "derived"


@pytest.mark.parametrize("cc", ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("purpose", sorted(metrics.PURPOSES))
def test_what_is_asked_for_can_be_used(purpose, cc):
    """Each name that ncu is asked for is one that some column uses, and each column of the purpose gets its value
    from them."""
    names = metrics.collect_list(purpose, cc)
    assert len(names) == len(set(names)) and set(names) <= metrics.raw_names()
    found = metrics.resolve({name: (2, "") for name in names}, cc)
    used = {name for column in found.used.values() for name in column}
    missing = set(metrics.PURPOSES[purpose]) - set(found.values) - {"l2_size_bytes", "sm_count"}
    missing -= {"tensor_ops"} if cc == "7.0" else set()  # Volta's tensor cores have no integers
    missing -= {"spill_requests"} if cc == "7.0" else set()
    assert not missing and all("peak_sustained" in name for name in set(names) - used)
