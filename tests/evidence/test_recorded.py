"""The recorded H200 profile against numbers read from its raw counters and formulas worked out here, nothing fitted."""

import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from profiler import bundle as bundles
from profiler import evidence
from profiler.evidence.__main__ import lines
from profiler.spec import AttentionShape
from tests.evidence.test_claims import changed, verdicts

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
CAUSAL = replace(SHAPE, mask="causal")
Q, MATRIX, L2 = 8_388_608, 536_870_912, 62_914_560  # 16·4096·64·2 B, 16·4096²·2 B, and the size the GPU reports
# Read by hand from dram__bytes_read.sum and dram__bytes_write.sum, in MB
COUNTED = {("naive", "scores"): (17.03, 510.2), ("naive", "scale"): (536.88, 513.2),
           ("naive", "softmax"): (536.88, 518.9), ("naive", "values"): (545.29, 2.5),
           ("naive_folded", "scores"): (17.07, 510.1), ("naive_folded", "softmax"): (536.89, 518.7),
           ("naive_folded", "values"): (545.34, 2.5), ("flash2", "attention"): (25.25, 2.1),
           ("sdpa_flash", "attention"): (25.23, 2.2), ("sdpa_cudnn", "attention"): (25.19, 1.5)}
OPERANDS = {"scores": (2 * Q, MATRIX), "scale": (MATRIX, MATRIX), "softmax": (MATRIX, MATRIX),
            "values": (MATRIX + Q, Q), "attention": (3 * Q, Q)}


@pytest.fixture(scope="module")
def bundle():
    return bundles.read(Path(__file__).parents[2] / "data" / "h200-evidence")


@pytest.fixture(scope="module")
def claims(bundle):
    return {claim.id: claim for claim in evidence.evaluate(bundle)}


@pytest.fixture(scope="module")
def parity(bundle):
    return evidence.parity(bundle)


def raw(bundle, metric, launches):
    """Σ of a counter over launches, from the text of the raw metrics."""
    rows = bundle.metrics
    rows = rows[rows["metric"].eq(metric) & rows["launch"].isin(list(launches))]
    return sum(int(float(value)) for value in rows["value"])


def launches(bundle, implementation, stage=None, shape=SHAPE):
    rows = bundle.launches
    rows = rows[rows["implementation"].eq(implementation) & rows["nq"].eq(shape.nq)
                & rows["head_dim"].eq(shape.head_dim) & rows["mask"].eq(shape.mask)]
    return rows[rows["stage"].eq(stage)] if stage else rows


@pytest.mark.parametrize(("name", "stage"), COUNTED, ids=lambda part: part)
def test_each_launch_reads_what_it_must_and_writes_less_what_l2_keeps(bundle, name, stage):
    row = launches(bundle, name, stage)
    read, write = (raw(bundle, f"dram__bytes_{way}.sum", row["launch"]) for way in ("read", "write"))
    assert (row["dram_read_bytes"].item(), row["dram_write_bytes"].item()) == (read, write)
    assert read / 1e6 == pytest.approx(COUNTED[name, stage][0], rel=0.01)
    assert write / 1e6 == pytest.approx(COUNTED[name, stage][1], abs=10)  # what stays in L2 differs from run to run
    must, written = OPERANDS[stage]
    assert must <= read <= 1.02 * must
    assert max(0, written - L2) <= write <= written


def test_the_headline_is_the_counters_and_nothing_else(bundle):
    assert evidence.default_shape(bundle) == SHAPE
    h = evidence.headline(bundle, SHAPE)
    for side, name in ((h.naive, "naive"), (h.naive_folded, "naive_folded"), (h.flash, "flash2")):
        rows = launches(bundle, name)
        numbers = rows["launch"]
        assert side.dram_bytes == raw(bundle, "dram__bytes_read.sum", numbers) + raw(bundle, "dram__bytes_write.sum",
                                                                                    numbers)
        assert side.tensor_flops == raw(bundle, "sm__ops_path_tensor_src_bf16_dst_fp32.sum", numbers) == 68_719_476_736
    assert (h.naive.matrix_passes, h.naive_folded.matrix_passes, h.flash.matrix_passes) == (6, 4, 0)
    assert (h.compulsory_bytes, h.l2_size_bytes, h.matrix_bytes) == (4 * Q, L2, MATRIX)
    assert h.ratio_by_floor == h.naive.dram_bytes / (4 * Q) == pytest.approx(94.8, abs=0.5)
    assert h.naive.peak_memory_bytes == 2 * MATRIX and h.flash.peak_memory_bytes == Q
    assert h.memory_ratio == 128  # 2·16·N²·2 B over 16·N·D·2 B is 2·N/D


