"""Shapes as ncu of 2024 and later prints them, seen in public logs; the numbers are made up and worked out here."""

from __future__ import annotations

import pytest

from tests.parse.conftest import column, read

HEADER = ('"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
          '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
          '"Rule Description","Estimated Speedup Type","Estimated Speedup"\n')
WHO = '"0","77","app","127.0.0.1","copy<int>(int *, int)","1","7","(256, 1, 1)","(1024, 1, 1)","0","10.0",'
ROWS = (WHO + '"GPU Speed Of Light Throughput","Duration","ns","21,058",\n'
        + WHO + '"SpeedOfLight","","","","SOLBottleneck","OPT","Memory is utilized, see ""Tables"".","",""\n'
        + WHO + '"Launch Statistics","Cluster Scheduling Policy","","PolicySpread",\n'
        + WHO + '"Launch Statistics","Registers Per Thread","register/thread","32",\n'
        + WHO + '"Occupancy","Achieved Occupancy","%","96.26",\n')


def test_rows_of_metrics_end_with_a_comma_where_rules_follow():
    bundle = read("==PROF== Disconnected from process 77\n" + HEADER + ROWS)
    assert bundle.notes == () and len(bundle.metrics) == 4
    assert column(bundle, "duration_ns") == [21_058] and column(bundle, "registers_per_thread") == [32]
    assert column(bundle, "achieved_occupancy_pct") == [96.26] and column(bundle, "cc") == ["10.0"]


def test_a_cut_row_of_them_is_still_said():
    bundle = read(HEADER + ROWS.removesuffix('"96.26",\n') + '"96')
    assert column(bundle, "achieved_occupancy_pct") == [None] and any("cut short" in note for note in bundle.notes)


RULE = "      ------------------------------------------------- ----------- ------- ------- -------\n"
SUMMARY = ("      Section: Command line profiler metrics\n" + RULE +
           "      Metric Name                                       Metric Unit Minimum Maximum Average\n" + RULE +
           "      sm__warps_active.avg.pct_of_peak_sustained_active           %   70.30   78.18   73.84\n"
           + RULE + "\n")


@pytest.mark.parametrize(("heading", "devices", "cc"), [
    ("", ", Device 0, CC 11.0", ["11.0"] * 2), ("  Device 0, CC 9.0\n", "", ["9.0"] * 2), ("", "", [None] * 2)],
    ids=["per-kernel", "per-gpu", "neither"])
def test_summaries_name_the_gpu_with_each_kernel_or_above_them_all(heading, devices, cc):
    kernels = [f"    {name}(int *, int) (16384, 1, 1)x(512, 1, 1){devices}, Invocations {n}\n{SUMMARY}"
               for name, n in (("merge", 300), ("fill", 1))]
    bundle = read(f"[77] app@127.0.0.1\n{heading}{''.join(kernels)}")
    assert column(bundle, "kernel") == ["merge(int *, int)", "fill(int *, int)"] and column(bundle, "cc") == cc
    assert column(bundle, "achieved_occupancy_pct") == [73.84] * 2
    assert [note for note in bundle.notes if "2 rows are summaries" not in note] == []


def test_two_grids_of_one_kernel_in_a_summary_are_no_damage():
    header = ('"Process ID","Process Name","Host Name","Kernel Name","Block Size","Grid Size","Device","CC",'
              '"Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"\n')
    rows = [f'"77","app","127.0.0.1","k(int)","(256, 1, 1)","({n}, 1, 1)","0","9.0","14","Occupancy",'
            f'"Achieved Occupancy","%","73.56","79.38","{average}"\n' for n, average in ((4096, 74.92), (64, 75.5))]
    bundle = read(header + "".join(rows))
    assert column(bundle, "achieved_occupancy_pct") == [74.92, 75.5]
    assert len(bundle.notes) == 1 and "2 rows are summaries" in bundle.notes[0]
