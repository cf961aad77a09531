"""flash1, packed sequences and block-sparse masks on a real GPU, by the rule of test_kernels_gpu.py; the trace there.

Allowed: twice the error of eager PyTorch in the same dtype (gradients three times), plus a floor a dtype times the
largest reference value.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from tests.kernels import option_cases  # noqa: E402  needs torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

FLOOR = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", FLOOR, ids=lambda dtype: str(dtype)[6:])


def tensors(*shapes, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_() for shape in shapes]


def right(got, exact, eager, times):
    assert torch.isfinite(got).all()
    floor = FLOOR[got.dtype] * (exact.abs().max().item() or 1.0)  # of one key the gradient of a score is exactly 0
    error = (got.double() - exact).abs().max().item()
    allowed = times * (eager.double() - exact).abs().max().item() + floor
    assert error <= allowed, f"error {error:.2e}, allowed {allowed:.2e}"


def compared(attention, leaves, dtype, **options):
    """attention(q, k, v) -> (out, lse) against float64, with gradients; options: of option_cases.formula."""
    out, lse = attention(*leaves)
    doubles, own = ([x.detach().to(kind).requires_grad_() for x in leaves] for kind in (torch.float64, dtype))
    (exact, exact_lse), (eager, _) = (option_cases.formula(*x, **options) for x in (doubles, own))
    right(out, exact, eager, 2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    if not out.requires_grad:
        return
    dout = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(9), device="cuda").to(dtype)
    found = (torch.autograd.grad(o, x, dout.to(o.dtype)) for o, x in ((out, leaves), (exact, doubles), (eager, own)))
    for got, want, plain in zip(*found):
        right(got, want, plain, 3)


@DTYPES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", [(2, 4, 2, 113, 203, 64), (1, 2, 1, 1023, 1024, 128), (1, 2, 2, 40, 20, 40),
                                   (1, 1, 1, 130, 300, 256), (1, 1, 1, 1, 1, 16), (1, 2, 1, 1500, 4096, 64)], ids=str)
def test_flash1(sizes, causal, dtype):
    from kernels.flash1 import flash1_attention

    b, h, hk, nq, nk, d = sizes
    q, k, v = (x.detach() for x in tensors((b, h, nq, d), (b, hk, nk, d), (b, hk, nk, d), dtype=dtype))
    compared(lambda *x: flash1_attention(*x, causal=causal, return_lse=True), [q, k, v], dtype, causal=causal)


def test_flash1_of_many_heads():
    """More programs than 65,535, and every one carries O through memory by itself."""
    from kernels import reference_attention
    from kernels.flash1 import flash1_attention

    q, k, v = (x.detach() for x in tensors(*[(70_000, 1, 96, 16)] * 3, dtype=torch.float16))
    out, some = flash1_attention(q, k, v, causal=True, tuning={"block_m": 16, "block_n": 16}), [0, 65_535, 69_999]
    exact, _ = reference_attention(q[some], k[some], v[some], causal=True)
    torch.testing.assert_close(out[some].double(), exact, rtol=2e-3, atol=2e-3)


LENGTHS = {"known failure": ([0, 1208, 840, 0],) * 2, "mixed": ([3, 0, 513, 64, 1], [700, 12, 129, 0, 1])}


@DTYPES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("head_dim", [64, 128, 40])
def test_packed_sequences(name, head_dim, causal, dtype):
    """Sequence by sequence against float64, all in one packed call."""
    from kernels import flash_attention_varlen

    q_lengths, k_lengths = LENGTHS[name]
    q, k, v = tensors((sum(q_lengths), 4, head_dim), *[(sum(k_lengths), 2, head_dim)] * 2, dtype=dtype)
    cu = [torch.tensor([0, *torch.tensor(x).cumsum(0)], dtype=torch.int32, device="cuda") for x in LENGTHS[name]]
    out, lse = flash_attention_varlen(q, k, v, *cu, max(q_lengths), max(k_lengths), causal=causal, return_lse=True)
    dout = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(9), device="cuda").to(dtype)
    grads = torch.autograd.grad(out, (q, k, v), dout)
    places = [(x.tolist(), y.tolist()) for x, y in zip((cu[0], cu[1]), (cu[0][1:], cu[1][1:]))]
    for s, (nq, nk) in enumerate(zip(q_lengths, k_lengths)):
        if not nq or not nk:
            assert not out[places[0][0][s]:places[0][1][s]].any()
            continue
        rows, keys = (slice(begin[s], end[s]) for begin, end in places)

        def one(x, where):
            return x[where].transpose(0, 1)[None]

        parts = [one(x.detach(), where) for x, where in ((q, rows), (k, keys), (v, keys))]
        found = {}
        for kind in (torch.float64, dtype):
            leaves = [x.to(kind).requires_grad_() for x in parts]
            o, logarithms = option_cases.formula(*leaves, causal=causal)
            found[kind] = (o, logarithms, *torch.autograd.grad(o, leaves, one(dout, rows).to(kind)))
        exact, eager = found[torch.float64], found[dtype]
        right(one(out, rows), exact[0], eager[0], 2)
        torch.testing.assert_close(lse[:, rows][None].double(), exact[1], rtol=1e-5, atol=1e-5)
        for grad, where, want, plain in zip(grads, (rows, keys, keys), exact[2:], eager[2:]):
            right(one(grad, where), want, plain, 3)


@DTYPES
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", [(2, 4, 2, 300, 500, 64, 64), (1, 4, 4, 1000, 1000, 128, 128),
                                   (1, 2, 1, 200, 170, 40, 48), (1, 2, 2, 256, 256, 256, 32)], ids=str)
def test_block_sparse(sizes, causal, dtype):
    from kernels import flash_attention

    b, h, hk, nq, nk, d, size = sizes
    leaves = tensors((b, h, nq, d), (b, hk, nk, d), (b, hk, nk, d), dtype=dtype)
    shape = (b, h, -(-nq // size), -(-nk // size))
    mask = torch.rand(shape, generator=torch.Generator("cuda").manual_seed(3), device="cuda") > 0.5
    mask[:, :, 1] = False
    seen = mask.repeat_interleave(size, 2).repeat_interleave(size, 3)[:, :, :nq, :nk]
    bias = torch.zeros(seen.shape, device="cuda").masked_fill(~seen, -torch.inf)
    compared(lambda *x: flash_attention(*x, block_mask=mask, block_size=size, causal=causal, return_lse=True), leaves,
             dtype, causal=causal, attn_bias=bias)


def test_thirty_runs_agree_bitwise():
    from kernels import flash_attention, flash_attention_varlen

    q, k, v = tensors((1, 4, 700, 64), (1, 2, 700, 64), (1, 2, 700, 64), dtype=torch.bfloat16)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool, device="cuda").tril()
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]
    cu = torch.tensor([0, 100, 700], dtype=torch.int32, device="cuda")

    def once():
        first = flash_attention(q, k, v, block_mask=mask, causal=True, deterministic=True)
        second = flash_attention_varlen(*packed, cu, cu, 600, 600, causal=True, deterministic=True)
        return [first, second, *torch.autograd.grad(first.sum() + second.float().square().sum(), (q, k, v))]

    runs = [once() for _ in range(30)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))


@pytest.mark.parametrize("name", ["flash1", "flash2"])
@DTYPES
def test_every_step_of_the_online_softmax(name, dtype):
    from kernels import check

    ok, said = check.trace(name, check.ladder((64, 65, 113)), dtype=dtype, device="cuda")
    assert ok, said


@pytest.mark.parametrize("attention", ["flash_sparse", "flash_varlen"])
def test_a_cuda_graph_replays_them(attention):
    from kernels import registry

    with torch.no_grad():
        q, k, v = (x.detach() for x in tensors((2, 4, 300, 64), (2, 2, 300, 64), (2, 2, 300, 64), dtype=torch.float16))
        ready = registry.prepare_forward(attention, q, k, v, causal=True)
        eager, graph = ready().clone(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = ready()
        graph.replay()
        assert torch.equal(out, eager)
