"""Inputs on which public implementations were wrong, for those of ours that other tests of this folder do not give
them to. Each name says what went wrong elsewhere."""

import pytest
import torch

from kernels import naive_attention, reference_attention, registry
from tests.kernels.oracle import assert_close, eager, tensors

FUSED = ("flash1", "flash2", "flash_varlen", "flash_sparse")


def call(name, q, k, v, **options):
    sizes = {"block_size": 32} if name == "flash_sparse" else {}
    return registry.call(name, q, k, v, return_lse=True, **sizes, **options)


def check(name, q, k, v, **options):
    out, lse = call(name, q, k, v, **options)
    expected, expected_lse = reference_attention(q, k, v, **options)
    assert_close(out, expected, eager(q, k, v, options.get("causal", False), options.get("scale")))
    torch.testing.assert_close(lse.double(), expected_lse, rtol=3e-6, atol=3e-6)  # -inf against -inf only


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("nq, nk", [(5, 2), (2, 5), (3, 799), (1, 1)], ids=str)
def test_causal_with_more_or_fewer_queries_than_keys(name, nq, nk, device):
    check(name, *tensors(1, 1, 1, nq, nk, 16, torch.float32, device), causal=True)


@pytest.mark.parametrize("shape", [(1, 1, 1, 113, 203, 16), (1, 1, 1, 1023, 1024, 16)], ids=str)
def test_long_causal_rectangles(shape, device):
    q, k, v = tensors(*shape, torch.float32, device)
    out = registry.call("flash2", q, k, v, causal=True, tuning={"block_m": 128, "block_n": 128})
    assert_close(out, reference_attention(q, k, v, causal=True)[0], eager(q, k, v, True))


@pytest.mark.parametrize("name", FUSED)
def test_first_rows_that_see_nothing_are_zero(name, device):
    out, lse = call(name, *tensors(1, 1, 1, 5, 2, 16, torch.float16, device), causal=True)
    assert not out[0, 0, :3].any() and torch.isneginf(lse[0, 0, :3]).all() and torch.isfinite(lse[0, 0, 3:]).all()


@pytest.mark.parametrize("name", [*FUSED, "naive"])
def test_no_finite_number_stands_in_for_minus_infinity(name, device):
    """Two keys, scores -59520 and -59516.25, of which every product and sum is exact in float32."""
    q = torch.full((1, 1, 2, 64), 30.0, device=device)
    k = torch.full((1, 1, 2, 64), -31.0, device=device)
    k[:, :, 1] += 2.0**-9
    v = torch.tensor([1.0, 3.0], device=device).view(1, 1, 2, 1).expand(1, 1, 2, 64).contiguous()
    gap = 30.0 * 64 * 2.0**-9  # 3.75: 16 times the step of float32 there
    out = naive_attention(q, k, v, scale=1.0) if name == "naive" else call(name, q, k, v, scale=1.0)[0]
    weight = 1 / (1 + torch.tensor(-gap, dtype=torch.float64).exp())
    torch.testing.assert_close(out.double().cpu(), (1 + 2 * weight).expand(out.shape), rtol=6e-3, atol=0)


@pytest.mark.parametrize("head_dim", [16, 32, 48, 96, 111, 160, 224])
def test_head_sizes_between_powers_of_two(head_dim, device):
    check("flash2", *tensors(1, 1, 1, 33, 40, head_dim, torch.float32, device), causal=True)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("heads, kv_heads", [(8, 2), (6, 2)], ids=["8/2", "6/2"])
def test_query_heads_on_shared_key_heads(name, heads, kv_heads, device):
    check(name, *tensors(1, heads, kv_heads, 9, 20, 16, torch.float32, device), causal=True)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("n", [1, 31, 32, 33])
def test_one_token_and_one_off_a_block(name, n, device):
    check(name, *tensors(1, 1, 1, n, n, 16, torch.float32, device), causal=n % 2 == 1)


