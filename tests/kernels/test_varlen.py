"""Packed sequences: each is attended by itself, whatever its length."""

import pytest
import torch

from kernels import UnsupportedCall, flash_attention_varlen, reference_attention, registry
from tests.kernels.oracle import FLOOR, assert_close, eager


def packed(lengths_q, lengths_k, heads, kv_heads, head_dim, dtype, device, seed=0):
    """q, k, v with gradients, and the four arguments that say where sequences are."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(sum(lengths), h, head_dim, generator=generator).to(device, dtype).requires_grad_()
               for lengths, h in ((lengths_q, heads), (lengths_k, kv_heads), (lengths_k, kv_heads))]
    cu = [torch.tensor([sum(lengths[:i]) for i in range(len(lengths) + 1)], dtype=torch.int32, device=device)
          for lengths in (lengths_q, lengths_k)]
    return tensors, (*cu, max(lengths_q, default=0), max(lengths_k, default=0))


def one_by_one(attention, q, k, v, lengths_q, lengths_k, **options):
    """(out, lse) of every sequence by itself, behind each other; alibi_slopes (S, H) has a row a sequence."""
    outs, lses = [], []
    sides = (x.split(list(lengths)) for x, lengths in ((q, lengths_q), (k, lengths_k), (v, lengths_k)))
    for s, parts in enumerate(zip(*sides)):
        own = {name: value[s:s + 1] if name == "alibi_slopes" else value for name, value in options.items()}
        found = attention(*(x.transpose(0, 1)[None] for x in parts), **own)
        out, lse = found if isinstance(found, tuple) else (found, found[..., 0])
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


CASES = {"empty sequences": ([0, 0, 33, 9, 0, 4], [0, 7, 20, 35, 3, 0]), "one token": ([1, 1, 33], [1, 33, 1]),
         "more queries": ([40, 5], [20, 2]), "one": ([65], [65])}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_output_lse_and_gradients_against_float64(case, causal, dtype, device):
    q_lengths, k_lengths = CASES[case]
    (q, k, v), places = packed(q_lengths, k_lengths, 2, 1, 24, dtype, device)
    out, lse = flash_attention_varlen(q, k, v, *places, causal=causal, return_lse=True)
    exact, exact_lse = one_by_one(reference_attention, q, k, v, q_lengths, k_lengths, causal=causal)
    plain, _ = one_by_one(eager, q, k, v, q_lengths, k_lengths, causal=causal)
    assert_close(out, exact, plain)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    sees = torch.isfinite(exact_lse)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)

    def gradients(o, logarithms=None):
        loss = (o * dout.to(o.dtype)).sum() + (0 if logarithms is None else logarithms[sees].sum())
        return torch.autograd.grad(loss, (q, k, v))

    for got, right, usual in zip(gradients(out, lse), gradients(exact, exact_lse), gradients(plain)):
        error, size = (got.double() - right).abs().max(), right.abs().max()
        assert torch.isfinite(got).all() and error <= 4 * FLOOR[dtype] * size + 3 * (usual - got).abs().max() * (
            dtype != torch.float32)


def test_the_lengths_of_a_known_failure(device):
    """Public kernels lost cu_seqlens [0, 0, 1208, 2048, 2048]: the same pattern, 16 times shorter."""
    lengths = [0, 75, 53, 0]
    (q, k, v), places = packed(lengths, lengths, 1, 1, 16, torch.float32, device)
    assert places[0].tolist() == [0, 0, 75, 128, 128]
    out = flash_attention_varlen(q, k, v, *places, causal=True)
    exact, _ = one_by_one(reference_attention, q, k, v, lengths, lengths, causal=True)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)


def test_nothing_at_all(device):
    for lengths in ([], [0, 0]):
        (q, k, v), places = packed(lengths, lengths, 2, 1, 16, torch.float32, device)
        out, lse = flash_attention_varlen(q, k, v, *places, return_lse=True)
        assert out.shape == (0, 2, 16) and lse.shape == (2, 0)
        assert all(x.shape == y.shape for x, y in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)))


def test_options_reach_every_sequence(device):
    q_lengths, k_lengths = [20, 0, 9], [33, 5, 12]
    (q, k, v), places = packed(q_lengths, k_lengths, 4, 2, 16, torch.float32, device)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], device=device, requires_grad=True)
    slopes = torch.tensor([[0.1, 0.2, 0.3, 0.4]], device=device) * torch.tensor([[1.0], [2.0], [3.0]], device=device)
    options = dict(window=(12, 3), softcap=2.0, alibi_slopes=slopes, sinks=sinks)
    out, lse = flash_attention_varlen(q, k, v, *places, return_lse=True, **options)
    exact, exact_lse = one_by_one(reference_attention, q, k, v, q_lengths, k_lengths, **options)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(device)
    got, right = (torch.autograd.grad((o * weights).sum() + s.sum(), (q, k, v, sinks))
                  for o, s in ((out, lse), (exact, exact_lse)))
    for mine, theirs in zip(got, right):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-5)


def test_dropout_counts_from_the_start_of_each_sequence(device):
    """The first of two packed sequences drops what it drops alone; the second is batch index 1 to Philox."""
    lengths = [20, 33]
    (q, k, v), places = packed(lengths, lengths, 2, 2, 16, torch.float32, device)
    out = flash_attention_varlen(q, k, v, *places, dropout_p=0.4, seed=11)
    padded = [torch.zeros(2, 2, 33, 16, device=device) for _ in range(3)]
    for whole, x in zip(padded, (q, k, v)):
        whole[0, :, :20], whole[1] = x[:20].transpose(0, 1), x[20:].transpose(0, 1)
    seen = torch.arange(33, device=device) < torch.tensor([[20], [33]], device=device)
    expected, _ = reference_attention(*padded, key_padding_mask=seen, dropout_p=0.4, seed=11)
    torch.testing.assert_close(out[:20].transpose(0, 1).double(), expected[0, :, :20], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[20:].transpose(0, 1).double(), expected[1], rtol=1e-5, atol=1e-5)


def test_what_a_neighbour_holds_does_not_matter(device):
    lengths = [40, 24]
    (q, k, v), places = packed(lengths, lengths, 1, 1, 16, torch.float32, device)
    with torch.no_grad():
        k[40:], v[40:] = torch.nan, torch.nan
    out = flash_attention_varlen(q, k, v, *places)
    dq, dk, dv = torch.autograd.grad(out[:40].sum(), (q, k, v))
    assert torch.isfinite(out[:40]).all() and all(torch.isfinite(x[:40]).all() for x in (dq, dk, dv))


def test_any_strides_and_two_runs_agree(device):
    """q, k and v as slices of one tensor (tokens, 3, heads, head size)."""
    fused = torch.randn(50, 3, 2, 16, generator=torch.Generator().manual_seed(0)).to(device)
    cu = torch.tensor([0, 17, 50], dtype=torch.int32, device=device)
    runs = []
    for _ in range(2):
        leaf = fused.clone().requires_grad_()
        out = flash_attention_varlen(*leaf.unbind(1), cu, cu, 33, 33, causal=True, deterministic=True)
        runs.append((out, torch.autograd.grad(out.sum(), leaf)[0]))  # dO of a sum has stride 0
    exact, _ = one_by_one(reference_attention, *fused.unbind(1), [17, 33], [17, 33], causal=True)
    torch.testing.assert_close(runs[0][0].double(), exact, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(*runs))


@pytest.mark.parametrize("change, message", [
    ({"q": torch.zeros(1, 2, 4, 16)}, r"q: expected 3 dimensions.*\(1, 2, 4, 16\)"),
    ({"cu_seqlens_q": torch.tensor([0, 8])}, r"cu_seqlens_q: expected an int32.*int64"),
    ({"cu_seqlens_k": torch.tensor([0, 4, 8], dtype=torch.int32)}, r"cu_seqlens_k: expected 2 elements.*got 3"),
    ({"max_seqlen_q": 8.0}, r"max_seqlen_q: expected a whole number.*8\.0"),
    ({"attn_bias": torch.zeros(8, 8)}, r"attn_bias: expected None, got a Tensor.*padded sequences"),
    ({"causal": 1}, r"causal: expected True or False"), ({"tuning": {"block_m": 3}}, r"block_m.*power of two, got 3"),
    ({"alibi_slopes": torch.zeros(3)}, r"alibi_slopes: expected shape \(H,\) or \(B, H\)")], ids=lambda x: str(x)[:20])
def test_what_does_not_fit_is_refused_by_name(change, message, device):
    (q, k, v), places = packed([8], [8], 2, 2, 16, torch.float32, device)
    arguments = dict(zip(("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
                         (q, k, v, *places)))
    moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in change.items()}
    with pytest.raises(UnsupportedCall, match=message):
        flash_attention_varlen(**{**arguments, **moved})


def test_lengths_of_a_batch(device):
    """The registry's form, on padded tensors: what is behind a sequence's end is 0, and has no gradient."""
    q, k, v = (torch.randn(2, 2, n, 16, generator=torch.Generator().manual_seed(n)).to(device).requires_grad_()
               for n in (12, 20, 20))
    lengths = {"q_lengths": [12, 5], "k_lengths": [9, 20]}
    out, lse = registry.call("flash_varlen", q, k, v, causal=True, return_lse=True, **lengths)
    expected, _ = reference_attention(q[1:, :, :5], k[1:], v[1:], causal=True)
    torch.testing.assert_close(out[1:, :, :5].double(), expected, rtol=1e-5, atol=1e-5)
    assert not out[1, :, 5:].any() and torch.isneginf(lse[1, :, 5:]).all() and torch.isneginf(lse[0, :, :3]).all()
    dq, dk, _ = torch.autograd.grad(out.sum(), (q, k, v))
    assert not dk[0, :, 9:].any() and not dq[1, :, 5:].any() and dk[1].abs().min() > 0
    ready = registry.prepare_backward("flash_varlen", q, k, v, torch.ones_like(q), causal=True, **lengths)
    torch.testing.assert_close(ready.unpack(ready())[1], dk, rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedCall, match=r"q_lengths: expected 2 whole numbers from 0 to 12"):
        registry.call("flash_varlen", q, k, v, q_lengths=[13, 1])


def test_the_operators_keep_their_promises(device):
    from kernels import varlen_operator

    (q, k, v), places = packed([5, 0, 3], [5, 3, 0], 2, 1, 16, torch.float32, device)
    arguments = (q, k, v, *places, 0.25, [], -1, 0, 0.0, 0.0, None, None, None, None, None)
    torch.library.opcheck(varlen_operator.operator, arguments)
