"""FlashAttention-2 forward against float64, in Triton's interpreter or on the GPU at hand."""

import pytest
import torch

from kernels import flash2, flash_attention, plan, reference_attention
from tests.kernels.oracle import assert_close, eager, tensors

# (batch, heads, kv_heads, nq, nk, head_dim); blocks are 32 by 32 in the interpreter
SHAPES = {
    "one token": (1, 1, 1, 1, 1, 16), "2x5": (1, 2, 2, 2, 5, 64), "5x2": (2, 2, 2, 5, 2, 64),
    "one block less one": (1, 1, 1, 31, 31, 16), "one block": (1, 2, 2, 32, 32, 16),
    "one block and one": (1, 1, 1, 33, 33, 16), "two blocks": (2, 1, 1, 64, 64, 32), "65 tokens": (1, 1, 1, 65, 65, 16),
    "113x203": (1, 1, 1, 113, 203, 16), "203x113": (1, 1, 1, 203, 113, 16), "3x99": (1, 1, 1, 3, 99, 16),
    "6 heads on 2": (2, 6, 2, 40, 50, 16), "D 1": (1, 1, 1, 33, 33, 1), "D 40": (1, 1, 1, 33, 40, 40),
    "D 59": (1, 1, 1, 33, 40, 59), "D 80": (1, 1, 1, 33, 40, 80), "D 128": (1, 1, 1, 40, 33, 128),
    "D 192": (1, 1, 1, 33, 33, 192), "D 256": (1, 1, 1, 33, 33, 256),
}


def check(q, k, v, causal=False, scale=None, **options):
    out, lse = flash_attention(q, k, v, causal=causal, scale=scale, return_lse=True, **options)
    expected, expected_lse = reference_attention(q, k, v, causal=causal, scale=scale)
    assert out.shape == q.shape and out.dtype == q.dtype and out.is_contiguous() and lse.dtype == torch.float32
    assert_close(out, expected, eager(q, k, v, causal, scale))
    blind = torch.isinf(expected_lse)
    assert torch.equal(lse == float("-inf"), blind)
    torch.testing.assert_close(lse[~blind].double(), expected_lse[~blind], rtol=3e-6, atol=3e-6)
    assert not out[blind].any()
    return out, lse


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_matches_float64(shape, causal, dtype, device):
    check(*tensors(*shape, dtype, device), causal)


