"""The sentence and the cards of the Evidence page against numbers worked out by hand."""

from dataclasses import replace

import pytest

from profiler.dashboard.components import summary
from profiler.evidence import Faster, Headline, Side
from profiler.spec import AttentionShape
from tests import synthetic

NOTHING = dict.fromkeys(name for name in Side.__dataclass_fields__ if name not in ("implementation", "stages"))


def side(name: str, **known) -> Side:
    return Side(implementation=name, stages=(), **{**NOTHING, **known})


@pytest.fixture
def h() -> Headline:
    naive = side("naive", dram_bytes=3.2e9, tensor_flops=68.7e9, median_ns=1.4e6, peak_memory_bytes=1.0e9,
                 achieved_occupancy_pct=75.0, tensor_pipe_pct=6.75)
    flash = side("flash2", dram_bytes=27.2e6, tensor_flops=68.7e9, median_ns=0.2e6, peak_memory_bytes=10e6,
                 error_relative=0.0023, achieved_occupancy_pct=12.5, tensor_pipe_pct=43.7)
    return Headline(AttentionShape(1, 16, 4096, 4096, 64), naive, None, flash, 32_000_000, 537_000_000, 60_000_000,
                    68_700_000_000, 100.0, 117.6, 7.0, None, 100.0, 0.0046)


def plain(words: str) -> str:
    return words.replace("\u00a0", " ")


def test_the_sentence_has_the_floor_the_same_work_and_the_speed(h):
    assert plain(summary.sentence(h)) == (
        "FlashAttention-2 (Triton) needs 100× fewer HBM bytes than naive attention: 32.0 MB instead of 3.20 GB, "
        "for the same work, and is 7.00× as fast.")


def test_the_sentence_does_not_claim_equal_work_or_speed_that_is_not_there(h):
    more = replace(h, flash=replace(h.flash, tensor_flops=120.225e9), speedup=0.5)
    assert "same work" not in summary.sentence(more) and "at 1.75× the matmul work" in summary.sentence(more)
    assert "yet takes 2.00× the time" in summary.sentence(more)
    unknown = replace(h, flash=replace(h.flash, tensor_flops=None), speedup=None)
    assert "work" not in summary.sentence(unknown) and "fast" not in summary.sentence(unknown)


def test_the_basis_says_what_was_counted_and_blames_l2_only_when_less_was_counted(h):
    said = plain(summary.basis(h, "forward"))
    assert "32.0 MB" in said and "27.2 MB (118× fewer)" in said and "60.0 MB" in said and "flatters" in said
    above = plain(summary.basis(replace(h, flash=replace(h.flash, dram_bytes=40e6), ratio_counted=80.0), "forward"))
    assert above.endswith("Counted were 40.0 MB (80.0× fewer).")
    assert "dQ" in summary.basis(h, "backward") and "dQ" not in said
    assert "Counted" not in summary.basis(replace(h, flash=replace(h.flash, dram_bytes=None)), "forward")


def test_two_ratios_are_told_apart_where_more_was_counted_than_must_move(h):
    assert summary.ratios(h) == "", "fewer bytes counted: a point stands at the compulsory ones, as the headline"
    above = replace(h, flash=replace(h.flash, dram_bytes=40e6), ratio_counted=80.0)
    said = plain(summary.ratios(above))
    assert "3.20 GB over 40.0 MB: 80.0×" in said and "100×, is naive's bytes over the 32.0 MB" in said


def test_the_configuration_is_named_and_a_faster_one_elsewhere(h):
    tuned = {"block_m": 64, "block_n": 128, "num_warps": 4, "num_stages": 2, "tma": True}
    ours = replace(h, flash=replace(h.flash, parameters=tuned, configurations=1))
    said = summary.configuration(ours, None)
    assert said == "FlashAttention-2 (Triton) ran with 64 × 128 (query rows × keys a block), 4 warps, 2 stages."
    faster = Faster("tuned", {"block_m": 128, "block_n": 128, "num_warps": 4, "num_stages": 3}, 166e3, 170e3, None)
    assert plain(summary.configuration(ours, faster)).endswith(
        "It is not the fastest known: tuned holds 128 × 128, 4 warps, 3 stages, which takes 166 µs; this one takes "
        "170 µs.")
    there = plain(summary.configuration(ours, replace(faster, same_ns=175e3)))
    assert there.endswith("this one takes 175 µs there.")
    many = replace(ours, flash=replace(ours.flash, configurations=16))
    assert "the fastest of 16 configurations here" in summary.configuration(many, None)
    assert summary.configuration(replace(h, flash=replace(h.flash, parameters={})), None) == ""


def test_the_furthest_residuals_are_named_with_their_causes():
    bundle = synthetic.bundle(lengths=(4096,), head_dims=(64,), masks=("full",))
    rows = bundle.launches.copy()
    rows.loc[rows["implementation"].eq("flash2"), "l2_to_sm_bytes"] *= 1.05
    table = summary.furthest(replace(bundle, launches=rows), "l2_to_sm")
    assert list(table["measured ÷ predicted"]) == ["105.00%"] and list(table["within"]) == ["no"]
    assert "rest 27.3 MB" in plain(table["what makes it up"][0])  # 5% of Q + 32·2·Q


def test_without_naive_there_is_no_ratio(h):
    alone = replace(h, naive=None, ratio_by_floor=None, ratio_counted=None, speedup=None, memory_ratio=None)
    assert "×" not in summary.sentence(alone)
    assert [card.kind for card in summary.cards(alone)] == ["predicted", "missing", "missing", "measured", "measured"]
    assert [summary.cards(alone, way)[0].basis.split("·")[0] for way in ("forward", "backward")] == ["4", "10"]


def test_the_cards_say_how_each_number_is_known(h):
    flops, memory, speed, error, occupancy = summary.cards(h)
    assert (flops.value.replace("\u00a0", " "), flops.kind) == ("68.7 GFLOP, both", "measured")
    assert (memory.value, memory.kind) == ("100× less", "derived")
    assert (speed.value, speed.kind) == ("7.00× as fast", "derived") and "200" in speed.basis
    assert (error.value, error.kind) == ("0.00230", "measured") and "0.00460" in error.basis
    assert occupancy.value == "12.5% · 43.7%" and "75.0% · 6.75%" in occupancy.basis


def test_the_papers_table_is_as_printed_beside_what_is_counted_from_its_algorithms():
    rows = summary.paper_rows().set_index("")
    assert [cell.replace("\xa0", " ") for cell in rows.loc["HBM bytes, printed"]] == ["40.3 GB", "4.40 GB", "9.16×"]
    # 64·16 heads, 2 bytes: standard 12·N·d + 11·N² elements
    counted = 64 * 16 * 2 * (12 * 1024 * 64 + 11 * 1024**2) / 1e9
    assert rows.loc["HBM bytes, counted from the algorithm"].iloc[0].replace("\xa0", " ") == f"{counted:.1f} GB"
