"""Damage that the vendor's reader passes over: a launch that comes back without a name and without counters."""

from pathlib import Path

from profiler import parse

REPORT = Path(__file__).resolve().parents[1] / "data/reports/h100_five_kernels.ncu-rep"


def test_a_launch_lost_to_a_flipped_bit_is_said(tmp_path):
    data = bytearray(REPORT.read_bytes())
    data[405679] ^= 0x04  # inside the first launch
    damaged = tmp_path / "flipped.ncu-rep"
    damaged.write_bytes(data)
    read = parse.load(damaged)
    assert read.launches["duration_ns"].isna().tolist() == [True, False, False, False, False]
    assert any("Launches 0 have neither a name nor a counter" in note for note in read.notes)


def test_a_whole_report_says_nothing_of_the_kind():
    assert not any("neither a name" in note for note in parse.load(REPORT).notes)
