"""Each claim on a bundle whose counters are known by hand, and on doctored copies of it."""

from dataclasses import replace

import pandas as pd
import pytest

from profiler import evidence
from profiler.spec import AttentionShape
from tests import synthetic

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
CAUSAL = replace(SHAPE, mask="causal")
MATRIX, Q = 536_870_912, 8_388_608


@pytest.fixture(scope="module")
def bundle():
    return synthetic.bundle(head_dims=(64, 128), lengths=(512, 1024, 4096))


def verdicts(bundle, shape=SHAPE):
    return {claim.id: claim for claim in evidence.evaluate(bundle, shape)}


def changed(bundle, column, change, *, implementation, stage=None, table="launches", n=4096, head_dim=64, mask="full"):
    """A copy in which one column of the matching rows is change(old)."""
    frame = getattr(bundle, table).copy()
    rows = (frame["implementation"].eq(implementation) & frame["nq"].eq(n) & frame["head_dim"].eq(head_dim)
            & frame["mask"].eq(mask))
    if stage:
        rows &= frame["stage"].eq(stage)
    assert rows.any()
    frame.loc[rows, column] = frame.loc[rows, column].map(change).astype(frame[column].dtype)
    return replace(bundle, **{table: frame})


def flash_rows(bundle):
    rows = bundle.launches
    return rows[rows["implementation"].eq("flash2") & rows["nq"].eq(4096) & rows["head_dim"].eq(64)
                & rows["mask"].eq("full")]


def test_what_holds_at_the_leading_shape(bundle):
    found = verdicts(bundle)
    holding = {"same_result", "same_flops", "no_s_p_in_hbm", "naive_passes", "compulsory_floor", "memory_linear",
               "speedup", "occupancy_not_speed", "naive_memory_bound", "flash_compute_bound", "theorem_l2_to_sm",
               "special_functions_bind_small_d", "causal_skips_half"}
    assert {name for name, claim in found.items() if claim.verdict == "holds"} == holding
    assert found["same_flops"].value == 1.0
    assert found["compulsory_floor"].value == 1.0
    assert found["no_s_p_in_hbm"].value == 0.0
    assert found["theorem_l2_to_sm"].value == pytest.approx(0, abs=1e-9)
    # peak memory of flash: q + 4·16·N bytes, a line through the origin in N
    assert found["memory_linear"].value == pytest.approx(1)


def test_the_passes_are_named(bundle):
    six = verdicts(bundle)["naive_passes"].sentence
    assert six.startswith("6 passes over an N×N matrix of 537 MB cross HBM: scores writes S, scale reads S, scale "
                          "writes S, softmax reads S, softmax writes P, values reads P.")
    assert verdicts(bundle, CAUSAL)["naive_passes"].sentence.startswith("8 passes")


@pytest.mark.parametrize("extra", [{"dram_write_bytes": 1}, {"dram_read_bytes": 1},
                                   {"dram_read_bytes": 1, "dram_write_bytes": 2}, {"dram_write_bytes": 0.5}])
def test_flash_that_moves_s_is_caught_by_name(bundle, extra):
    """Whole passes over S, or the half of one that a causal kernel would write."""
    doctored = bundle
    for column, passes in extra.items():
        doctored = changed(doctored, column, lambda v, p=passes: v + p * MATRIX, implementation="flash2")
    launch = flash_rows(bundle)["launch"].item()
    claim = verdicts(doctored)["no_s_p_in_hbm"]
    assert claim.verdict == "fails"
    assert f"Launch {launch} (flash2_attention_kernel, flash2)" in claim.sentence
    assert claim.value == pytest.approx(sum(extra.values()))
    everywhere = {c.id: c for c in evidence.evaluate(doctored)}["no_s_p_in_hbm"]
    assert everywhere.verdict == "fails" and f"Launch {launch} " in everywhere.sentence


def test_a_peer_that_moves_s_is_caught_too(bundle):
    doctored = changed(bundle, "dram_write_bytes", lambda v: v + MATRIX, implementation="sdpa_flash")
    assert "sdpa_flash" in verdicts(doctored)["no_s_p_in_hbm"].sentence
    assert verdicts(doctored)["no_s_p_in_hbm"].verdict == "fails"