def test_the_ledger_adds_up_to_the_counters_of_every_run(bundle):
    for shape in evidence.shapes(bundle):
        for name in ("naive", "naive_folded", "flash2", "sdpa_flash", "sdpa_cudnn"):
            sums = defaultdict(float)
            for row in evidence.ledger(bundle, name, shape):
                # a shortfall is spread over the tensors already; an excess stands in its own row
                sums[row.stage, row.direction] += row.measured_bytes
            for (stage, way), total in sums.items():
                assert total == pytest.approx(launches(bundle, name, stage, shape)[f"dram_{way}_bytes"].sum())


def test_all_claims_are_decided_with_the_other_profiles_of_this_gpu(bundle):
    """Backward, decode and block sizes are no part of this suite: the profiles that hold them are named."""
    data = Path(__file__).parents[2] / "data"
    others = [bundles.read(data / f"h200-{name}") for name in ("backward", "decode", "tuning")]
    found = {c.id: c for c in evidence.evaluate_beside([bundle, *others], SHAPE)}
    assert {c.verdict for c in found.values()} <= {"holds", "fails"}
    assert {name: c.source for name, c in found.items() if c.source} == {
        "block_size_raises_intensity": "h200-tuning", "recomputation_pays": "h200-backward",
        "decode_memory_bound": "h200-decode"}
    # what a short sequence cannot show is not taken from another profile
    small = {c.id: c for c in evidence.evaluate_beside([bundle, *others], replace(SHAPE, nq=512, nk=512))}
    assert small["naive_passes"].verdict == "cannot tell" and not small["naive_passes"].source
    elsewhere = replace(others[0], profile={**others[0].profile, "gpu": {"name": "another"}})
    assert {c.source for c in evidence.evaluate_beside([bundle, elsewhere], SHAPE)} == {""}


def test_the_headline_says_its_configuration_and_a_faster_one_elsewhere(bundle):
    tuning = bundles.read(Path(__file__).parents[2] / "data" / "h200-tuning")
    h = evidence.headline(bundle, SHAPE)
    row = launches(bundle, "flash2").iloc[0]
    assert dict(h.flash.parameters) == json.loads(row["parameters"]) and h.flash.configurations == 1
    rows = tuning.timings[tuning.timings["head_dim"].eq(64) & tuning.timings["status"].eq("ok")]
    quickest = rows.loc[rows["median_ns"].astype(float).idxmin()]
    found = evidence.faster([bundle, tuning], SHAPE)
    assert found.source == "h200-tuning" and found.median_ns == quickest["median_ns"] < h.flash.median_ns
    assert dict(found.parameters) == json.loads(quickest["parameters"])
    assert evidence.faster([tuning, bundle], SHAPE) is None


DECIDED = {  # claim → verdicts (holds, fails, cannot tell) over the 24 shapes; S is beyond 4 × L2 from N 4096 on
    "same_result": (24, 0, 0), "same_flops": (24, 0, 0), "no_s_p_in_hbm": (24, 0, 0), "naive_passes": (12, 0, 12),
    "compulsory_floor": (18, 0, 6), "memory_linear": (24, 0, 0), "speedup": (24, 0, 0),
    "occupancy_not_speed": (24, 0, 0), "naive_memory_bound": (12, 0, 12), "theorem_l2_to_sm": (24, 0, 0)}


@pytest.mark.parametrize("name", DECIDED)
def test_what_the_articles_claim_holds_wherever_the_data_decides(claims, name):
    holds, fails, open_ = (sum(c.verdict == v for c in claims[name].cases) for v in ("holds", "fails", "cannot tell"))
    assert claims[name].verdict == "holds" and claims[name].shape == SHAPE
    assert fails == 0 and holds >= DECIDED[name][0] - 2 and holds + open_ == 24, claims[name]
    assert all(c.missing for c in claims[name].cases if c.verdict == "cannot tell")


