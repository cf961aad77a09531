"""Naive attention in both forms: the result against float64, and the operators it runs, one by one."""

from contextlib import contextmanager

import pytest
import torch

from kernels import UnsupportedCall, masked_softmax, naive_attention, reference_attention
from tests.kernels.oracle import Operators, assert_close, eager, tensors

SHAPES = {"square": (2, 4, 4, 33, 33, 16), "5x2": (2, 2, 2, 5, 2, 64), "2x5": (1, 2, 2, 2, 5, 64),
          "one": (1, 1, 1, 1, 1, 16), "113x203 grouped": (1, 6, 2, 113, 203, 40)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("fold", [False, True], ids=["as written", "folded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_matches_float64(shape, causal, fold, dtype, device):
    q, k, v = tensors(*shape, dtype, device)
    out = naive_attention(q, k, v, causal=causal, fold_scale=fold)
    assert out.shape == q.shape and out.dtype == dtype and out.is_contiguous()
    assert_close(out, reference_attention(q, k, v, causal=causal)[0], eager(q, k, v, causal))


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("scale", [0.3, -1.0, 0.0])
def test_scale(fold, scale, device):
    q, k, v = tensors(1, 2, 2, 9, 12, 16, torch.float32, device)
    out = naive_attention(q, k, v, scale=scale, fold_scale=fold, causal=True)
    assert_close(out, reference_attention(q, k, v, scale=scale, causal=True)[0], eager(q, k, v, True, scale))


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)], ids=["equal heads", "grouped heads"])
def test_as_written_runs_five_operators_and_no_copy(heads, device):
    q, k, v = tensors(2, *heads, 24, 32, 16, torch.float32, device)
    naive_attention(q, k, v, causal=True)  # makes the causal mask, which is kept
    n = 2 * heads[0] * 24 * 32
    with Operators() as operators:
        naive_attention(q, k, v, causal=True)
    assert operators.seen == [("bmm", n), ("mul", n), ("masked_fill_", n), ("_softmax", n), ("bmm", q.numel())]
    with Operators() as operators:
        naive_attention(q, k, v)
    assert operators.seen == [("bmm", n), ("mul", n), ("_softmax", n), ("bmm", q.numel())]


def test_folded_runs_three_steps(device, monkeypatch):
    q, k, v = tensors(2, 4, 4, 24, 32, 16, torch.float32, device)
    n = 2 * 4 * 24 * 32
    with Operators() as operators:
        naive_attention(q, k, v, fold_scale=True)
    assert operators.seen == [("baddbmm", n), ("_softmax", n), ("bmm", q.numel())]
    launches = []
    softmax = masked_softmax.causal_softmax
    monkeypatch.setattr(masked_softmax, "causal_softmax", lambda s, nq: launches.append(s.numel()) or softmax(s, nq))
    with Operators() as operators:
        naive_attention(q, k, v, causal=True, fold_scale=True)
    assert launches == [n]
    assert [seen for seen in operators.seen if seen[0] in ("baddbmm", "bmm")] == [("baddbmm", n), ("bmm", q.numel())]
    assert not {name for name, _ in operators.seen} & {"mul", "masked_fill_", "masked_fill", "_softmax"}


@pytest.mark.parametrize("causal, fold, expected", [
    (False, False, ["scores", "scale", "softmax", "values"]),
    (True, False, ["scores", "scale", "mask", "softmax", "values"]),
    (False, True, ["scores", "softmax", "values"]),
    (True, True, ["scores", "softmax", "values"])])
def test_stages_open_and_close_in_order(causal, fold, expected, device):
    events = []

    @contextmanager
    def stage(name):
        events.append(name)
        yield
        events.append("end " + name)

    q, k, v = tensors(1, 1, 1, 7, 7, 16, torch.float32, device)
    naive_attention(q, k, v, causal=causal, fold_scale=fold, stage=stage)
    assert events == [event for name in expected for event in (name, "end " + name)]


def test_gradients_stay_finite_where_rows_see_nothing(device):
    q, k, v = (t.double().requires_grad_() for t in tensors(1, 2, 1, 5, 2, 4, torch.float32, device))
    out = naive_attention(q, k, v, causal=True)
    out.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
    assert q.grad[:, :, :3].abs().max() == 0  # the first three rows see no key


def test_strides_other_than_contiguous(device):
    q, k, v = tensors(2, 12, 12, 4, 12, 16, torch.float32, device)
    q, k, v = (t.transpose(1, 2) for t in (q, k[:, :, :4], v[:, :, :4]))  # (B, 4 heads, 12 tokens, D) views
    assert_close(naive_attention(q, k, v), reference_attention(q, k, v)[0], eager(q, k, v))


def test_the_causal_softmax_refuses_what_it_cannot_do(device):
    q, k, v = tensors(1, 1, 1, 2, 2, 16, torch.float64, device)
    with pytest.raises(UnsupportedCall, match=r"float64.*fold_scale=False"):
        naive_attention(q, k, v, causal=True, fold_scale=True)
    q, k, v = tensors(1, 1, 1, 1, 65_537, 1, torch.float32, device)
    with pytest.raises(UnsupportedCall, match=r"65536.*65537"):
        naive_attention(q, k, v, causal=True, fold_scale=True)


@pytest.mark.parametrize("fold", [False, True], ids=["as written", "folded"])
def test_gradients_against_float64(fold, device):
    leaves = [x.requires_grad_() for x in tensors(2, 4, 2, 9, 12, 16, torch.float32, device)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    got = torch.autograd.grad(naive_attention(*leaves, causal=True, fold_scale=fold).square().sum(), leaves)
    expected = torch.autograd.grad(reference_attention(*exact, causal=True)[0].square().sum(), exact)
    for mine, theirs in zip(got, expected):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
