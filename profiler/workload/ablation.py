"""What each decision of the FlashAttention-2 forward is worth: the kernel of kernels.flash2 with switches for them.

All on, it is that kernel's algorithm on full and causal squares; a configuration's parameters turn switches off, one
at a time in the suite "ablation". It stands apart so that the kernel itself carries no switch.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import api, plan
from kernels.flash2 import INTERPRETED
from kernels.flash2 import _load as load
from kernels.scores import LOG2_E
from profiler.spec import RunConfig
from profiler.workload.implementations import Bound, Refused, Stage

# folded: scores go to base 2 in the exponent's own multiply-add; off: scaled before, natural exponentials.
# edge_only: only blocks that cross the diagonal or the end are masked; off: every block is.
# staged: a loop over whole blocks, then one over the edge; off: one loop, which asks at every block if edge_only is on.
# ordered: the longest rows first, few heads at a time; off: rows and heads as they come.
SWITCHES = ("folded", "edge_only", "staged", "ordered")


@triton.jit
def _hide(s, start, offsets_m, n, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr):
    columns = start + tl.arange(0, BLOCK_N)
    visible = (columns < n)[None, :]
    if CAUSAL:
        visible = visible & (columns[None, :] <= offsets_m[:, None])
    return tl.where(visible, s, float("-inf"))


@triton.jit
def _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, low, high, whole, offsets_m, stride_n, n, unit,
          CAUSAL: tl.constexpr, FOLDED: tl.constexpr, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr,
          BLOCK_N: tl.constexpr, PATH: tl.constexpr):
    """The online softmax over key blocks [low, high). MASKED: "never", "always", or "asked": from key `whole` on."""
    for start in tl.range(low, high, BLOCK_N):
        k = load(k_source, batch, head, start, stride_n, n, HEAD_DIM, BLOCK_N, HEAD_DIM, PATH, MASKED != "never")
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED == "always":
            s = _hide(s, start, offsets_m, n, CAUSAL, BLOCK_N)
        if MASKED == "asked":  # noqa: SIM102  the first is known when compiled, the second is not
            if start >= whole:
                s = _hide(s, start, offsets_m, n, CAUSAL, BLOCK_N)
        if FOLDED:
            m_new = tl.maximum(m_i, tl.max(s, 1) * unit)
        else:
            s = s * unit
            m_new = tl.maximum(m_i, tl.max(s, 1))
        subtract = m_new
        if MASKED != "never":
            subtract = tl.where(m_new == float("-inf"), 0.0, m_new)
        if FOLDED:
            p = tl.exp2(s * unit - subtract[:, None])
            alpha = tl.exp2(m_i - subtract)
        else:
            p = tl.exp(s - subtract[:, None])
            alpha = tl.exp(m_i - subtract)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = load(v_source, batch, head, start, stride_n, n, HEAD_DIM, BLOCK_N, HEAD_DIM, PATH, MASKED != "never")
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "all_heads", "head_group", "n"])
def forward(q_source, k_source, v_source, o_source, unit, stride_b, stride_h, stride_n, heads, all_heads, head_group, n,
            CAUSAL: tl.constexpr, FOLDED: tl.constexpr, EDGE_ONLY: tl.constexpr, STAGED: tl.constexpr,
            ORDERED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            PATH: tl.constexpr, TAIL: tl.constexpr):
    """BLOCK_M query rows of one head; q, k, v, o of the same strides. unit: the scale, times log2(e) where FOLDED."""
    blocks = tl.cdiv(n, BLOCK_M)
    program = tl.program_id(0)
    if ORDERED:
        first_head = program // (head_group * blocks) * head_group
        heads_here = tl.minimum(head_group, all_heads - first_head)
        place = program % (head_group * blocks)
        batch_head = first_head + place % heads_here
        start_m = (blocks - 1 - place // heads_here) * BLOCK_M
    else:
        batch_head = program // blocks
        start_m = program % blocks * BLOCK_M
    batch = batch_head // heads
    head = batch_head % heads
    if PATH == "pointer":
        corner = batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
        q_source += corner
        k_source += corner
        v_source += corner
        o_source += corner
    q = load(q_source, batch, head, start_m, stride_n, n, HEAD_DIM, BLOCK_M, HEAD_DIM, PATH, True)
    offsets_m = start_m + tl.arange(0, BLOCK_M)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    whole = n // BLOCK_N * BLOCK_N  # the blocks before this key are seen as they are by every row
    end = n
    if CAUSAL:
        whole = tl.minimum(start_m + 1, n) // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, n)
    inner: tl.constexpr = "never" if EDGE_ONLY else "always"
    if STAGED:
        acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, 0, whole, whole, offsets_m, stride_n,
                              n, unit, CAUSAL, FOLDED, inner, HEAD_DIM, BLOCK_N, PATH)
        if CAUSAL or TAIL:
            acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, whole, end, whole, offsets_m,
                                  stride_n, n, unit, CAUSAL, FOLDED, "always", HEAD_DIM, BLOCK_N, PATH)
    else:
        acc, l_i, m_i = _walk(acc, l_i, m_i, q, k_source, v_source, batch, head, 0, end, whole, offsets_m, stride_n,
                              n, unit, CAUSAL, FOLDED, "asked" if EDGE_ONLY else "always", HEAD_DIM, BLOCK_N, PATH)
    o = acc * (1.0 / l_i)[:, None]
    if PATH == "tma":
        o_source.store([batch, head, start_m, 0], o.to(o_source.dtype).reshape(1, 1, BLOCK_M, HEAD_DIM))
    else:
        columns = tl.arange(0, HEAD_DIM)
        tl.store(o_source + offsets_m.to(tl.int64)[:, None] * stride_n + columns[None, :],
                 o.to(o_source.dtype.element_ty), mask=(offsets_m < n)[:, None])


def settings(config: RunConfig, q: torch.Tensor, causal: bool) -> dict[str, Any]:
    """Every parameter that ``config`` runs with: flash2's blocks for q (B, H, N, D) and all switches on, but for what
    it asks otherwise. Raises Refused, and what `kernels.plan` raises for blocks that cannot be."""
    s = config.shape
    if (s.nq, s.heads) != (s.nk, s.kv_heads) or s.head_dim != plan.padded(s.head_dim):
        raise Refused("the ablation takes Nq = Nk, a key head a query head, and head sizes 16, 32, 64, 128 and 256")
    asked = {name: value for name, value in config.parameters.items() if name not in SWITCHES}
    switches = {name: config.parameters.get(name, True) for name in SWITCHES}
    if any(not isinstance(value, bool) for value in switches.values()):
        raise Refused(f"the switches {', '.join(SWITCHES)} are true or false")
    chosen = plan.choose(q, q, q, causal=causal, cc=api.capability(q), tuning=asked)
    return {**vars(chosen.tuning), **switches}


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, found: dict[str, Any]) -> torch.Tensor:
    """O (B, H, N, D) of contiguous q, k, v of that shape. found: of `settings`."""
    batch, heads, n, d = q.shape
    out = torch.empty_like(q)
    block_m, block_n = found["block_m"], found["block_n"]
    sources: list[Any] = [q, k, v, out]
    if found["tma"]:
        sources = [TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, block, d])
                   for t, block in zip(sources, (block_m, block_n, block_n, block_m))]
    unit = d**-0.5 * (LOG2_E.value if found["folded"] else 1.0)
    build = {} if INTERPRETED else {"enable_fp_fusion": True}
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        forward[(math.ceil(n / block_m) * batch * heads,)](
            *sources, unit, *q.stride()[:3], heads, batch * heads, plan.head_group(k, heads), n, CAUSAL=causal,
            FOLDED=found["folded"], EDGE_ONLY=found["edge_only"], STAGED=found["staged"], ORDERED=found["ordered"],
            HEAD_DIM=d, BLOCK_M=block_m, BLOCK_N=block_n, PATH="tma" if found["tma"] else "pointer",
            TAIL=n % block_n != 0, num_warps=found["num_warps"], num_stages=found["num_stages"], **build)
    return out


def bind(config: RunConfig, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Bound:
    """``config`` on its tensors, as `profiler.workload.implementations.bind`."""
    if config.direction != "forward":
        raise Refused("the ablation is of the forward")
    found = settings(config, q, causal)

    def call(stage: Stage) -> torch.Tensor:
        with stage("attention"):
            return launch(q, k, v, causal=causal, found=found)

    return Bound(call, found)
