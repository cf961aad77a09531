"""Theorem 2, Proposition 3 and the paper's own table, against numbers worked out by hand."""

import pytest

from profiler.errors import BadInput
from profiler.model import theory


def test_standard_attention_touches_every_matrix_element_four_times():
    n, d = 3, 2
    accesses = 0
    accesses += 2 * n * d + n * n  # read Q, K; write S
    accesses += 2 * n * n  # read S; write P
    accesses += n * n + n * d + n * d  # read P, V; write O
    assert theory.standard_accesses(n, d) == accesses == 60


def test_theorem2_halves_with_twice_the_memory_and_quadruples_with_twice_the_length():
    at = theory.theorem2(4096, 64, 8192)
    assert at.flash == 4096**2 * 64**2 / 8192 == 8_388_608
    assert at.standard == 4096 * 64 + 4096**2
    assert theory.theorem2(4096, 64, 16384).flash == at.flash / 2
    assert theory.theorem2(8192, 64, 8192).flash == 4 * at.flash


@pytest.mark.parametrize(("m", "applies"), [(63, False), (64, True), (64 * 1024, True), (64 * 1024 + 1, False)])
def test_theorem2_speaks_for_m_from_d_to_nd(m, applies):
    assert theory.theorem2(1024, 64, m).applies is applies


def test_at_the_largest_m_the_theorem_meets_the_lower_bound():
    n, d = 1024, 64
    assert theory.theorem2(n, d, n * d).flash == n * d  # same order as reading the inputs and writing the output
    assert theory.proposition3(n, d) == 4 * 65_536


def test_algorithm1_counted_block_by_block():
    n, d, m = 100, 8, 500
    columns = 16  # ⌈500/32⌉
    count = 0
    for start in range(0, n, columns):
        count += 2 * min(columns, n - start) * d  # K_j, V_j
        for row in range(n):
            del row
            count += d + 2 * d + 4  # Q_i in, O_i in and out, ℓ and m in and out
    found = theory.algorithm1(n, d, m)
    assert (found.block_columns, found.block_rows, found.outer, found.accesses) == (16, 8, 7, count)


def test_the_papers_table():
    standard, flash = theory.paper_table()
    # one N×N matrix of the batch: 64·16·1024²·2 B = 2.147483648 GB; one of Q, K, V, O: 0.134217728 GB
    assert standard.schedule_gb == pytest.approx(11 * 2.147483648 + 12 * 0.134217728)
    assert flash.least_gb == pytest.approx(12 * 0.134217728)
    assert standard.most_gb == pytest.approx(19 * 2.147483648 + 12 * 0.134217728)  # mask and dropout, both ways
    assert standard.least_gb < standard.printed_gb < standard.most_gb
    assert flash.least_gb < flash.printed_gb
    assert flash.schedule_gb == pytest.approx(flash.printed_gb, rel=0.1)
    assert standard.whole_gflop == pytest.approx(824.6, abs=0.1)
    assert flash.whole_gflop == pytest.approx(962.1, abs=0.1)
    ratios = theory.paper_ratios()
    assert ratios["bytes_printed"] == pytest.approx(9.16, abs=0.01)
    assert ratios["bytes_schedule"] < ratios["bytes_printed"] < ratios["bytes_most"]
    assert ratios["flops_counted"] == pytest.approx(7 / 6)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(BadInput, match="M: expected a positive number, got 0"):
        theory.theorem2(1024, 64, 0)
