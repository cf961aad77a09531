"""Decode under torch.compile and fake tensors: the operators do what the plain call does."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import UnsupportedCall, flash_attention_decode


@pytest.fixture
def cache(device):
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, h, n, 16, generator=generator).to(device) for h, n in ((4, 1), (2, 40), (2, 40)))
    new = torch.randn(2, 2, 2, 1, 16, generator=generator).to(device)
    return q, k, v, torch.tensor([7, 39], dtype=torch.int32, device=device), new


@pytest.mark.parametrize("options", [{}, {"window": (9, -1), "softcap": 3.0, "num_splits": 2}], ids=str)
def test_compiled_whole_gives_the_same(options, cache):
    q, k, v, lengths, _ = cache

    def layer(q, k, v):
        out, lse = flash_attention_decode(q * 2, k, v, cache_seqlens=lengths, return_lse=True, **options)
        return out.sum(-1) + lse

    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(q, k, v), layer(q, k, v))


def test_new_keys_reach_the_cache(cache):
    q, k, v, lengths, (k_new, v_new) = cache

    def layer(q, k, v):
        return flash_attention_decode(q, k, v, cache_seqlens=lengths, k_new=k_new, v_new=v_new, tuning={"block_n": 16})

    mine, plain = ((k.clone(), v.clone()) for _ in range(2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, *mine), layer(q, *plain))
    assert all(torch.equal(a, b) for a, b in zip(mine, plain)) and torch.equal(mine[0][0, :, 7], k_new[0, :, 0])


def test_the_operators_keep_their_promises(cache):
    q, k, v, lengths, (k_new, v_new) = cache
    rest = (lengths, None, 1, True, -1, -1, 0.0, None, [])
    torch.library.opcheck(torch.ops.flashscope.decode.default, (q, k, v, *rest))
    torch.library.opcheck(torch.ops.flashscope.decode_append.default, (q, k, v, k_new, v_new, *rest))


def test_fake_tensors_and_refusals(cache, device):
    q, k, v, lengths, _ = cache
    with FakeTensorMode():
        fake = [torch.empty(x.shape, dtype=torch.float16, device=device) for x in (q, k, v)]
        out = flash_attention_decode(*fake, cache_seqlens=torch.empty(2, dtype=torch.int32, device=device))
    assert out.shape == q.shape and out.dtype == torch.float16
    with pytest.raises(UnsupportedCall, match="cache_seqlens"):
        torch.compile(lambda: flash_attention_decode(q, k, v, cache_seqlens=lengths[:1]), backend="aot_eager")()
