"""Claims that need a backward or a decode profile, on counters that are worked out by hand."""

import math
from dataclasses import replace

import pytest

from profiler import evidence, table
from profiler.bundle import Bundle
from profiler.spec import AttentionShape, RunConfig, parameters_text
from tests import ladder, synthetic
from tests.evidence.test_claims import verdicts

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
MATRIX, Q, STAT = 536_870_912, 8_388_608, 16 * 4096 * 4
PRODUCT = 2 * 16 * 4096 * 4096 * 64  # FLOP of one matmul
BLOCKS = {f"{step}_block_{side}": 128 for step in ("key", "query") for side in "mn"}
# stage → (DRAM reads, DRAM writes, matmuls); with blocks of 128 the two passes read their inner tensors 32 times
NAIVE = {"d_values": (MATRIX + Q, Q, 1), "d_weights": (2 * Q, MATRIX, 1), "d_softmax": (4 * MATRIX, 2 * MATRIX, 0),
         "d_scale": (MATRIX, MATRIX, 0), "d_queries": (MATRIX + Q, Q, 1), "d_keys": (MATRIX + Q, Q, 1)}
FLASH = {"prepare": (2 * Q + STAT, 2 * STAT, 0), "keys": (4 * Q + 2 * STAT, 2 * Q, 4),
         "queries": (4 * Q + 2 * STAT, Q, 3)}
PEER = {"attention": (5 * Q + STAT, 3 * Q, 5)}
TO_SM = {"prepare": 2 * Q + STAT, "keys": 2 * Q + 32 * (2 * Q + 2 * STAT), "queries": 2 * Q + 2 * STAT + 32 * 2 * Q}


def profile(*runs):
    """(config, {stage: (reads, writes, matmuls)}) → a bundle; a launch is at 80% of HBM or 40% of the tensor peak."""
    launches, timings = [], []
    for config, stages in runs:
        rows = []
        for stage, (read, write, matmuls) in stages.items():
            work = matmuls * PRODUCT
            ns = max((read + write) / (0.8 * synthetic.DRAM_PEAK), work / (0.4 * synthetic.TENSOR_PEAK)) * 1e9
            rows.append({
                "source": "x", "launch": len(launches) + len(rows), "kernel": f"{config.implementation}_{stage}",
                "cc": "9.0", "duration_ns": ns, "dram_read_bytes": read, "dram_write_bytes": write,
                "l2_to_sm_bytes": TO_SM.get(stage, read), "l2_to_xbar_bytes": read, "sm_to_l2_bytes": write,
                "tensor_flops": work, "special_ops": 0, "sm_clock_hz": synthetic.CLOCK,
                "dram_peak_bytes_per_s": synthetic.DRAM_PEAK, "l2_peak_bytes_per_s": synthetic.L2_PEAK,
                "tensor_peak_flops_per_s": synthetic.TENSOR_PEAK, "l2_size_bytes": 60_000_000, "sm_count": 132,
                **config.key(stage), "parameters": parameters_text(config.parameters)})
        launches += rows
        median = sum(r["duration_ns"] for r in rows)
        timings.append({**config.key(), "parameters": parameters_text(config.parameters), "status": "ok",
                        "median_ns": median, "p20_ns": 0.99 * median, "p80_ns": 1.01 * median})
    return Bundle("x", {"gpu": synthetic.GPU, "cache_control": "all"}, table.make("launches", launches),
                  timings=table.make("timings", timings))


def backward(name, **parameters):
    return RunConfig(name, SHAPE, "backward", parameters)


@pytest.fixture
def both():
    return profile((backward("naive"), NAIVE), (backward("flash2", **BLOCKS), FLASH), (backward("sdpa_flash"), PEER))


def test_recomputation_pays(both):
    claim = verdicts(both)["recomputation_pays"]
    # naive: twelve passes and eight vectors at 80% of 4.8 TB/s; flash: seven matmuls at 40% of 944 TFLOP/s, and prepare
    naive = (12 * MATRIX + 8 * Q) / 3.84e12
    flash = 7 * PRODUCT / 3.776e14 + (2 * Q + 3 * STAT) / 3.84e12
    assert claim.verdict == "holds" and claim.value == pytest.approx(naive / flash)
    assert "1.75 ×" in claim.sentence  # 7 matmuls over 4
    slow = both.timings.copy()
    slow.loc[slow["implementation"].eq("flash2"), "median_ns"] *= 10
    assert verdicts(replace(both, timings=slow))["recomputation_pays"].verdict == "fails"


