"""The float64 specification against numbers worked out by hand."""

import math

import pytest
import torch

from kernels import UnsupportedCall, reference, reference_attention

LN3 = math.log(3.0)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1, 1)


def test_two_keys_by_hand():
    # Scores 0 and ln 3: weights 1/4 and 3/4, O = (4 + 3·8)/4 = 7, LSE = ln(1 + 3).
    out, lse = reference_attention(column(1.0), column(0.0, LN3), column(4.0, 8.0), scale=1.0)
    assert out.item() == pytest.approx(7.0, rel=1e-14)
    assert lse.item() == pytest.approx(math.log(4.0), rel=1e-14)


def test_default_scale_is_one_over_root_of_head_dim():
    q = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    q[..., 0] = 2 * LN3  # times 1/sqrt(4): the score of the second key is ln 3
    k = torch.zeros(1, 1, 2, 4, dtype=torch.float64)
    k[0, 0, 1, 0] = 1.0
    v = torch.tensor([4.0, 8.0], dtype=torch.float64).view(1, 1, 2, 1).expand(1, 1, 2, 4)
    assert reference_attention(q, k, v)[0][0, 0, 0].tolist() == pytest.approx([7.0] * 4, rel=1e-14)


def test_causal_is_aligned_bottom_right():
    # All scores 0, so O is the mean of the visible values. Nq 5, Nk 2: three rows see nothing, then key 0, then both.
    out, lse = reference_attention(column(*[0.0] * 5), column(0.0, 0.0), column(2.0, 4.0), causal=True)
    assert out.flatten().tolist() == pytest.approx([0, 0, 0, 2, 3])
    assert lse.flatten().tolist() == pytest.approx([-math.inf] * 3 + [0.0, math.log(2.0)])
    # Nq 2, Nk 5: row 0 sees keys 0-3, row 1 all five.
    out, _ = reference_attention(column(0.0, 0.0), column(*[0.0] * 5), column(1.0, 2.0, 3.0, 4.0, 5.0), causal=True)
    assert out.flatten().tolist() == pytest.approx([2.5, 3.0])


def test_window_counts_both_ends():
    # Nq = Nk = 4, left 1, right 0: each row sees itself and the one before.
    out, _ = reference_attention(column(*[0.0] * 4), column(*[0.0] * 4), column(1.0, 2.0, 3.0, 4.0), window=(1, 0))
    assert out.flatten().tolist() == pytest.approx([1.0, 1.5, 2.5, 3.5])
    # left unlimited, right 1.
    out, _ = reference_attention(column(*[0.0] * 4), column(*[0.0] * 4), column(1.0, 2.0, 3.0, 4.0), window=(-1, 1))
    assert out.flatten().tolist() == pytest.approx([1.5, 2.0, 2.5, 2.5])


def test_options_by_hand():
    q, k, v = column(1.0), column(0.0, LN3), column(4.0, 8.0)
    # A sink of ln 4 beside scores 0 and ln 3: exponentials 1, 3 and 4, O = (1·4 + 3·8)/8, LSE = ln 8.
    out, lse = reference_attention(q, k, v, scale=1.0, sinks=torch.tensor([math.log(4.0)], dtype=torch.float64))
    assert out.item() == pytest.approx(3.5, rel=1e-14) and lse.item() == pytest.approx(math.log(8.0), rel=1e-14)
    # ALiBi of slope ln 3: the one query stands at key 1, so key 0 loses ln 3 and key 1 nothing: exponentials 1/3 and 3.
    out, _ = reference_attention(q, k, v, scale=1.0, alibi_slopes=torch.tensor([LN3], dtype=torch.float64))
    assert out.item() == pytest.approx((4 / 3 + 24) / (10 / 3), rel=1e-14)
    # A bias of ln 6 on key 0: exponentials 6 and 3. A padding mask on key 1: only key 0 is left.
    bias = torch.tensor([math.log(6.0), 0.0], dtype=torch.float64)
    assert reference_attention(q, k, v, scale=1.0, attn_bias=bias)[0].item() == pytest.approx(48 / 9, rel=1e-14)
    padding = torch.tensor([[True, False]])
    assert reference_attention(q, k, v, scale=1.0, key_padding_mask=padding)[0].item() == 4.0
    # A cap of 1 makes ln 3 tanh(ln 3) = (9 - 1)/(9 + 1) = 0.8, before the bias is added.
    _, lse = reference_attention(q, k, v, scale=1.0, softcap=1.0, attn_bias=bias)
    assert lse.item() == pytest.approx(math.log(6.0 + math.exp(0.8)), rel=1e-14)


def test_query_heads_share_key_heads_in_contiguous_groups():
    q = torch.zeros(1, 6, 1, 1, dtype=torch.float64)
    k = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    v = torch.tensor([10.0, 20.0], dtype=torch.float64).view(1, 2, 1, 1)
    assert reference_attention(q, k, v)[0].flatten().tolist() == [10, 10, 10, 20, 20, 20]


def test_chosen_rows_and_chunks_are_the_same_rows(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 8, generator=generator) for n in (23, 31, 31))
    out, lse = reference_attention(q, k, v, causal=True)
    rows = torch.tensor([22, 0, 7])
    monkeypatch.setattr(reference, "CHUNK_BYTES", 8 * 31 * 2)  # two rows a chunk
    some, some_lse = reference_attention(q, k, v, causal=True, rows=rows)
    torch.testing.assert_close(some, out[:, :, rows], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(some_lse, lse[:, :, rows], rtol=1e-13, atol=1e-13)


def test_no_keys_at_all():
    out, lse = reference_attention(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 0, 3), torch.ones(1, 1, 0, 3))
    assert out.tolist() == [[[[0, 0, 0]] * 2]] and lse.tolist() == [[[-math.inf] * 2]]


@pytest.mark.parametrize("window", [(1,), (-2, 0), (True, 0), (0.5, 0), 3])
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(UnsupportedCall, match="window"):
        reference_attention(column(1.0), column(1.0), column(1.0), window=window)


@pytest.mark.parametrize("rows", [torch.tensor([4]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor([[0]])])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(UnsupportedCall, match="rows"):
        reference_attention(column(*[0.0] * 4), column(0.0), column(1.0), rows=rows)