def test_s_that_fits_in_l2_decides_nothing_at_hbm(bundle):
    small = replace(SHAPE, nq=512, nk=512)  # one matrix is 8.4 MB, the L2 60 MB
    found = verdicts(changed(bundle, "sm_to_l2_bytes", lambda v: None, implementation="sdpa_flash", n=512), small)
    for name in ("naive_passes", "naive_memory_bound", "flash_compute_bound"):
        assert found[name].verdict == "cannot tell", name
        assert "8.39 MB" in found[name].missing and "60.0 MB" in found[name].missing
    # what left the SMs decides all the same, and without that counter nothing does
    assert found["no_s_p_in_hbm"].verdict == "holds" and "HBM alone could not tell" in found["no_s_p_in_hbm"].sentence
    blind = bundle
    for name in ("flash2", "sdpa_flash"):
        blind = changed(blind, "sm_to_l2_bytes", lambda v: None, implementation=name, n=512)
    claim = verdicts(blind, small)["no_s_p_in_hbm"]
    assert claim.verdict == "cannot tell" and "8.39 MB" in claim.missing


@pytest.mark.parametrize("n", [512, 4096])
@pytest.mark.parametrize("name", ["flash2", "sdpa_flash"])
def test_s_that_leaves_the_sms_is_caught_however_large_the_l2(bundle, n, name):
    shape, matrix = replace(SHAPE, nq=n, nk=n), 16 * n * n * 2
    doctored = changed(bundle, "sm_to_l2_bytes", lambda v: v + matrix, implementation=name, n=n)
    claim = verdicts(doctored, shape)["no_s_p_in_hbm"]
    rows = bundle.launches[bundle.launches["implementation"].eq(name) & bundle.launches["nq"].eq(n)]
    launch = rows[rows["head_dim"].eq(64) & rows["mask"].eq("full")]
    assert claim.verdict == "fails" and "from the SMs to L2" in claim.sentence
    assert claim.sentence.startswith(f"Launch {launch['launch'].item()} ({name}_attention_kernel, {name})")
    # flash2 also has an LSE to write, 4 B a row, which these counters leave out
    assert claim.value == pytest.approx(1, abs=16 * n * 4 / matrix)


def test_no_other_implementation_is_judged_in_the_place_of_ours(bundle):
    blind = bundle
    for column in ("tensor_flops", "dram_read_bytes", "sm_to_l2_bytes"):
        blind = changed(blind, column, lambda v: None, implementation="flash2")
    found = verdicts(blind)
    bound = found["flash_compute_bound"]
    assert bound.verdict == "cannot tell" and "flash2 was not counted" in bound.sentence
    assert "sdpa_flash" in bound.sentence  # told, not judged
    for name in ("no_s_p_in_hbm", "compulsory_floor"):
        assert found[name].verdict == "holds" and found[name].sentence.startswith("Judged on sdpa_flash, for flash2 ")


def test_writes_may_stay_in_l2_and_no_further(bundle):
    kept = changed(bundle, "dram_write_bytes", lambda v: v - 59e6, implementation="naive", stage="scores")
    assert verdicts(kept)["naive_passes"].verdict == "holds"
    lost = changed(bundle, "dram_write_bytes", lambda v: v - 80e6, implementation="naive", stage="scores")
    claim = verdicts(lost)["naive_passes"]
    assert claim.verdict == "fails" and "scores" in claim.sentence and "477 MB to 537 MB" in claim.sentence


@pytest.mark.parametrize(("factor", "naive", "flash"), [(1.019, "holds", "holds"), (1.025, "fails", "fails"),
                                                        (1.035, "fails", "fails"), (0.96, "fails", "fails")])
def test_reads_off_the_floor_fail(bundle, factor, naive, flash):
    doctored = changed(bundle, "dram_read_bytes", lambda v: v * factor, implementation="naive", stage="softmax")
    assert verdicts(doctored)["naive_passes"].verdict == naive
    doctored = changed(bundle, "dram_read_bytes", lambda v: v * factor, implementation="flash2")
    assert verdicts(doctored)["compulsory_floor"].verdict == flash


def test_without_a_flush_reads_may_be_short_and_writes_carried(bundle):
    warm = replace(bundle, profile={**bundle.profile, "cache_control": "none"})
    short = changed(warm, "dram_read_bytes", lambda v: v - 59e6, implementation="naive", stage="scale")
    carried = changed(short, "dram_write_bytes", lambda v: v + 59e6, implementation="naive", stage="scale")
    assert verdicts(carried)["naive_passes"].verdict == "holds"
    flushed = replace(carried, profile=bundle.profile)
    assert verdicts(flushed)["naive_passes"].verdict == "fails"