def test_a_backward_profile_is_checked_like_a_forward(both):
    found = verdicts(both)
    assert {name for name in ("no_s_p_in_hbm", "naive_passes", "compulsory_floor", "theorem_l2_to_sm", "speedup")
            if found[name].verdict != "holds"} == set()
    assert found["naive_passes"].sentence.startswith(
        "12 passes over an N×N matrix of 537 MB cross HBM: d_values reads P, d_weights writes dP, d_softmax reads P "
        "twice, d_softmax reads dP, d_softmax reads dP∘P, d_softmax writes dP∘P, d_softmax writes dS, d_scale reads dS")
    assert found["same_flops"].verdict == found["special_functions_bind_small_d"].verdict == "cannot tell"
    assert [r for r in evidence.parity(both) if not r.good and r.quantity != "special_ops"] == []
    assert evidence.default_shape(both) == SHAPE
    h = evidence.headline(both, SHAPE, "backward")
    assert (h.naive.matrix_passes, h.flash.matrix_passes) == (12, 0)
    assert h.ratio_by_floor == pytest.approx((12 * MATRIX + 8 * Q) / (8 * Q + STAT))


@pytest.mark.parametrize(("column", "where"), [("dram_write_bytes", "through HBM"),
                                               ("sm_to_l2_bytes", "from the SMs to L2")])
def test_a_backward_that_writes_dp_is_caught_by_its_launch(both, column, where):
    rows = both.launches.copy()
    keys = rows["stage"].eq("keys")
    rows.loc[keys, column] += MATRIX
    claim = verdicts(replace(both, launches=rows))["no_s_p_in_hbm"]
    assert claim.verdict == "fails" and where in claim.sentence
    assert claim.sentence.startswith(f"Launch {rows.loc[keys, 'launch'].item()} (flash2_keys, flash2)")


DECODE = AttentionShape(8, 32, 1, 32768, 128, kv_heads=8, mask="causal")
CACHE = 2 * 8 * 8 * 32768 * 128 * 2  # K and V
ROW = 8 * 32 * 128  # elements of Q


def decode(compute=0):
    """Four parts a sequence; partial results in fp32. compute: matmuls of PRODUCT FLOPs beside the reading."""
    partial = 4 * ROW * 4 + 4 * 8 * 32 * 4
    return profile((RunConfig("decode", DECODE, parameters={"num_splits": 4, "block_m": 16, "block_n": 64}),
                    {"attention": (CACHE + 2 * ROW, partial, compute),
                     "merge": (partial, 2 * ROW + 8 * 32 * 4, 0)}))


def test_decode_is_bound_by_hbm():
    claim = verdicts(decode(), DECODE)["decode_memory_bound"]
    assert claim.verdict == "holds" and claim.value == pytest.approx(0.8)
    assert claim.sentence.startswith("With 1 query against 32,768 keys decode reaches 80% of the HBM roof")
    busy = verdicts(decode(compute=100), DECODE)["decode_memory_bound"]
    assert busy.verdict == "fails" and "Tensor Cores" in busy.sentence


def test_decode_reads_its_cache_once():
    found = verdicts(decode(), DECODE)
    assert found["compulsory_floor"].verdict == "holds"
    assert found["theorem_l2_to_sm"].verdict == "cannot tell"  # one block of rows: nothing is read again
    assert math.isclose(found["compulsory_floor"].value, 1)


def test_block_sizes_are_compared_within_one_implementation():
    """The ladder's kernels have 128 rows each but for one: 64 rows of FlashAttention-1 are no smaller block of 2."""
    made = ladder.bundle()
    rows = made.launches
    first = rows["implementation"].eq("flash1").fillna(False)
    other = rows["parameters"].str.replace('"block_m":128', '"block_m":64')
    changed = replace(made, launches=rows.assign(parameters=rows["parameters"].where(~first, other)),
                      timings=made.timings[made.timings["implementation"].ne("flash1")])
    claim = next(c for c in evidence.evaluate(changed) if c.id == "block_size_raises_intensity")
    assert claim.verdict == "cannot tell"


def test_a_switch_is_no_other_block_size():
    made = ladder.bundle()
    launches = made.launches[made.launches["implementation"].eq("hopper").fillna(False)]
    found = [next(f for f in evidence.diagnosis(made, int(n)) if f.id == "block_size") for n in launches["launch"][:4]]
    assert all("is the only one recorded here" in f.sentence for f in found)
