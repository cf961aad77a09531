"""Data-sheet peaks, against the figures printed in NVIDIA's sheets and papers, and what must not be lent."""

from __future__ import annotations

import pytest

from profiler.devices import DEVICES, find

# (name as reports write it, cc, operand, accumulator, dense TFLOP/s of the sheet)
PRINTED = [
    ("Tesla V100-SXM2-32GB", "7.0", "fp16", "fp32", 125), ("Tesla T4", "7.5", "fp16", "fp32", 65),
    ("NVIDIA A100-SXM4-80GB", "8.0", "bf16", "fp32", 312), ("NVIDIA A100 80GB PCIe", "8.0", "int8", "int32", 624),
    ("NVIDIA A30", "8.0", "fp16", "fp32", 165), ("NVIDIA A10", "8.6", "fp16", "fp32", 125),
    ("NVIDIA A40", "8.6", "bf16", "fp32", 149.7),
    ("NVIDIA GeForce RTX 3070", "8.6", "fp16", "fp32", 40.6), ("NVIDIA GeForce RTX 3090", "8.6", "fp16", "fp16", 142),
    ("NVIDIA L4", "8.9", "fp16", "fp32", 121), ("NVIDIA L40S", "8.9", "fp8", "fp32", 733),
    ("NVIDIA GeForce RTX 4090", "8.9", "fp16", "fp32", 165.2),
    ("NVIDIA GeForce RTX 4090", "8.9", "fp16", "fp16", 330.3), ("NVIDIA GeForce RTX 4090", "8.9", "fp8", "fp16", 660.6),
    ("NVIDIA H100 80GB HBM3", "9.0", "bf16", "fp32", 1979 / 2), ("NVIDIA H100 PCIe", "9.0", "bf16", "fp32", 1513 / 2),
    ("NVIDIA H100 NVL", "9.0", "fp16", "fp32", 1671 / 2), ("NVIDIA H200", "9.0", "fp8", "fp32", 3958 / 2),
    ("NVIDIA H20", "9.0", "bf16", "fp32", 148), ("NVIDIA H20", "9.0", "int8", "int32", 296),
    ("NVIDIA L40", "8.9", "fp16", "fp32", 181.05), ("NVIDIA L40S", "8.9", "fp16", "fp32", 733 / 2),
    ("NVIDIA RTX A4500", "8.6", "fp16", "fp32", 189.2 / 2), ("NVIDIA A800-SXM4-80GB", "8.0", "int8", "int32", 623.7),
    ("NVIDIA GeForce RTX 2080 SUPER", "7.5", "fp16", "fp32", 44.6), ("NVIDIA GB200", "10.0", "fp8", "fp32", 5000),
    ("NVIDIA B300 SXM6 AC", "10.3", "bf16", "fp32", 2250), ("NVIDIA GeForce RTX 5080", "12.0", "fp16", "fp16", 225.1),
    ("NVIDIA B200", "10.0", "bf16", "fp32", 4500 / 2), ("NVIDIA GeForce RTX 5090", "12.0", "fp16", "fp32", 209.5),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", "fp16", "fp32", 503.8),
]


@pytest.mark.parametrize("name, cc, operand, accumulator, teraflops", PRINTED, ids=lambda v: str(v))
def test_printed_peaks(name, cc, operand, accumulator, teraflops):
    device = find(name, cc)
    assert device is not None and device.source
    assert device.peak(operand, accumulator) == pytest.approx(teraflops * 1e12, rel=0.01)


@pytest.mark.parametrize("name, cc, sms", [
    ("NVIDIA H100", "9.0", 132),  # not a product of that name
    ("NVIDIA GeForce RTX 3070 Laptop GPU", "8.6", 40), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0", 14),
    ("NVIDIA H100 80GB HBM3", "9.0", 114),
    ("NVIDIA H200", "8.0", None), ("Orin", "8.7", 8), ("", "9.0", None), (None, None, None), ("H100", "9.0", None),
    ("Synthetic GPU", "9.0", 132),
])
def test_another_gpus_peak_is_never_lent(name, cc, sms):
    assert find(name, cc, sms) is None


def test_the_recorded_gpus_are_known():
    assert find("NVIDIA A100 80GB PCIe", "8.0", 108.0).dram_bytes_per_s == 1.935e12
    assert find("NVIDIA GeForce RTX 3070", "8.6", 46).spec("fp16").tensor_flops_per_s == pytest.approx(
        40.6e12, rel=0.01)
    assert find("Tesla V100-SXM2-32GB", "7.0", 80).fp32_flops_per_s == pytest.approx(15.7e12, rel=0.01)


@pytest.mark.parametrize("name, gigabytes, l2_mib", [
    ("NVIDIA H100 80GB HBM3", 3352, 50), ("NVIDIA H100 PCIe", 2039, 50), ("NVIDIA H100 NVL", 3938, 50),
    ("NVIDIA H20", 4000, 60), ("NVIDIA L4", 300, 48), ("NVIDIA L40S", 864, 96), ("NVIDIA A10", 600, 6),
    ("NVIDIA A30", 933, 24), ("NVIDIA A40", 696, 6), ("NVIDIA GeForce RTX 5090", 1792, 96),
    ("NVIDIA GeForce RTX 5070 Ti", 896, 48), ("NVIDIA A100-SXM4-40GB", 1555, 40), ("NVIDIA B200", 8000, None)])
def test_printed_bandwidth_and_l2(name, gigabytes, l2_mib):
    device = find(name)
    assert device.dram_bytes_per_s == gigabytes * 1e9
    assert device.l2_size_bytes == (l2_mib * 2**20 if l2_mib else None)


def test_at_another_clock_only_where_the_peak_is_a_rate_a_cycle():
    assert find("NVIDIA A100 80GB PCIe").peak_at(1.05e9, "int8", "int32") == pytest.approx(4096 * 108 * 1.05e9)
    assert find("NVIDIA H100 80GB HBM3").peak_at(1.05e9, "bf16") is None  # rated below its highest clock


def test_no_operand_type_is_made_up():
    v100 = find("Tesla V100-SXM2-32GB")
    assert v100.peak("bf16") is None and v100.peak("fp8") is None and v100.spec("bf16").tensor_flops_per_s is None


def test_each_entry_is_plausible_and_named_once():
    assert len({d.name.casefold() for d in DEVICES}) == len(DEVICES)
    for d in DEVICES:
        assert 5e8 < d.boost_hz < 3e9 and 1e11 < d.dram_bytes_per_s <= 8e12 and d.source and d.fp32_flops_per_s > 1e12
        assert not d.peaks or d.peak("fp16", "fp16") >= d.peak("fp16", "fp32")
        tf32 = d.peak("tf32")
        assert tf32 is None or tf32 == pytest.approx(d.peak("fp16") / 2,
                                                     rel=0.01), "tf32 runs at half of fp16 everywhere"
