"""Attention on kept blocks only: exact, and a skipped block is not read."""

import pytest
import torch

from kernels import UnsupportedCall, block_sparse, explain, flash_attention, reference_attention, registry
from tests.kernels.option_cases import formula
from tests.kernels.oracle import assert_close, tensors

# batch, heads, key heads, nq, nk, head size, block size, mask's batch and heads
CASES = [(2, 4, 2, 40, 53, 24, 16, 2, 4), (1, 2, 1, 100, 60, 16, 48, 1, 1), (2, 2, 2, 65, 65, 16, 32, 1, 2),
         (2, 2, 1, 33, 130, 40, 128, 2, 1)]


def mask_of(case, device):
    """A random block mask whose second block of queries keeps nothing, and the same as a bias of 0 and -inf."""
    nq, nk, _, size, b, h = case[3:]
    generator = torch.Generator().manual_seed(nq)
    mask = torch.rand(b, h, -(-nq // size), -(-nk // size), generator=generator) > 0.4
    mask[:, :, 0, 0] = True
    mask[0, 0, 1:2] = False
    whole = mask.repeat_interleave(size, 2).repeat_interleave(size, 3)[:, :, :nq, :nk]
    return mask.to(device), torch.where(whole, 0.0, -torch.inf).to(device)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_output_lse_and_gradients_against_float64(case, causal, dtype, device):
    mask, bias = mask_of(case, device)
    leaves = [x.requires_grad_() for x in tensors(*case[:6], dtype, device)]
    out, lse = flash_attention(*leaves, block_mask=mask, block_size=case[6], causal=causal, return_lse=True)
    exact, exact_lse = reference_attention(*leaves, attn_bias=bias, causal=causal)
    plain, plain_lse = formula(*leaves, attn_bias=bias, causal=causal)
    assert_close(out, exact, plain)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    blind = torch.isneginf(exact_lse)
    assert torch.equal(torch.isneginf(lse), blind) and not out[blind].any()
    if case[3] > case[6] and case[7:] == (1, 1):
        assert blind.any()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)

    def gradients(o, logarithms):
        return torch.autograd.grad((o * dout.to(o.dtype)).sum() + logarithms[~blind].sum(), leaves)

    found = gradients(out, lse), gradients(exact, exact_lse), gradients(plain, plain_lse)
    for got, right, eager in zip(*found):
        floor = {torch.float32: 1e-5, torch.float16: 5e-4}[dtype] * right.abs().max()
        assert (got.double() - right).abs().max() <= 3 * (eager.double() - right).abs().max() + floor
    assert not found[0][0][blind].any()


def test_a_skipped_block_is_not_read(device):
    """NaN in keys and values that no kept block holds reaches nothing."""
    q, k, v = (x.requires_grad_() for x in tensors(1, 1, 1, 64, 64, 16, torch.float32, device))
    mask = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device)
    mask[..., 1] = False
    with torch.no_grad():
        k[:, :, 32:], v[:, :, 32:] = torch.nan, torch.nan
    out = flash_attention(q, k, v, block_mask=mask, block_size=32)
    expected, _ = reference_attention(q, k[:, :, :32], v[:, :, :32])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert torch.isfinite(dq).all() and not dk[:, :, 32:].any() and not dv[:, :, 32:].any()


def test_lists_by_hand(device):
    mask = torch.tensor([[[[0, 1, 1], [0, 0, 0]]]], dtype=torch.bool, device=device)
    lists = block_sparse.block_lists(mask, 64)
    assert lists.column_counts.tolist() == [[[2, 0]]] and lists.columns[0, 0, 0, :2].tolist() == [1, 2]
    assert lists.row_counts.tolist() == [[[0, 1, 1]]] and lists.rows[0, 0, 1:, 0].tolist() == [0, 0]


def test_no_mask_keeps_everything_and_lists_can_be_kept(device):
    q, k, v = tensors(1, 2, 2, 40, 50, 16, torch.float32, device)
    expected, _ = reference_attention(q, k, v, causal=True)
    whole = registry.call("flash_sparse", q, k, v, causal=True, block_size=16)
    torch.testing.assert_close(whole.double(), expected, rtol=1e-5, atol=1e-5)
    mask, bias = mask_of((1, 2, 2, 40, 50, 16, 16, 1, 1), device)
    ready = registry.prepare_forward("flash_sparse", q, k, v, block_mask=mask, block_size=16)
    torch.testing.assert_close(ready().double(), reference_attention(q, k, v, attn_bias=bias)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options, message", [
    ({"block_mask": torch.ones(1, 1, 4, 4)}, r"block_mask: expected a bool tensor.*float32"),
    ({"block_mask": torch.ones(1, 1, 4, 3, dtype=torch.bool)}, r"block_mask: expected shape \(1 or 1, 2 or 1, 4, 4\)"),
    ({"block_size": 24}, r"block_size: expected a multiple of 16, got 24"),
    ({"tuning": {"block_m": 32}}, r"block_m.*a divisor of block_size 16"),
    ({"softcap": 1.0}, r"softcap: expected no such option \(flash_sparse.*flash2"),
    ({"implementation": "flash2"}, r"block_mask: expected None")], ids=lambda x: str(x)[:24])
def test_what_does_not_fit_is_refused_by_name(options, message, device):
    q, k, v = tensors(1, 2, 2, 64, 64, 16, torch.float32, device)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool, device=device)
    given = {"block_mask": mask, "block_size": 16, **options}
    given["block_mask"] = given["block_mask"].to(device)
    for attention in (flash_attention, explain):
        with pytest.raises(UnsupportedCall, match=message):
            attention(q, k, v, **given)
    told = explain(q, k, v, block_mask=mask, block_size=16)
    assert told.implementation == "flash_sparse" and told.tuning["block_m"] == 16 and "block mask" in told.why[0]


def test_the_operators_keep_their_promises(device):
    q, k, v = (x.requires_grad_() for x in tensors(1, 2, 1, 20, 20, 16, torch.float32, device))
    lists = block_sparse.block_lists(torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device), 16)
    torch.library.opcheck(block_sparse.operator, (q, k, v, *lists.tensors, 16, True, 0.25, []))
