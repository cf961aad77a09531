"""Roofs and points by hand."""

import pytest

from profiler.model import pick, ridge, roofline_point, roofs, special_function_roof
from profiler.model.roofs import COUNTERS, DATA_SHEET, MEASURED, core_roofs
from profiler.spec import DeviceSpec

ROW = {"dram_peak_bytes_per_s": 4.8e12, "l2_peak_bytes_per_s": 1.2e13, "tensor_peak_flops_per_s": 9.44e14,
       "tensor_dtype": "bf16", "sm_count": 132, "sm_clock_hz": 1.746e9}


def test_special_functions_tie_with_a_dense_peak_of_4096_a_cycle_at_head_size_64():
    assert special_function_roof(64, 132, 1.746e9) == pytest.approx(4096 * 132 * 1.746e9)
    assert special_function_roof(32, 132, 1.746e9) == pytest.approx(2048 * 132 * 1.746e9)


def test_every_roof_names_its_source():
    ceilings = [{"quantity": "dram_copy_bytes_per_s", "value": 4.2e12, "how": "copy"},
                {"quantity": "matmul_fp16_flops_per_s", "value": 7e14, "how": "matmul"}]
    sheet = DeviceSpec("made up", "9.0", dram_bytes_per_s=5e12, tensor_flops_per_s=1e15)
    found = roofs(counters=ROW, ceilings=ceilings, device=sheet, dtype="bf16", head_dim=64)
    assert [(r.name, r.source) for r in found if r.name == "dram"] == [
        ("dram", COUNTERS), ("dram", MEASURED), ("dram", DATA_SHEET)]
    assert pick(found, "tensor").value == 9.44e14
    assert pick(found, "tensor", MEASURED) is None  # the matmul was fp16, the question is bf16
    assert pick(found, "l2_to_sm").value == pytest.approx(64 * 132 * 1.746e9)


def test_a_missing_counter_gives_no_roof():
    assert roofs(counters={**ROW, "dram_peak_bytes_per_s": None, "sm_clock_hz": float("nan")}, dtype="fp16") == roofs(
        counters={"l2_peak_bytes_per_s": 1.2e13})


def test_several_kernels_are_sums_not_a_mean_of_ratios():
    point = roofline_point([100, 0], [10, 90], [1, 3])
    assert (point.intensity, point.flops_per_s) == (1.0, 25e9)  # a mean of 10 and 0 would say 5


def test_ridge():
    found = roofs(counters=ROW)
    assert ridge(pick(found, "tensor"), pick(found, "dram")) == pytest.approx(944 / 4.8)


def test_cuda_core_and_special_function_roofs():
    found = {r.name: r.value for r in core_roofs("7.0", 80, 1.53e9)}
    assert found["fp32"] == pytest.approx(15.7e12, rel=0.003)  # the V100 data sheet's 15.7 and 7.8 TFLOP/s at boost
    assert found["fp64"] == pytest.approx(7.8e12, rel=0.005)
    assert found["special_rate"] == 16 * 80 * 1.53e9
    assert core_roofs("99.0", 80, 1.53e9) == [] and core_roofs("7.0", None, 1.53e9) == []


def test_a_copy_and_a_read_are_two_roofs_with_two_names():
    ceilings = [{"quantity": "dram_copy_bytes_per_s", "value": 4.26e12}, {"quantity": "dram_read_bytes_per_s",
                                                                         "value": 4.32e12}]
    assert [(r.detail, r.value) for r in roofs(ceilings=ceilings)] == [("copy", 4.26e12), ("read", 4.32e12)]
