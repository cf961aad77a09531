"""FlashAttention-2 backward in Triton's interpreter, against float64 autograd of the reference and against differences.

bfloat16 products are wrong in the interpreter, so the types here are float16 and float32; tests/gpu covers bfloat16.
"""

import math

import pytest
import torch

from kernels.backward_plan import TMA, Pass, Tuning, choose, parameters
from kernels.errors import UnsupportedCall
from kernels.flash2_backward import INTERPRETED, flash2_backward
from kernels.reference import reference_attention

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a process with a GPU runs tests/gpu/check_flash2_backward.py")

TWO_PASSES = Tuning(Pass(32, 32, 4, 1), Pass(32, 32, 4, 1))
SEEDED = Tuning(Pass(16, 64, 4, 1), Pass(64, 16, 4, 1), seed=True)  # and blocks that are not square
ONE_PASS = Tuning(Pass(32, 16, 4, 1), None)
FLOOR = {torch.float32: 1e-5, torch.float16: 5e-4}


def make(batch, heads, kv_heads, nq, nk, head_dim, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads, nq), (kv_heads, nk), (kv_heads, nk), (heads, nq))
    return [torch.randn(batch, h, n, head_dim, generator=generator).to(dtype) for h, n in sizes]


def exact(q, k, v, dout, dlse=None, **options):
    """out, lse and the gradients of sum(out * dout) + sum(lse * dlse), float64."""
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = reference_attention(*leaves, **options)
    loss = (out * dout.double()).sum()
    if dlse is not None:
        loss = loss + (lse * dlse.double()).sum()
    return out.detach(), lse.detach(), torch.autograd.grad(loss, leaves)