@pytest.mark.parametrize("shape", [(2, 4, 2, 33, 65, 64), (1, 2, 2, 64, 64, 16), (1, 1, 1, 40, 7, 40)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_descriptors_match_float64(shape, causal, device):
    if device == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("descriptors need compute capability 9.0")
    check(*tensors(*shape, torch.float16, device), causal, tuning={"tma": True})


@pytest.mark.parametrize("blocks", [(16, 64), (64, 16), (16, 16), (128, 32)], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_block_sizes_do_not_matter(blocks, causal, device):
    block_m, block_n = blocks
    check(*tensors(1, 2, 1, 70, 90, 16, torch.float16, device), causal,
          tuning={"block_m": block_m, "block_n": block_n, "num_warps": 4, "num_stages": 1})


@pytest.mark.parametrize("scale", [0.37, 1.0, -0.5, 0.0, 30.0])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_scale(scale, causal, device):
    check(*tensors(1, 2, 2, 37, 45, 16, torch.float32, device), causal, scale)


def test_scores_far_below_zero_are_an_ordinary_softmax(device):
    # q·k is -64·30·31 = -59520 and -64·30·30.97 = -59462.4: nothing may stand in for minus infinity.
    q = torch.full((1, 1, 2, 64), 30.0, device=device)
    k = torch.stack([torch.full((64,), -31.0), torch.full((64,), -30.97)]).view(1, 1, 2, 64).to(device)
    v = torch.arange(128.0, device=device).view(1, 1, 2, 64)
    out, lse = flash_attention(q, k, v, scale=1.0 / 64, return_lse=True)
    # Scores -930 and -929.1: the weights are 1/(1 + e^0.9) and its complement.
    weight = 1 / (1 + torch.tensor(0.9, dtype=torch.float64).exp())
    torch.testing.assert_close(out[0, 0, 0, 0].double().cpu(), 64 * (1 - weight), rtol=1e-3, atol=0)
    assert lse[0, 0, 0].item() == pytest.approx(-929.1 + 0.3412, abs=2e-3)
    check(q, k, v, scale=1.0)


def test_large_scores_do_not_overflow(device):
    q, k, v = tensors(1, 1, 1, 40, 40, 64, torch.float16, device)
    check(q * 30, k * 30, v, causal=True)


@pytest.mark.parametrize("name", ["heads inside tokens", "fused qkv", "transposed tokens", "unaligned"])
def test_strides(name, device):
    q, k, v = tensors(2, 2, 2, 35, 35, 32, torch.float16, device)
    if name == "heads inside tokens":
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    elif name == "fused qkv":
        fused = torch.stack([t.transpose(1, 2) for t in (q, k, v)], dim=2)  # (B, N, 3, H, D)
        q, k, v = (fused[:, :, i].transpose(1, 2) for i in range(3))
    elif name == "transposed tokens":
        v = v.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)  # k contiguous, v not
    else:
        q, k, v = (torch.cat([t[..., :1], t], -1)[..., 1:] for t in (q, k, v))  # rows of 33 elements
    assert all(t.stride(-1) == 1 for t in (q, k, v))
    check(q, k, v, causal=True)


def test_a_not_a_number_beyond_the_keys_does_not_leak(device):
    q, k, v = tensors(1, 2, 2, 20, 64, 16, torch.float32, device)
    k[:, :, 40:], v[:, :, 40:] = float("nan"), float("nan")
    check(q, k[:, :, :40], v[:, :, :40], causal=True)


def test_every_element_is_written(device):
    q, k, v = tensors(2, 2, 2, 45, 45, 40, torch.float32, device)
    chosen = plan.choose(q, k, v, causal=True, cc=None if device == "cpu" else torch.cuda.get_device_capability(),
                         tuning=None)
    out = torch.full_like(q, float("nan"))
    flash2.forward(q, k, v, chosen, causal=True, scale=0.2, return_lse=False, out=out)
    assert_close(out, reference_attention(q, k, v, causal=True, scale=0.2)[0], eager(q, k, v, True, 0.2))


def test_every_program_finds_its_own_block(device, monkeypatch):
    # Groups of 4 key heads, the last one smaller: 3 batches of 6 heads on 3, four blocks of rows each.
    monkeypatch.setattr(plan, "L2_SHARE_BYTES", 1)
    q, k, v = tensors(3, 6, 3, 100, 40, 16, torch.float32, device)
    assert plan.head_group(k, 6) == 8 and 3 * 6 % 8
    check(q, k, v)


@pytest.mark.parametrize("tokens, heads, kv_heads, expected", [  # of an L2 of 50 MiB half is 26,214,400 bytes
    (4096, 16, 16, 8),    # 2·4096·128·2 bytes a head: 2 MiB, eight in 16 MiB
    (8192, 16, 16, 4),    # 4 MiB: four in 16 MiB
    (16384, 16, 16, 3),   # 8 MiB: four would be 32 MiB, three fit in 25
    (32768, 16, 16, 1),   # 16 MiB: one
    (131072, 16, 16, 1),  # 64 MiB: one all the same
    (16384, 16, 4, 12)])  # three key heads, four query heads each
def test_the_keys_and_values_in_use_fit_in_half_of_l2(tokens, heads, kv_heads, expected):
    k = torch.empty(1, kv_heads, tokens, 128, dtype=torch.bfloat16, device="meta")
    assert plan.head_group(k, heads) == expected


def test_no_queries_or_no_keys(device):
    q, k, v = tensors(1, 2, 2, 0, 5, 16, torch.float32, device)
    assert flash_attention(q, k, v).shape == (1, 2, 0, 16)
    q, k, v = tensors(1, 2, 2, 5, 0, 16, torch.float32, device)
    out, lse = flash_attention(q, k, v, return_lse=True)
    assert not out.any() and (lse == float("-inf")).all()


def test_two_runs_agree_bitwise(device):
    q, k, v = tensors(1, 2, 2, 50, 70, 32, torch.float16, device)
    assert torch.equal(flash_attention(q, k, v, causal=True), flash_attention(q, k, v, causal=True))
