"""Where an online softmax first goes wrong: a kernel's own step, block by block, beside float64.

The step that `flash1` or `flash2` compiles in its loop is run here on one block of keys at a time, and what it makes of
its state is written down. S and alpha never leave such a step, so two more runs of it read them off: with the rows of a
unit matrix for values, and no state, the product P·V is P, and S = ln P + m; with l = 1 before instead of 0, the sum
grows by alpha. For each block the five are compared in the order in which they arise: S, m, alpha, l, accumulator. The
state goes on from the kernel's own values, so that the first difference is where the fault is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernels import registry
from kernels.api import capability
from kernels.checks import check_inputs, resolve_scale
from kernels.errors import UnsupportedCall
from kernels.flash1 import _visit
from kernels.flash2 import _load, _walk
from kernels.launch import no_gradient
from kernels.plan import padded

TRACED = ("flash1", "flash2")  # the implementations whose step can be run alone
BLOCK_M = 32
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of S, m, alpha, l / l, acc / its largest
DEEP = 9.0  # how far below m a score is still read off P: float16 holds e^-9 in full precision
QUANTITIES = ("S", "m", "alpha", "l", "accumulator")


@dataclass(frozen=True)
class Difference:
    """The first quantity that differs from float64. quantity: of QUANTITIES, or "out" where every step is right.

    queries, keys: first and last of the block; where: the place inside it, in words; error: got - expected."""

    quantity: str
    batch: int
    head: int
    queries: tuple[int, int]
    keys: tuple[int, int]
    where: str
    got: float
    expected: float

    def __str__(self) -> str:
        place = f"batch {self.batch}, head {self.head}, queries {self.queries[0]} to {self.queries[1]}"
        if self.quantity == "out":
            return (f"every step is right, yet out is {self.got:.6g} and not {self.expected:.6g} at {place}, "
                    f"{self.where}: look at which blocks are visited, and at what follows the loop")
        return (f"{self.quantity} first differs at {place}, keys {self.keys[0]} to {self.keys[1]}: {self.got:.6g} and "
                f"not {self.expected:.6g} at {self.where}")


@triton.jit
def _step(acc, l, m, q, k, v, batch, head, kv_head, start_n, start_m, stride_kn, stride_vn, nq, nk, scale,  # noqa: E741
          FIRST: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
          BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """The step of flash1 (FIRST) or flash2 on one block of keys. scale: in base 2 for flash2."""
    rows = start_m + tl.arange(0, BLOCK_M)
    if FIRST:
        k_tile = _load(k, batch, kv_head, start_n, stride_kn, nk, HEAD_DIM, BLOCK_N, BLOCK_D, "pointer", True)
        v_tile = _load(v, batch, kv_head, start_n, stride_vn, nk, HEAD_DIM, BLOCK_N, BLOCK_D, "pointer", True)
        columns = start_n + tl.arange(0, BLOCK_N)
        acc, m, l = _visit(acc, m, l, q, k_tile, v_tile, rows, columns, nk, nk - nq, scale, CAUSAL)  # noqa: E741
    else:
        acc, l, m = _walk(acc, l, m, q, k, v, batch, head, kv_head, start_n, start_n + BLOCK_N, start_m,  # noqa: E741
                          rows, stride_kn, stride_vn, nq, nk, nk - nq, nk - nq, scale, None, False, HEAD_DIM, BLOCK_M,
                          BLOCK_N, BLOCK_D, "pointer", False, CAUSAL, MASKED)
    return acc, l, m


@triton.jit
def _record(q, k, v, unit, states, sums, matrices, weights, scale, stride_qb, stride_qh, stride_qn, stride_kb,
            stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, heads, nq, nk, FIRST: tl.constexpr,
            GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, SIGN: tl.constexpr):
    """One block of queries, all blocks of keys. Per program and key block: states m, l (2, BLOCK_M), sums of the two
    probes (2, BLOCK_M), matrices (BLOCK_M, BLOCK_D) the accumulator, weights (BLOCK_M, BLOCK_D) P."""
    blocks = tl.cdiv(nq, BLOCK_M)
    program = tl.program_id(0)
    start_m = program % blocks * BLOCK_M
    batch, head = program // blocks // heads, program // blocks % heads
    kv_head = head // GROUP
    q += batch.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh
    k += batch.to(tl.int64) * stride_kb + kv_head.to(tl.int64) * stride_kh
    v += batch.to(tl.int64) * stride_vb + kv_head.to(tl.int64) * stride_vh
    q_tile = _load(q, batch, head, start_m, stride_qn, nq, HEAD_DIM, BLOCK_M, BLOCK_D, "pointer", True)
    if SIGN != 1:
        q_tile = (q_tile * SIGN).to(q_tile.dtype)
    zeros = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    acc, l, m = zeros, tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)  # noqa: E741
    rows, places = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_M)[:, None] * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    full_end = nk // BLOCK_N * BLOCK_N
    if CAUSAL:
        full_end = tl.maximum(tl.minimum(start_m + nk - nq + 1, nk), 0) // BLOCK_N * BLOCK_N
    for block in range(0, tl.cdiv(nk, BLOCK_N)):
        n = block * BLOCK_N
        if n < full_end:
            p, l_0, _ = _step(zeros, l * 0, m, q_tile, k, unit, batch, head, kv_head, n, start_m, stride_kn, HEAD_DIM,
                              nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, False)
            _, l_1, _ = _step(zeros, l * 0 + 1, m, q_tile, k, unit, batch, head, kv_head, n, start_m, stride_kn,
                              HEAD_DIM, nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, False)
            acc, l, m = _step(acc, l, m, q_tile, k, v, batch, head, kv_head, n, start_m, stride_kn,  # noqa: E741
                              stride_vn, nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, False)
        else:
            p, l_0, _ = _step(zeros, l * 0, m, q_tile, k, unit, batch, head, kv_head, n, start_m, stride_kn, HEAD_DIM,
                              nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, True)
            _, l_1, _ = _step(zeros, l * 0 + 1, m, q_tile, k, unit, batch, head, kv_head, n, start_m, stride_kn,
                              HEAD_DIM, nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, True)
            acc, l, m = _step(acc, l, m, q_tile, k, v, batch, head, kv_head, n, start_m, stride_kn,  # noqa: E741
                              stride_vn, nq, nk, scale, FIRST, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, CAUSAL, True)
        at = program.to(tl.int64) * tl.cdiv(nk, BLOCK_N) + block
        tl.store(states + at * 2 * BLOCK_M + rows, m)
        tl.store(states + at * 2 * BLOCK_M + BLOCK_M + rows, l)
        tl.store(sums + at * 2 * BLOCK_M + rows, l_0)
        tl.store(sums + at * 2 * BLOCK_M + BLOCK_M + rows, l_1)
        tl.store(matrices + at * BLOCK_M * BLOCK_D + places, acc)
        tl.store(weights + at * BLOCK_M * BLOCK_D + places, p)


def record(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
           ) -> dict[str, np.ndarray]:
    """What the step of ``name`` makes of every block, float64, by quantity: S (B, H, query blocks, key blocks, BM, BN),
    accumulator (…, BM, D), not normalised, and m, alpha and l (…, BM); m and S are natural, not in base 2."""
    (batch, heads, nq, head_dim), (kv_heads, nk) = q.shape, k.shape[1:3]
    first, block_n, block_d = name == "flash1", 32 if head_dim >= 32 else 16, padded(head_dim)
    unit = torch.eye(block_n, head_dim, dtype=k.dtype, device=k.device).repeat(triton.cdiv(nk, block_n), 1)[:nk]
    blocks = (batch, heads, triton.cdiv(nq, BLOCK_M), triton.cdiv(nk, block_n))
    states, sums = (q.new_empty((*blocks, 2, BLOCK_M), dtype=torch.float32) for _ in range(2))
    matrices, weights = (q.new_empty((*blocks, BLOCK_M, block_d), dtype=torch.float32) for _ in range(2))
    sign = 1 if first or scale == 0 else int(math.copysign(1, scale))
    _record[(math.prod(blocks[:3]),)](
        q, k, v, unit.contiguous(), states, sums, matrices, weights,
        scale if first else abs(scale) * math.log2(math.e) or 1.0, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        heads, nq, nk, FIRST=first, GROUP=heads // kv_heads, HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=block_n,
        BLOCK_D=block_d, CAUSAL=causal, SIGN=sign if scale else 0, num_warps=4, num_stages=1)
    found = [x.cpu().double().numpy() for x in (states, sums, matrices, weights)]
    m, l = np.moveaxis(found[0], -2, 0)  # noqa: E741
    l_0, l_1 = np.moveaxis(found[1], -2, 0)
    acc, p = found[2][..., :head_dim], found[3][..., :block_n]
    if first:  # it keeps O = acc / l
        acc, p = acc * l[..., None], p * l_0[..., None]
    else:
        m = m * math.log(2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"S": np.log(p) + m[..., None], "m": m, "alpha": l_1 - l_0, "l": l, "accumulator": acc}


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, rows: slice, starts: range, block_n: int, *, causal: bool,
             scale: float) -> list[dict[str, np.ndarray]]:
    """The online softmax of one head in float64 (Milakov and Gimelshein 2018, arXiv 1805.02867): q (Nq, D), k and v
    (Nk, D); for each block of keys the five quantities of `record` for the queries ``rows``."""
    (nq, _), nk = q.shape, len(k)
    places = np.arange(nq)[rows]
    m, l, acc = np.full(len(places), -np.inf), np.zeros(len(places)), np.zeros((len(places), v.shape[1]))  # noqa: E741
    found = []
    for start in starts:
        s = q[rows] @ k[start:start + block_n].T * scale
        if causal:
            s[np.arange(start, start + s.shape[1]) > (places + nk - nq)[:, None]] = -np.inf
        m_new = np.maximum(m, s.max(1))
        subtract = np.where(np.isinf(m_new), 0.0, m_new)
        alpha, p = np.exp(m - subtract), np.exp(s - subtract[:, None])
        l, acc, m = alpha * l + p.sum(1), alpha[:, None] * acc + p @ v[start:start + block_n], m_new  # noqa: E741
        found.append({"S": s, "m": m, "alpha": alpha, "l": l, "accumulator": acc})
    return found


def trace(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
          scale: float | None = None) -> Difference | None:
    """The first difference of flash1 or flash2 from float64, or None. q (B, H, Nq, D), k and v (B, Hk, Nk, D).

    Meant for small shapes: what is written down grows with Nq · Nk · D / 32. D is at least 16.
    """
    if name not in TRACED:
        raise UnsupportedCall("implementation", f"one of {', '.join(TRACED)} for a trace", repr(name))
    check_inputs(q, k, v, head_dims=range(16, 257), unit_stride=True)
    no_gradient("a trace", q=q, k=k, v=v)
    capability(q)
    scale, group = resolve_scale(scale, q.shape[3]), q.shape[1] // k.shape[1]
    if 0 in (q.numel(), k.numel()):
        return None
    got = record(name, q, k, v, causal=causal, scale=scale)
    exact = [x.detach().double().cpu().numpy() for x in (q, k, v)]
    out = registry.call(name, q, k, v, causal=causal, scale=scale).double().cpu().numpy()
    (batch, heads, nq, _), nk, block_n = q.shape, k.shape[2], got["S"].shape[-1]
    for b in range(batch):
        for h in range(heads):
            head = (exact[0][b, h], exact[1][b, h // group], exact[2][b, h // group])
            for i, first in enumerate(range(0, nq, BLOCK_M)):
                rows, starts = slice(first, min(first + BLOCK_M, nq)), range(0, nk, block_n)
                walked = expected(*head, rows, starts, block_n, causal=causal, scale=scale)
                queries = (rows.start, rows.stop - 1)
                for j, (start, right) in enumerate(zip(starts, walked)):
                    mine = {name: x[b, h, i, j, :rows.stop - rows.start] for name, x in got.items()}
                    before = walked[j - 1]["m"] if j else np.full(len(right["m"]), -np.inf)
                    if (found := _first(mine, right, before, TOLERANCE[q.dtype])) is not None:
                        quantity, at, *values = found
                        where = ", ".join(f"{axis} {low + int(n)}" for axis, low, n in zip(
                            ("query", "column" if quantity == "accumulator" else "key"),
                            (first, 0 if quantity == "accumulator" else start), at))
                        keys = (start, min(start + block_n, nk) - 1)
                        return Difference(quantity, b, h, queries, keys, where, *values)
                last = walked[-1]
                o = last["accumulator"] / np.where(last["l"] == 0, 1.0, last["l"])[:, None]
                if (at := _worst(out[b, h, rows], o, TOLERANCE[q.dtype] * max(1.0, np.abs(o).max()))) is not None:
                    return Difference("out", b, h, queries, (0, nk - 1), f"query {first + at[0]}, column {at[1]}",
                                      float(out[b, h, rows][at]), float(o[at]))
    return None


def _first(got: dict[str, np.ndarray], right: dict[str, np.ndarray], m_before: np.ndarray, tolerance: float) -> Any:
    """(quantity, place, got, expected) of the first of QUANTITIES that is off in one block, or None."""
    deepest = np.where(np.isinf(right["m"]), -np.inf, right["m"])[:, None] - DEEP  # below it P says nothing of S
    for quantity in QUANTITIES:
        mine, exact = got[quantity], right[quantity]
        if quantity == "S":
            mine = mine[:, :exact.shape[1]]
            a, b = np.maximum(mine, deepest), np.maximum(exact, deepest)
        elif quantity == "alpha":
            a, b = (np.where(np.isinf(m_before), 0.0, x) for x in (mine, exact))  # it multiplies nothing there
        else:
            a, b = mine, exact
        size = 1.0 if quantity == "alpha" else max(1.0, np.abs(b[np.isfinite(b)]).max(initial=0.0))
        if (at := _worst(a, b, tolerance * size)) is not None:
            return quantity, at, float(mine[at]), float(exact[at])
    return None


def _worst(a: np.ndarray, b: np.ndarray, allowed: float) -> tuple[int, ...] | None:
    """Where a and b differ most, if by more than ``allowed``; equal infinities do not differ, NaN does."""
    with np.errstate(invalid="ignore"):
        gap = np.where(a == b, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    return tuple(map(int, np.unravel_index(gap.argmax(), gap.shape))) if gap.size and gap.max() > allowed else None