@pytest.mark.parametrize("name", ("flash2", "flash_varlen", "flash_sparse"))
def test_gradient_of_a_sum_whose_dout_has_stride_zero(name, device):
    """Also with K contiguous and V a transposed view, and an O whose gradient is a transposed tensor."""
    q, k, v = tensors(1, 2, 2, 20, 20, 16, torch.float32, device)
    v = v.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    transposed = torch.randn(1, 2, 16, 20, generator=torch.Generator().manual_seed(2)).to(device).mT
    for loss in (lambda o: o.sum(), lambda o: (o * transposed.to(o.dtype)).sum()):
        got = torch.autograd.grad(loss(call(name, *leaves)[0]), leaves)
        for mine, exact in zip(got, torch.autograd.grad(loss(reference_attention(*leaves)[0]), leaves)):
            torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
def test_partial_results_merge_through_the_natural_logarithm(name, device):
    """Two halves of the keys, O = Σ exp(LSE_s - LSE)·O_s; a base of 2 on either side would be off by far."""
    q, k, v = tensors(1, 2, 1, 7, 60, 16, torch.float32, device)
    parts = [call(name, q, k[:, :, some], v[:, :, some]) for some in (slice(0, 25), slice(25, 60))]
    lse = torch.logsumexp(torch.stack([part[1] for part in parts]), 0)
    merged = sum(torch.exp(own - lse)[..., None] * out for out, own in parts)
    expected, expected_lse = reference_attention(q, k, v)
    torch.testing.assert_close(merged.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ("flash2", "flash_varlen"))
@pytest.mark.parametrize("width", [1, 4])
def test_a_window_of_w_tokens_is_a_left_side_of_one_less(name, width, device):
    q, k, v = tensors(1, 1, 1, 6, 40, 16, torch.float32, device)
    out, _ = call(name, q, k, v, causal=True, window=(width - 1, -1))
    for i in range(6):
        last = i + 40 - 6
        seen = slice(last - width + 1, last + 1)
        alone, _ = reference_attention(q[:, :, i:i + 1], k[:, :, seen], v[:, :, seen])
        torch.testing.assert_close(out[:, :, i:i + 1].double(), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUSED)
def test_float32_is_not_rounded_to_tf32(name, device):
    """TF32 would be off by about 1e-3, float32 is by about 1e-6."""
    q, k, v = tensors(1, 1, 1, 40, 64, 64, torch.float32, device)
    out, _ = call(name, q, k, v)
    assert (out.double() - reference_attention(q, k, v)[0]).abs().max() < 5e-6


@pytest.mark.parametrize("name", FUSED)
def test_offsets_of_tokens_beyond_32_bits(name, device):
    """Two tokens, 2³¹ elements and more apart: memory that is never touched costs none."""
    if device == "cuda":
        pytest.skip("tests/gpu has tensors of that size")
    far = 2**31 + 64
    base = torch.empty(far + 3 * 16, dtype=torch.float16)
    near = [torch.randn(1, 1, 2, 16, generator=torch.Generator().manual_seed(i)).half() for i in range(3)]
    spread = [base.as_strided((1, 1, 2, 16), (0, 0, far, 1), 16 * i) for i in range(3)]
    for place, value in zip(spread, near):
        place.copy_(value)
    if name == "flash_varlen":  # packing would copy them
        from kernels import flash_attention_varlen

        cu = torch.tensor([0, 2], dtype=torch.int32)
        out, same = (flash_attention_varlen(*(x[0].transpose(0, 1) for x in three), cu, cu, 2, 2)
                     for three in (spread, near))
    else:
        (out, _), (same, _) = call(name, *spread), call(name, *near)
    assert torch.equal(out, same)


def test_a_grid_of_more_than_65535_programs_has_one_dimension(device, monkeypatch):
    """Batch · heads beyond 65,535: no launch of ours uses a second or third dimension, which end there."""
    from kernels import block_sparse, flash1, flash2, varlen

    grids = []

    class Recorder:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *arguments, **options: None

    for module in (block_sparse, flash1, flash2, varlen):
        monkeypatch.setattr(module, "_forward", Recorder())
    q = torch.zeros(70_000, 1, 2, 16, dtype=torch.float16, device=device)
    for name in ("flash1", "flash2", "flash_sparse", "flash_varlen"):
        call(name, q, q, q)
    assert all(len(grid) == 1 and grid[0] >= 70_000 for grid in grids) and len(grids) == 4