def eager(q, k, v, dout, causal=False, window=(-1, -1), scale=None):
    """The same gradients by plain PyTorch in the inputs' own dtype, rows without keys set to 0."""
    nq, nk, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(group, dim=1) for x in leaves[1:])
    s = (leaves[0] @ keys.transpose(2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
    distance = torch.arange(nk) - torch.arange(nq)[:, None] - (nk - nq)
    visible = torch.ones(nq, nk, dtype=torch.bool)
    if causal or window[1] >= 0:
        visible &= distance <= (0 if causal else window[1])
    if window[0] >= 0:
        visible &= distance >= -window[0]
    p = torch.softmax(s.masked_fill(~visible, float("-inf")), -1).masked_fill(~visible.any(-1)[:, None], 0.0)
    return [torch.nan_to_num(g) for g in torch.autograd.grad(p @ values, leaves, dout)]


def run(tensors, tuning, reference=None, dlse=None, stage=None, **options):
    """Gradients from what a forward of the same dtype would have left, written to tensors full of NaN."""
    q, k, v, dout = tensors
    out, lse, _ = reference or exact(q, k, v, dout, **options)
    grads = tuple(torch.full(x.shape, float("nan"), dtype=x.dtype) for x in (q, k, v))
    return flash2_backward(dout, q, k, v, out.to(q.dtype), lse.float(), tuning=tuning, grads=grads, dlse=dlse,
                           stage=stage, **options)


def compare(tensors, tuning, **options):
    q, k, v, dout = tensors
    reference = exact(q, k, v, dout, **options)
    got = run(tensors, tuning, reference, **options)
    base = eager(q, k, v, dout, **options)
    for name, g, e, r in zip(("dq", "dk", "dv"), got, base, reference[2]):
        assert g.dtype == q.dtype and g.shape == r.shape
        limit = 3 * (e.double() - r).abs().max() + FLOOR[q.dtype] * max(1.0, r.abs().max())
        error = (g.double() - r).abs().max()
        assert error <= limit, f"{name}: error {error:.2e}, limit {limit:.2e}"


SHAPES = {  # batch, heads, kv_heads, nq, nk, head_dim, options
    "one token": (1, 1, 1, 1, 1, 16, {}),
    "33 x 65": (2, 2, 2, 33, 65, 16, {}),
    "33 x 65 causal": (1, 2, 2, 33, 65, 40, {"causal": True}),
    "65 x 33 causal": (1, 2, 1, 65, 33, 16, {"causal": True}),
    "causal 5 x 2": (1, 1, 1, 5, 2, 16, {"causal": True}),
    "causal 2 x 5": (1, 1, 1, 2, 5, 64, {"causal": True}),
    "groups 6 / 2": (1, 6, 2, 40, 50, 64, {"causal": True}),
    "window": (1, 2, 1, 100, 130, 16, {"window": (20, 10)}),
    "window to the left, causal": (1, 1, 1, 96, 96, 16, {"causal": True, "window": (33, -1)}),
    "rows past the keys": (1, 1, 1, 130, 50, 16, {"window": (0, -1)}),
    "scale": (1, 1, 1, 64, 64, 16, {"scale": -0.7}),
    "scale 0": (1, 1, 1, 20, 33, 16, {"scale": 0.0}),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tuning", [TWO_PASSES, SEEDED, ONE_PASS], ids=["two passes", "seeded", "one pass"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
def test_gradients_against_float64(name, tuning, dtype):
    *sizes, options = SHAPES[name]
    compare(make(*sizes, dtype), tuning, **options)


@pytest.mark.parametrize("tuning", [TWO_PASSES, ONE_PASS], ids=["two passes", "one pass"])
def test_rows_without_keys_have_no_gradient(tuning):
    """Causal 5 x 2: queries 0..2 see nothing, query 3 sees key 0, query 4 both."""
    tensors = make(1, 1, 1, 5, 2, 16, torch.float32)
    dq, dk, dv = run(tensors, tuning, dlse=torch.ones(1, 1, 5), causal=True)
    assert torch.equal(dq[0, 0, :3], torch.zeros(3, 16))
    assert dq[0, 0, 4].abs().max() > 0
    assert dk.isfinite().all() and dv.isfinite().all()


def test_dout_of_a_sum_has_stride_zero():
    q, k, v, _ = make(1, 2, 2, 33, 40, 16, torch.float32)
    dout = torch.ones(()).expand(q.shape)
    assert dout.stride() == (0, 0, 0, 0)
    compare((q, k, v, dout), TWO_PASSES, causal=True)


def test_any_strides():
    """q of a fused (B, N, 3, H, D) tensor, K contiguous, V transposed in its last two dimensions, dO (B, N, H, D)."""
    q, k, v, dout = make(1, 2, 2, 33, 40, 16, torch.float32)
    fused = torch.zeros(1, 33, 3, 2, 16)
    fused[:, :, 1] = q.transpose(1, 2)
    strided = (fused[:, :, 1].transpose(1, 2), k, v.transpose(2, 3).contiguous().transpose(2, 3),
               dout.transpose(1, 2).contiguous().transpose(1, 2))
    assert strided[2].stride(3) != 1
    for got, expected in zip(run(strided, TWO_PASSES), run((q, k, v, dout), TWO_PASSES)):
        assert torch.equal(got, expected)


def test_gradient_of_the_lse():
    q, k, v, dout = make(1, 4, 2, 20, 35, 16, torch.float32)
    dlse = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(1))
    reference = exact(q, k, v, dout, dlse, causal=True)
    for got, expected in zip(run((q, k, v, dout), TWO_PASSES, reference, dlse, causal=True), reference[2]):
        assert (got.double() - expected).abs().max() < 1e-5 * max(1.0, expected.abs().max())


def test_central_differences():
    """dL/dx of L = sum(out * dout) by (L(x + h) - L(x - h)) / 2h in float64: error about h^2, here 1e-8."""
    tensors = make(1, 2, 1, 3, 4, 16, torch.float32)
    got = run(tensors, TWO_PASSES, causal=True)
    *inputs, dout = (x.double() for x in tensors)
    h = 1e-4

    def loss():
        return float((reference_attention(*inputs, causal=True)[0] * dout).sum())

    for x, g in zip(inputs, got):
        slope = torch.empty_like(x)
        for i in range(x.numel()):
            value = x.view(-1)[i].item()
            x.view(-1)[i] = value + h
            above = loss()
            x.view(-1)[i] = value - h
            slope.view(-1)[i] = (above - loss()) / (2 * h)
            x.view(-1)[i] = value
        assert (g.double() - slope).abs().max() < 1e-3 * slope.abs().max()


def test_scores_below_any_finite_stand_in_for_minus_infinity():
    """Both scores near -6e4: an ordinary softmax, though exp(-LSE) of the block's missing keys is inf.

    Every product and partial sum of the scores is exact in float32: -59520 and -59516.25. P is off by at most
    e^(6uL) - 1, u = 2^-24, L = |LSE|: six roundings of numbers of L's size, those of LSE itself, its product with
    log2(e), both constants, the score times log2(e) (no fused multiply-add here) and the difference. Each element of dS
    is off by that factor at most, so dQ and dK by its share of the sums of magnitudes.
    """
    apart = torch.tensor([8.0, -8.0]).repeat(8)
    q = torch.full((1, 1, 2, 16), 120.0)
    k = torch.stack([apart, -apart]).expand(1, 1, 2, 16) - 31.0
    k[0, 0, 1] += 2.0**-9
    _, _, v, dout = make(1, 1, 1, 2, 2, 16, torch.float32)
    reference = exact(q, k, v, dout, scale=1.0)
    assert reference[1].max() < -5e4
    wide_q, wide_k, wide_v, wide_dout = (x.double() for x in (q, k, v, dout))
    p = torch.softmax(wide_q @ wide_k.mT, -1)
    ds = (p * (wide_dout @ wide_v.mT - (wide_dout * (p @ wide_v)).sum(-1, keepdim=True))).abs()
    shares = (ds @ wide_k.abs(), ds.mT @ wide_q.abs(), p.mT @ wide_dout.abs())
    factor = math.expm1(6 * 2.0**-24 * reference[1].abs().max().item())
    assert 0.02 < factor < 0.022
    for tuning in (TWO_PASSES, SEEDED, ONE_PASS):
        for got, right, share in zip(run((q, k, v, dout), tuning, reference, scale=1.0), reference[2], shares):
            assert ((got.double() - right).abs() <= factor * share + 1e-5 * right.abs().max()).all()


@pytest.mark.parametrize("nq, nk", [(0, 4), (4, 0)])
def test_nothing_to_sum_is_zero(nq, nk):
    q, k, v, dout = make(1, 2, 2, nq, nk, 16, torch.float32)
    grads = tuple(torch.full_like(x, float("nan")) for x in (q, k, v))
    lse = torch.full((1, 2, nq), float("-inf"))
    for got in flash2_backward(dout, q, k, v, torch.zeros_like(q), lse, grads=grads):
        assert torch.equal(got, torch.zeros_like(got))


@pytest.mark.parametrize("change, argument", [
    ({"dout": torch.zeros(1, 1, 4, 8)}, "dout"),
    ({"dout": torch.zeros(1, 1, 4, 16, dtype=torch.float16)}, "dout"),
    ({"lse": torch.zeros(1, 1, 5)}, "lse"),
    ({"lse": torch.zeros(1, 1, 4, dtype=torch.float64)}, "lse"),
    ({"dlse": torch.zeros(1, 4)}, "dlse"),
    ({"window": (1, -2)}, "window"),
    ({"causal": 1}, "causal"),
    ({"deterministic": True, "tuning": ONE_PASS}, "tuning"),
])
def test_a_bad_call_names_its_argument(change, argument):
    x = torch.zeros(1, 1, 4, 16)
    call = {"dout": x, "q": x, "k": x, "v": x, "out": x, "lse": torch.zeros(1, 1, 4)} | change
    with pytest.raises(UnsupportedCall) as error:
        flash2_backward(**call)
    assert error.value.argument == argument


def test_stages_open_around_the_launches():
    q, k, v, dout = make(1, 1, 1, 8, 8, 16, torch.float32)
    for tuning, expected in ((TWO_PASSES, ["prepare", "keys", "queries"]), (ONE_PASS, ["prepare", "keys", "finish"])):
        names = []
        run((q, k, v, dout), tuning, stage=lambda name, to=names: to.append(name) or torch.no_grad())
        assert names == expected


@pytest.mark.parametrize("head_dim, masked, keys, queries", [
    (64, False, (64, 64, 4, 3, 168), (128, 64, 8, 3, None)), (64, True, (64, 64, 4, 2, 168), (64, 64, 4, 3, None)),
    (128, False, (64, 64, 4, 2, None), (128, 64, 8, 3, None)), (80, True, (64, 64, 4, 2, None), (128, 64, 8, 3, None))])
def test_the_table_has_a_row_a_head_size_and_mask(head_dim, masked, keys, queries):
    q = torch.zeros(1, 1, 8, head_dim, dtype=torch.bfloat16)
    found = choose((q, q, q, q), masked=masked, cc=(9, 0))
    assert found.tma and found.keys == keys and found.queries == queries and found.seed == (head_dim > 64)
    assert not choose((q, q, q, q), masked=masked, cc=(8, 9)).tma
    assert not choose((q, q, q, q[:, :, :1].expand(-1, -1, 8, -1)), masked=masked, cc=(9, 0)).tma  # stride 0


def test_every_row_is_deterministic():
    assert all(tuning.queries is not None for tuning in TMA.values())


def test_tuning_by_name():
    q = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    given = {"key_block_m": 32, "query_num_warps": 4, "tma": False, "query_maxnreg": 128}
    told = parameters(choose((q, q, q, q), masked=False, cc=(9, 0), tuning=given))
    assert given.items() <= told.items()
    assert told["query_block_m"] == 128 and told["key_maxnreg"] == 168 and told["one_pass"] is False
    one = choose((q, q, q, q), masked=False, cc=(9, 0), tuning={"one_pass": True})
    assert one.queries is None and not [name for name in parameters(one) if name.startswith("query")]
    for wrong, message in (({"block_m": 64}, "'block_m'"), ({"key_block_m": 48}, "power of two from 16 to 128, got 48"),
                           ({"one_pass": 1}, "True or False, got 1"), ({"key_num_stages": 0}, "positive whole number"),
                           ({"query_block_n": 64, "one_pass": True}, "no query_ parameter")):
        with pytest.raises(UnsupportedCall, match=message):
            choose((q, q, q, q), masked=False, cc=(9, 0), tuning=wrong)


@pytest.mark.parametrize("head_dim, keys", [(64, (64, 64, 4, 2, None)), (128, (32, 64, 4, 3, None))])
def test_grouped_heads_have_blocks_of_their_own(head_dim, keys):
    q, k = (torch.zeros(1, heads, 8, head_dim, dtype=torch.bfloat16) for heads in (4, 2))
    grouped, plain = (choose((q, x, x, q), masked=True, cc=(9, 0)) for x in (k, q))
    assert grouped.keys == keys != plain.keys and grouped.queries == plain.queries and not grouped.seed