def test_passes_are_named(bundle, claims):
    assert claims["naive_passes"].sentence.startswith(
        "6 passes over an N×N matrix of 537 MB cross HBM: scores writes S, scale reads S, scale writes S, "
        "softmax reads S, softmax writes P, values reads P.")
    long = verdicts(bundle, replace(SHAPE, nq=16384, nk=16384))["naive_passes"].sentence
    assert "scores reads" in long and "operands read again by several tiles" in long
    masked = verdicts(bundle, CAUSAL)["naive_passes"].sentence
    assert masked.startswith("8 passes") and "the mask matrix, read again by every head" in masked


def test_the_nearest_roof_is_told_as_it_is(bundle, claims):
    flash = claims["flash_compute_bound"]
    blocks = json.loads(launches(bundle, "flash2")["parameters"].item())["block_m"]
    if flash.verdict == "fails":
        assert "nearest to the L2 roof" in flash.sentence and f"every {blocks} query rows" in flash.sentence
    assert "unprofiled medians" in flash.sentence and "sdpa_cudnn" in flash.sentence


def test_a_causal_mask_is_shown_on_the_leading_shape(bundle, claims):
    claim = claims["causal_skips_half"]
    assert claim.verdict == "holds" and claim.shape == SHAPE and "With a causal mask" in claim.sentence
    full, causal = (by_hand(next(launches(bundle, "flash2", shape=s).itertuples()))[1] for s in (SHAPE, CAUSAL))
    assert claim.value == pytest.approx(causal / full, rel=1e-3) and 0.5 < claim.value < 0.54


def test_short_sequences_profit_here(claims):
    claim = claims["small_n_no_profit"]
    assert claim.verdict == "fails" and claim.sentence.startswith("Short sequences profit too: at N 512 ")


def test_flash_that_writes_s_is_caught_by_its_launch(bundle):
    doctored = changed(bundle, "dram_write_bytes", lambda v: v + MATRIX, implementation="flash2")
    doctored = changed(doctored, "sm_to_l2_bytes", lambda v: v + MATRIX, implementation="flash2")
    claim = verdicts(doctored)["no_s_p_in_hbm"]
    number = launches(bundle, "flash2")["launch"].item()
    assert claim.verdict == "fails" and claim.sentence.startswith(f"Launch {number} (")
    everywhere = {c.id: c for c in evidence.evaluate(doctored)}["no_s_p_in_hbm"]
    assert everywhere.verdict == "fails" and f"Launch {number} (" in everywhere.sentence
    assert verdicts(doctored)["compulsory_floor"].verdict == "fails"


