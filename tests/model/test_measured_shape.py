"""B1 H16 N4096 D64 bf16, the shape the counters of an H200 were read on: the predictions as plain numbers."""

import pytest

from profiler.errors import BadInput
from profiler.model import predict
from profiler.spec import AttentionShape, DeviceSpec, RunConfig

SHAPE = AttentionShape(1, 16, 4096, 4096, 64)
MATRIX = 536_870_912  # 16·4096²·2
Q = 8_388_608  # 16·4096·64·2
L2 = 60_000_000


def flash(block_m: int, shape: AttentionShape = SHAPE, **more):
    parameters = {"block_m": block_m, "block_n": 128}
    return predict(RunConfig("flash2", shape, parameters=parameters), l2_size_bytes=L2, **more)


def test_naive_moves_six_matrices_and_the_four_tensors():
    prediction = predict(RunConfig("naive", SHAPE), l2_size_bytes=L2)
    assert prediction.dram_bytes == 6 * MATRIX + 4 * Q == 3_254_779_904
    assert prediction.compulsory_bytes == 4 * Q == 33_554_432
    assert prediction.stage("scores").dram_write_interval(L2) == (MATRIX - L2, MATRIX)
    assert prediction.stage("scores").dram_write_interval(L2, flushed=False) == (MATRIX - L2, MATRIX + L2)
    assert prediction.stage("values").dram_write_interval(L2) == (0, Q)
    assert prediction.stage("values").dram_write_interval(None) is None


@pytest.mark.parametrize(("block_m", "n", "measured"),
                         [(64, 4096, 1082.7e6), (128, 4096, 545.5e6), (128, 32768, 34428.9e6)])
def test_l2_to_sm_is_what_an_h200_counted_to_a_tenth_of_a_per_cent(block_m, n, measured):
    shape = AttentionShape(1, 16, n, n, 64)
    assert flash(block_m, shape).level_bytes("l2_to_sm") == pytest.approx(measured, rel=1e-3)


def test_operations_are_what_an_h200_counted():
    prediction = flash(128)
    assert prediction.flops_visible == prediction.flops_computed == 68_719_476_736
    assert prediction.special_ops == 268_435_456 + 8_388_608  # N²·H exponentials, 4·N·H·(N/128) rescales
    assert prediction.special_ops == pytest.approx(277e6, rel=0.01)
    assert prediction.intensity() == 2048  # 4·N²·D·H / 4·N·D·H·2 B, LSE not written
    assert prediction.largest_buffer == ("O", Q)


def test_the_mask_step_may_skip_what_it_overwrites_and_fetch_the_mask_again():
    short = AttentionShape(1, 16, 512, 512, 64, mask="causal")
    mask = predict(RunConfig("naive", short), l2_size_bytes=L2).stage("mask")
    # visible: 512·513/2 pairs of 16 heads in 2 B; the mask of 1 B an element stays in L2
    assert mask.dram_read_interval(L2) == (16 * 512 * 513 // 2 * 2 + 512 * 512, 16 * 512 * 512 * 2 + 512 * 512)
    whole, one = 16 * 4096 * 4096 * 2, 4096 * 4096
    visible = 16 * 4096 * 4097 // 2 * 2
    long = predict(RunConfig("naive", AttentionShape(1, 16, 4096, 4096, 64, mask="causal"))).stage("mask")
    assert long.dram_read_interval(L2) == (visible + one, whole + 16 * one)  # each of 16 heads may fetch the mask again
    assert long.dram_read_interval(L2, flushed=False) == (visible + one - L2, whole + 16 * one)


@pytest.mark.parametrize(("n", "again"), [(4096, False), (5120, True)])
def test_q_k_v_are_read_once_where_two_copies_fit_in_l2(n, again):
    """3·16·N·64·2 B: 25.2 MB of 30 at N 4096, 31.5 at N 5120. Else K and V at most once a block of 128 queries."""
    q = 16 * n * 64 * 2
    stage = flash(128, AttentionShape(1, 16, n, n, 64)).stages[0]
    assert stage.dram_read_interval(L2) == (3 * q, q + 2 * q * n // 128 if again else 3 * q)


def test_time_bounds_and_the_binding_roof():
    gpu = DeviceSpec("made up", "9.0", sm_count=132, l2_size_bytes=L2, sm_clock_hz=1.746e9, dram_bytes_per_s=4.8e12,
                     l2_bytes_per_s=1.2e13, tensor_flops_per_s=9.44e14)
    bounds = flash(128, device=gpu).bounds
    assert bounds["dram"] == pytest.approx(33_554_432 / 4.8e12 * 1e9)  # 7 µs
    assert bounds["tensor"] == pytest.approx(68_719_476_736 / 9.44e14 * 1e9)  # 72.8 µs
    assert bounds["special"] == pytest.approx(276_824_064 / (16 * 132 * 1.746e9) * 1e9)  # 75.1 µs
    assert flash(128, device=gpu).binding == "special"
    naive = predict(RunConfig("naive", SHAPE), device=gpu)
    assert naive.binding == "dram"
    assert naive.bound_ns == pytest.approx(3_254_779_904 / 4.8e12 * 1e9)  # every stage is bound by HBM
    assert predict(RunConfig("naive", SHAPE)).bounds == {}


@pytest.mark.parametrize(("block_m", "flops", "special"), [(64, 103_079_215_104, 573_308_928),
                                                          (128, 68_719_476_736, 285_212_672)])
def test_eight_warps_on_64_rows_compute_the_scores_twice_as_an_h200_counted(block_m, flops, special):
    parameters = {"block_m": block_m, "block_n": 64, "num_warps": 8}
    prediction = predict(RunConfig("flash2", SHAPE, parameters=parameters))
    assert prediction.flops_computed == flops
    assert prediction.special_ops == pytest.approx(special, rel=0.01)


def test_unknown_tiles_are_not_guessed():
    prediction = predict(RunConfig("sdpa_cudnn", SHAPE))
    assert prediction.level_bytes("l2_to_sm") is None
    assert prediction.flops_computed is None
    assert prediction.special_ops == 268_435_456 and "exponentials" in prediction.stages[0].at_least
    assert prediction.to_json()["l2_to_sm_bytes"] is None


def test_an_unknown_implementation_is_refused():
    with pytest.raises(BadInput, match="no model of nonsense forward"):
        predict(RunConfig("nonsense", SHAPE))
