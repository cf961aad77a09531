"""The recorded reports and exports: values written down by hand beside them, through the worker process, as a user
has them."""

from __future__ import annotations

import json

import pytest

from profiler import parse
from profiler.errors import CountersNotPermitted, UnsupportedFile
from profiler.roles import short_name
from tests.parse.conftest import DATA, column

EXPECTED = json.loads((DATA / "exports" / "expected.json").read_text())
READABLE = [name for name, want in EXPECTED.items() if want["launches"]]


@pytest.mark.parametrize("name", READABLE)
def test_export_gives_its_expected_values(name):
    want = EXPECTED[name]
    bundle = parse.load(DATA / "exports" / name)
    assert len(bundle.launches) == want["launches"]
    for key, value in want.items():
        if key in bundle.launches.columns:
            got = column(bundle, key)
            expected = value if isinstance(value, list) else [value] * want["launches"]
            assert [round(v) if isinstance(v, float) and isinstance(e, int) else v for v,
                    e in zip(got, expected)] == expected, key
    assert bundle.profile["kind"] == "report"
    assert bundle.profile["file"]["name"] == name


def test_a_display_name_with_two_units_keeps_both_rows():
    raw = parse.load(DATA / "exports" / "long_details_with_rules_ragged.csv").metrics
    rows = raw[raw["metric"] == "Memory Throughput"]
    assert dict(zip(rows["unit"], rows["value"])) == {"%": "61.20", "byte/s": "951,234,567,890"}
    assert dict(zip(rows["unit"], rows["used_for"].notna())) == {"%": False, "byte/s": True}


def test_an_unknown_unit_is_kept_by_name():
    raw = parse.load(DATA / "exports" / "wide_raw_units_row_nvtx.csv").metrics
    assert list(raw[raw["unit"] == "widget"]["value"]) == ["5", "n/a", ""]


def test_permission_error_is_called_that():
    with pytest.raises(CountersNotPermitted) as caught:
        parse.load(DATA / "exports" / "no_table_permission_error.csv")
    assert "NVreg_RestrictProfilingToAdminUsers" in caught.value.remedy


def test_a_foreign_file_shows_its_first_lines():
    with pytest.raises(UnsupportedFile, match="date,price"):
        parse.load(DATA / "exports" / "not_ncu_at_all.csv")


def test_h100_report():
    bundle = parse.load(DATA / "reports" / "h100_five_kernels.ncu-rep")
    assert column(bundle, "duration_ns") == [3968, 4224, 4192, 3968, 3968]
    assert set(bundle.launches["kernel"]) == {"stochastic_round_bf16"}
    first = bundle.launches.iloc[0]
    assert (first["device"], first["cc"], first["grid"], first["block"]) == ("NVIDIA H100", "9.0", "1,1,1", "256,1,1")
    assert first["dram_peak_bytes_per_s"] == pytest.approx(1536 * 1580645161.2903225)
    assert first["l2_bytes"] == 52847 * 32
    assert bundle.profile["ncu"] == "2024.3.2.0" and bundle.profile["driver"] == "535.154.05"
    assert bundle.profile["gpu"]["l2_size_bytes"] == 62914560


def test_a100_report_keeps_integer_operations_apart():
    """Each GEMM of the CUTLASS example is 12288×64×576 in int8: 2·m·n·k operations, none of them floating point."""
    bundle = parse.load(DATA / "reports" / "a100_cutlass_int8_three_kernels.ncu-rep")
    one = 2 * 12288 * 64 * 576
    assert column(bundle, "tensor_ops") == [one, one, 2 * one]
    assert column(bundle, "tensor_flops") == [0, 0, 0]
    assert column(bundle, "tensor_dtype") == ["int8"] * 3
    assert column(bundle, "fp32_flops") == [0, 0, 36864 * 32 * 2]
    assert column(bundle, "range") == ["Non-fused-GEMM", "Non-fused-GEMM", "Fused-GEMM"]
    assert all(kernel.startswith("void cutlass::Kernel<cutlass::gemm::") for kernel in column(bundle, "kernel")[:2])
    assert short_name(column(bundle, "kernel")[0]) == "Kernel<Gemm>"
    assert bundle.profile["commands"]["ncu"].startswith("ncu --cache-control all --clock-control base")
    assert "cutlass" not in bundle.profile["commands"]["ncu"], "the program and its path stay out"


def test_v100_report():
    """fp32 work of the third kernel from its executed instructions: 22,357,376 FFMA warps of 32 threads, 2 operations
    each."""
    bundle = parse.load(DATA / "reports" / "v100_openacc_five_kernels.ncu-rep")
    assert len(bundle.launches) == 5
    assert column(bundle, "fp32_flops")[2] == pytest.approx(22357376 * 32 * 2)
    assert column(bundle, "dram_peak_bytes_per_s")[2] == pytest.approx(897.6e9, rel=1e-3)
    assert set(column(bundle, "tensor_flops")) == {0}


def test_nvtx_ranges_are_named_from_outermost_to_innermost():
    bundle = parse.load(DATA / "reports" / "rtx3070_nvtx_ranges.ncu-rep")
    assert column(bundle, "range") == ["init_data", "daxpy", "check_results"]
    assert column(bundle, "kernel")[0] == "init_data_kernel(int, double *)"
    assert column(bundle, "range_path") == ["run_test/init_data", "run_test/daxpy", "run_test/check_results"]
    assert column(bundle, "dram_read_bytes") == [None] * 3, "the basic set does not count bytes"
    # 256 bit, two transfers a clock, 6.684848484848485 GHz
    assert column(bundle, "dram_peak_bytes_per_s")[0] == pytest.approx(256 / 8 * 2 * 6684848484.848485)


def test_files_of_one_name_stay_apart(tmp_path):
    for folder, sample in (("a", "rtx3070_one_kernel"), ("b", "rtx3070_nvtx_ranges")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.ncu-rep").write_bytes((DATA / "reports" / f"{sample}.ncu-rep").read_bytes())
    one, two = parse.load_many([tmp_path / "a" / "r.ncu-rep", tmp_path / "b" / "r.ncu-rep"])
    assert (one.name, two.name) == ("r.ncu-rep", "r.ncu-rep (2)")
    assert (len(one.launches), len(two.launches)) == (1, 3)
    assert set(two.launches["source"]) == {"r.ncu-rep (2)"}