def test_more_flops_fail_and_a_causal_mask_is_explained(bundle):
    doctored = changed(bundle, "tensor_flops", lambda v: v * 1.01, implementation="flash2")
    assert verdicts(doctored)["same_flops"].verdict == "fails"
    causal = verdicts(bundle, CAUSAL)["same_flops"]
    # 128·128·(1 + … + 32)·4·64·16 FLOPs of 4·4096²·64·16
    assert causal.verdict == "holds" and causal.value == pytest.approx(528 / 1024)
    assert "skips whole masked blocks" in causal.sentence
    too_few = changed(bundle, "tensor_flops", lambda v: v * 0.9, implementation="flash2", mask="causal")
    assert verdicts(too_few, CAUSAL)["same_flops"].verdict == "fails"


def test_causal_skips_half(bundle):
    claim = verdicts(bundle, CAUSAL)["causal_skips_half"]
    assert replace(claim, shape=SHAPE) == verdicts(bundle, SHAPE)["causal_skips_half"]  # a full shape shows its sibling
    assert claim.verdict == "holds" and claim.value == pytest.approx(528 / 1024)
    masked_only = changed(bundle, "tensor_flops", lambda v: v / 528 * 1024, implementation="flash2", mask="causal")
    assert verdicts(masked_only, CAUSAL)["causal_skips_half"].verdict == "fails"


@pytest.mark.parametrize(("error", "verdict"), [(4.7e-3, "holds"), (4.9e-3, "fails")])
def test_error_at_most_twice_eager(bundle, error, verdict):
    """Eager's error is 2.4e-3, so 4.8e-3 is allowed."""
    doctored = changed(bundle, "error_relative", lambda v: error, implementation="flash2", table="timings")
    assert verdicts(doctored)["same_result"].verdict == verdict


def test_the_error_floor_of_the_dtype(bundle):
    exact = changed(bundle, "error_eager_relative", lambda v: 1e-4, implementation="flash2", table="timings")
    assert verdicts(exact)["same_result"].verdict == "holds"  # 2.0e-3 is under bf16's 4e-3
    wrong = changed(exact, "error_relative", lambda v: 4.1e-3, implementation="flash2", table="timings")
    assert verdicts(wrong)["same_result"].verdict == "fails"


def test_memory_that_grows_quadratically_fails(bundle):
    doctored = bundle
    for n in (512, 1024, 4096):
        doctored = changed(doctored, "peak_memory_bytes", lambda v, n=n: 32 * n * n, implementation="flash2",
                           table="timings", n=n)
    claim = verdicts(doctored)["memory_linear"]
    assert claim.verdict == "fails" and claim.value == pytest.approx(2)


def test_theorem_one_per_cent(bundle):
    doctored = changed(bundle, "l2_to_sm_bytes", lambda v: v * 1.02, implementation="flash2")
    assert verdicts(doctored)["theorem_l2_to_sm"].verdict == "fails"
    unknown = changed(bundle, "parameters", lambda v: "{}", implementation="flash2")
    unknown = changed(unknown, "parameters", lambda v: "{}", implementation="flash2", table="timings")
    claim = verdicts(unknown)["theorem_l2_to_sm"]
    assert claim.verdict == "cannot tell" and "block_m" in claim.missing


def test_speed_needs_unprofiled_medians_with_spreads_apart(bundle):
    overlap = changed(bundle, "p80_ns", lambda v: 1e9, implementation="flash2", table="timings")
    assert verdicts(overlap)["speedup"].verdict == "cannot tell"
    slower = changed(bundle, "median_ns", lambda v: 1e8, implementation="flash2", table="timings")
    slower = changed(slower, "p20_ns", lambda v: 0.9e8, implementation="flash2", table="timings")
    slower = changed(slower, "p80_ns", lambda v: 1.1e8, implementation="flash2", table="timings")
    assert verdicts(slower)["speedup"].verdict == "fails"
    untimed = replace(bundle, timings=bundle.timings.iloc[:0])
    for name in ("speedup", "occupancy_not_speed", "memory_linear", "same_result", "small_n_no_profit"):
        assert verdicts(untimed)[name].verdict == "cannot tell", name


def test_nearest_roof(bundle):
    """Naive at 80% of HBM; flash with half the bytes a second is nearest to the Tensor Cores."""
    naive, flash = verdicts(bundle)["naive_memory_bound"], verdicts(bundle)["flash_compute_bound"]
    # flash: 68.7 GFLOP at 0.4·944 TFLOP/s is 182 µs; 33.6 MB in that is 3.8% of 4.8 TB/s
    assert naive.verdict == "holds" and naive.value == pytest.approx(0.8, abs=0.01) and "3.8%" in naive.sentence
    assert flash.verdict == "holds" and flash.value == pytest.approx(0.4, abs=0.01)
    assert "unprofiled medians" in flash.sentence
    busy = changed(bundle, "tensor_flops", lambda v: v * 100, implementation="naive")
    assert verdicts(busy)["naive_memory_bound"].verdict == "fails"
    starved = changed(bundle, "l2_to_xbar_bytes", lambda v: v * 100, implementation="flash2")  # 3·Q·1.2·100 B
    claim = verdicts(starved)["flash_compute_bound"]
    assert claim.verdict == "fails" and "sdpa_flash" in claim.sentence
    assert "nearest to the L2 roof" in claim.sentence and "128 query rows" in claim.sentence


