"""The FlashAttention-1 schedule: exact, and moving what its loops say."""

import numpy as np
import pytest
import torch

from kernels import UnsupportedCall, flash1, reference_attention, registry
from tests.kernels.oracle import assert_close, eager, tensors

SHAPES = [(1, 1, 1, 65, 65, 16), (2, 4, 2, 33, 47, 24), (1, 6, 2, 40, 20, 40), (1, 2, 1, 5, 2, 16), (1, 1, 1, 1, 1, 1),
          (1, 1, 1, 31, 97, 59)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_output_and_lse_against_float64(shape, causal, dtype, device):
    q, k, v = tensors(*shape, dtype, device)
    expected, expected_lse = reference_attention(q, k, v, causal=causal)
    out, lse = registry.call("flash1", q, k, v, causal=causal, return_lse=True)
    assert_close(out, expected, eager(q, k, v, causal))
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [(16, 64), (64, 16), (16, 16)], ids=str)
def test_blocks_and_strides_do_not_matter(blocks, device):
    given = tensors(1, 2, 2, 50, 70, 16, torch.float32, device)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in given)
    out = flash1.flash1_attention(q, k, v, causal=True, scale=-0.3, tuning=dict(zip(("block_m", "block_n"), blocks)))
    torch.testing.assert_close(out.double(), reference_attention(q, k, v, causal=True, scale=-0.3)[0], rtol=1e-5,
                               atol=1e-5)


def test_many_blocks_round_the_output_once(device):
    """In float16, with O of every step in float16, 64 key blocks would add 64 roundings."""
    q, k, v = tensors(1, 1, 1, 16, 1024, 16, torch.float16, device)
    expected, _ = reference_attention(q, k, v)
    out = flash1.flash1_attention(q, k, v, tuning={"block_n": 16})
    assert (out.double() - expected).abs().max() < 2**-11 * expected.abs().max() * 1.5


def test_scores_far_below_zero_are_an_ordinary_softmax(device):
    q = torch.full((1, 1, 1, 16), -250.0, device=device)
    k = torch.full((1, 1, 2, 16), 250.0, device=device)
    k[0, 0, 1, 0] -= 4e-3  # one score of -2.5e5 is higher by 0.25
    v = torch.tensor([[1.0], [3.0]], device=device).expand(1, 1, 2, 16).contiguous()
    out = flash1.flash1_attention(q, k, v, tuning={"block_n": 16})
    torch.testing.assert_close(out.double(), reference_attention(q, k, v)[0], rtol=2e-2, atol=0)


@pytest.mark.parametrize("causal, nq, nk", [(False, 40, 70), (True, 40, 70), (True, 48, 48)], ids=str)
def test_it_moves_what_the_model_predicts(causal, nq, nk, device, monkeypatch):
    """Loads and stores counted as the interpreter runs them; the same numbers by hand for the smallest case below."""
    if device == "cuda":
        pytest.skip("only Triton's interpreter lets its loads be counted one by one")
    from profiler.model import predict
    from profiler.spec import AttentionShape, RunConfig

    q, k, v = tensors(1, 2, 1, nq, nk, 16, torch.float16, device)
    read, written = count(monkeypatch, lambda: flash1.flash1_attention(
        q, k, v, causal=causal, tuning={"block_m": 16, "block_n": 32}))
    shape = AttentionShape(1, 2, nq, nk, 16, 1, "fp16", "causal" if causal else "full")
    stage = predict(RunConfig("flash1", shape, parameters={"block_m": 16, "block_n": 32})).stages[0]
    assert read == sum(stage.l2_to_sm.values()) and written == sum(stage.sm_to_l2.values())


def test_the_traffic_of_two_blocks_by_hand(device, monkeypatch):
    """One head, D 16, float16, 32 queries in 2 blocks, 64 keys in 2 blocks. K and V once: 2·64·16·2 bytes. Q each key
    block: 2·32·16·2. O back once, 4 bytes an element: 32·16·4; m and l back once: 2·32·4. Written: O as float32 after
    the first key block, as float16 after the second; m and l after both."""
    if device == "cuda":
        pytest.skip("only Triton's interpreter lets its loads be counted one by one")
    q, k, v = tensors(1, 1, 1, 32, 64, 16, torch.float16, device)
    read, written = count(monkeypatch, lambda: flash1.flash1_attention(q, k, v, tuning={"block_m": 16, "block_n": 32}))
    assert read == 2 * 64 * 16 * 2 + 2 * 32 * 16 * 2 + 32 * 16 * 4 + 2 * 32 * 4
    assert written == 32 * 16 * (4 + 2) + 2 * 2 * 32 * 4


def count(monkeypatch, call):
    """Bytes that the interpreter's masked loads and stores touch during ``call``: (read, written)."""
    from triton.runtime import interpreter

    total = {"load": 0, "store": 0}
    for name in total:
        real = getattr(interpreter._interpreter, name)

        def counting(pointers, second, *rest, name=name, real=real):
            mask = (second if name == "load" else rest[0])
            total[name] += int(mask.sum()) * np.dtype(rest[1] if name == "load" else second.dtype).itemsize
            return real(pointers, second, *rest)

        monkeypatch.setattr(interpreter._interpreter, name, counting)
    call()
    return total["load"], total["store"]


def test_what_it_cannot_do_is_refused_by_name(device):
    q, k, v = tensors(1, 1, 1, 8, 8, 16, torch.float32, device)
    with pytest.raises(UnsupportedCall, match=r"q: expected no gradient.*flash1 has none.*flash2"):
        registry.call("flash1", q.requires_grad_(), k, v)
    q = q.detach()
    with pytest.raises(UnsupportedCall, match=r"window: expected no such option \(flash1 takes return_lse\).*flash2"):
        registry.call("flash1", q, k, v, window=(1, 1))
    with pytest.raises(UnsupportedCall, match=r"block_m.*power of two, got 48"):
        registry.call("flash1", q, k, v, tuning={"block_m": 48})
    with pytest.raises(UnsupportedCall, match=r"tma.*reads through pointers"):
        registry.parameters("flash1", q, k, v, tuning={"tma": True})
    assert registry.parameters("flash1", q, k, v, tuning={"block_n": 16})["block_n"] == 16


@pytest.mark.parametrize("nq, nk", [(0, 4), (4, 0)], ids=str)
def test_no_queries_or_no_keys(nq, nk, device):
    q, k, v = tensors(1, 2, 1, nq, nk, 16, torch.float32, device)
    out, lse = flash1.flash1_attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and not out.any() and torch.isneginf(lse).all()