def by_hand(row):
    """L2 → SM bytes, FLOPs, exponentials of a flash2 launch, block by block, from the algorithm."""
    n, d, p = int(row.nq), int(row.head_dim), json.loads(row.parameters)
    block_m, block_n = p["block_m"], p["block_n"]
    moved = visits = 0
    for first in range(0, n, block_m):
        last = min(first + block_m, n)
        keys = last if row.mask == "causal" else n
        blocks = -(-keys // block_n)
        visits += blocks
        moved += (last - first) * d * 2 + min(blocks * block_n, n) * 2 * d * 2
    pairs = 16 * visits * block_m * block_n
    return 16 * moved, 4 * pairs * d, pairs + 4 * 16 * visits * block_m  # 4 lanes rescale each row of each block


def test_every_flash_configuration_against_the_algorithm(bundle):
    rows = bundle.launches[bundle.launches["implementation"].eq("flash2")]
    assert len(rows) == 24
    for row in rows.itertuples():
        moved, flops, special = by_hand(row)
        assert row.l2_to_sm_bytes == pytest.approx(moved, rel=0.01), row.config_id
        assert row.tensor_flops == pytest.approx(flops, rel=0.001), row.config_id
        assert special <= row.special_ops <= 1.10 * special, row.config_id
        threads = int(row.grid.split(",")[0]) * int(row.block.split(",")[0])
        assert (row.special_ops - special) / threads <= 16, row.config_id  # the same few for every thread
        written = 16 * row.nq * row.head_dim * 2
        assert max(0, written - L2) <= row.dram_write_bytes <= written, row.config_id


def test_q_k_v_are_read_once_where_two_copies_fit_in_l2(bundle):
    """In every fused implementation; a library that splits the keys also reads its own partial results."""
    checked = 0
    for (name, nq, d, mask), rows in bundle.launches.groupby(["implementation", "nq", "head_dim", "mask"]):
        must = 3 * 16 * nq * d * 2
        if name not in ("flash2", "sdpa_flash", "sdpa_cudnn") or 2 * must > L2:
            continue
        partial = rows["sm_to_l2_bytes"].iloc[:-1].sum()
        read = rows["dram_read_bytes"].sum() - partial
        assert must <= read <= 1.02 * must + 0.05 * partial, (name, nq, d, mask)
        checked += 1
    assert checked == 3 * 2 * (4 + 3)  # N 512 to 4096 at D 64, to 2048 at D 128; two masks


def test_every_counter_lies_in_its_interval(bundle, parity):
    assert len(parity) > 600
    assert [(r.implementation, r.stage, r.quantity, r.shape.label(), r.error) for r in parity if not r.good] == []
    # an interval that holds everything says nothing: these are points
    for r in parity:
        if r.implementation == "flash2" and r.quantity in ("l2_to_sm", "sm_to_l2", "tensor_flops"):
            assert r.low == r.high == r.predicted
        if r.quantity == "dram_read" and 2 * r.predicted <= L2 and r.stage != "mask" and len(r.launches) == 1:
            written = bundle.launches.set_index("launch")["dram_write_bytes"][r.launches[0]]
            spilled = written if r.implementation == "sdpa_flash" else 0
            assert r.high <= r.predicted + spilled, r


def test_refetch_beyond_l2_is_bounded_before_it_is_measured(bundle, parity):
    """flash2 at N 16384, D 128: 201 MB at least, at most Q once and K and V once a wave of resident blocks."""
    row = next(r for r in parity if (r.implementation, r.quantity, r.shape) ==
               ("flash2", "dram_read", AttentionShape(1, 16, 16384, 16384, 128)))
    one = 16 * 16384 * 128 * 2
    waves = math.ceil(bundle.launches.set_index("launch")["waves_per_sm"][row.launches[0]])
    assert row.predicted == row.low == 3 * one
    assert row.high == one + waves * 2 * one and row.low < row.measured < row.high


def test_work_beside_the_matmuls_is_counted_and_flash1_is_said_to_be_missing(bundle):
    found = {w.implementation: w for w in evidence.beside_matmuls(bundle, SHAPE)}
    number = launches(bundle, "flash2")["launch"]
    core = sum(factor * raw(bundle, f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum", number)
               for op, factor in (("fadd", 1), ("fmul", 1), ("ffma", 2)))
    special = 32 * raw(bundle, "smsp__inst_executed_pipe_xu.sum", number)
    assert found["flash2"].core_flops == core and found["flash2"].special_ops == special
    assert found["flash2"].share == pytest.approx((core + special) / 68_719_476_736)
    assert found["naive"].share > 5 * found["flash2"].share  # scale and softmax as steps of their own
    assert "flash1" in evidence.why_no_versions(bundle, SHAPE)


def test_what_the_report_prints(bundle):
    printed = list(lines(bundle))
    assert sum(line.startswith("flash2 ") for line in printed) >= 6
    assert len(printed[printed.index("") + 2:]) == 10


def test_flashattention_1_carries_its_output_through_hbm_and_neither_s_nor_p():
    """By hand, B4 H16 N4096 D128: K and V once; for each of 4096/64 key blocks Q, and for each but the first O in
    float32, m and l. No L2 of 60 MB holds O, so all of it comes from HBM: 13.0 GB, where version 2 reads 0.26 GB."""
    ladder = bundles.read(Path(__file__).parents[2] / "data" / "h200-ladder")
    shape = AttentionShape(4, 16, 4096, 4096, 128)
    rows, blocks = 4 * 16 * 4096, 4096 // 64
    by_hand = 2 * rows * 128 * 2 + blocks * rows * 128 * 2 + (blocks - 1) * rows * (128 + 2) * 4
    read = {name: raw(ladder, "dram__bytes_read.sum", launches(ladder, name, shape=shape)["launch"])
            for name in ("flash1", "flash2")}
    assert read["flash1"] == pytest.approx(by_hand, rel=1e-3) and read["flash2"] < 0.3e9
    found = verdicts(ladder, shape)
    assert found["no_s_p_in_hbm"].verdict == "holds" and found["compulsory_floor"].verdict != "fails"