def test_roofs_by_the_unprofiled_median_where_there_is_one(bundle):
    slower = changed(bundle, "median_ns", lambda v: v * 2, implementation="flash2", table="timings")
    assert verdicts(slower)["flash_compute_bound"].value == pytest.approx(0.2, abs=0.005)
    untimed = replace(bundle, timings=bundle.timings.iloc[:0])
    claim = verdicts(untimed)["flash_compute_bound"]
    assert claim.value == pytest.approx(0.4, abs=0.01) and "under the profiler" in claim.sentence


def test_special_functions(bundle):
    small = verdicts(bundle)["special_functions_bind_small_d"]
    # 16·4096² exponentials / (16·132·1.746e9) = 72.79 µs; 4·16·4096²·64 FLOP / 9.44e14 = 72.80 µs
    assert small.verdict == "holds" and small.value == pytest.approx(1.0, abs=1e-3)
    large = verdicts(bundle, replace(SHAPE, head_dim=128))["special_functions_bind_small_d"]
    assert large.verdict == "cannot tell" and large.value == pytest.approx(0.5, abs=1e-3)


def test_backward_and_decode_say_what_is_missing(bundle):
    found = verdicts(bundle)
    for name, word in (("recomputation_pays", "backward"), ("decode_memory_bound", "decode"),
                       ("block_size_raises_intensity", "block_m")):
        assert found[name].verdict == "cannot tell" and word in found[name].missing, name


def test_block_sizes(bundle):
    rows = flash_rows(bundle)
    narrow = rows.assign(config_id="narrow", parameters='{"block_m":64,"block_n":64}', launch=rows["launch"] + 1000)
    narrow["l2_to_sm_bytes"] = float(Q + 64 * 2 * Q)
    two = replace(bundle, launches=pd.concat([bundle.launches, narrow], ignore_index=True))
    claim = verdicts(two)["block_size_raises_intensity"]
    assert claim.verdict == "holds" and claim.value == pytest.approx((Q + 64 * 2 * Q) / (Q + 32 * 2 * Q))


def test_a_missing_counter_is_named_with_the_option_that_collects_it(bundle):
    blind = replace(bundle, launches=bundle.launches.assign(
        tensor_flops=pd.array([None] * len(bundle.launches), "Float64")))
    claim = verdicts(blind)["same_flops"]
    assert claim.verdict == "cannot tell" and "--metrics" in claim.missing and "tensor" in claim.missing


def test_launches_without_ranges_decide_nothing(bundle):
    from profiler.spec import CONFIG_KEY

    foreign = replace(bundle, timings=bundle.timings.iloc[:0], launches=bundle.launches.assign(
        **{name: pd.array([None] * len(bundle.launches), bundle.launches[name].dtype) for name in CONFIG_KEY}))
    claims = evidence.evaluate(foreign)
    assert {c.verdict for c in claims} == {"cannot tell"}
    cause = evidence.shared_cause(foreign)
    assert "ranges" in cause and evidence.shared_cause(bundle) == ""
    assert all(c.missing and "ranges" not in c.missing for c in claims)  # said once, not claim by claim
    blind = replace(foreign, launches=foreign.launches.assign(
        special_ops=pd.array([None] * len(foreign.launches), "Float64")))
    claim = {c.id: c for c in evidence.evaluate(blind)}["special_functions_bind_small_d"]
    assert "special-function operations" in claim.missing and "--metrics" in claim.missing
    assert evidence.default_shape(foreign) is None and evidence.shapes(foreign) == []


def test_summing_up_over_shapes(bundle):
    claim = {c.id: c for c in evidence.evaluate(bundle)}["naive_passes"]
    assert claim.verdict == "holds" and len(claim.cases) == 12  # 3 lengths × 2 head sizes × 2 masks
    assert [c.verdict for c in claim.cases if c.shape.nq == 4096] == ["holds"] * 4
    assert [c.verdict for c in claim.cases if c.shape.nq < 4096] == ["cannot tell"] * 8
    assert claim.to_json()["shape"] == "B1 H16 N4096 D64 bf16 full"
