"""Float8 (e4m3) attention on Hopper: what is supported, how it is set up, and the launch of kernels.hopper_fp8.

A float8 tensor x stands for x · x_scale. A scale is a float32 tensor, positive, on the tensor's device: of one element
(per tensor), (B, heads) (per head) or (B, heads, ⌈N / 128⌉) (per head and block of 128 rows); none is 1.
The output is bfloat16.
"""

from __future__ import annotations

import functools
import heapq
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

SCALE_ROWS = 128
L2_BYTES = 16e6  # of keys and values of the heads that are worked on at a time
KEYS = 128  # keys a program of the transposition, and what Nk is padded to there


@dataclass(frozen=True)
class Tuning:
    """consumers: warpgroups of 64 query rows. block_n: keys a block. stages: of the rings of K and V. linear: powers of
    two by their bits, see kernels.hopper_fp8. order: where the wait for P·V is, 0 after
    the softmax, 1 before the exponentials, 2 before the next scores (fewer registers live). turns: whether consumers issue products in
    turns. q_registers: Q as a register operand."""

    consumers: int
    block_n: int
    stages: int
    linear: bool = False
    order: int = 0
    turns: bool = True
    q_registers: bool = False


TABLE = {64: Tuning(3, 128, 4), 128: Tuning(2, 128, 4, q_registers=True), 256: Tuning(2, 64, 2)}


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None,
             **options: Any) -> str | None:
    """None where `forward` takes the call, else why not, as a sentence. options: of flash_attention, where given.

    The tensors have passed kernels.checks; whether the GPU is a Hopper is the caller's to ask."""
    if q.dtype != torch.float8_e4m3fn:
        return f"it takes float8_e4m3fn, and q is {q.dtype}."
    if q.shape[3] not in TABLE:
        return f"it takes head sizes {', '.join(map(str, TABLE))}, and D is {q.shape[3]}."
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.numel() and (x.stride(3) != 1 or x.data_ptr() % 16 or any(s % 16 for s in x.stride()[:3])):
            return f"TMA reads rows at multiples of 16 bytes, and the strides of {name} are {tuple(x.stride())}."
    if scale is not None and not scale > 0:
        return f"its softmax scale is positive, and {scale} is not."
    for name, value in options.items():
        if name.endswith("_scale") and value is not None:
            x = {"q_scale": q, "k_scale": k, "v_scale": v}[name]
            shapes = (tuple(x.shape[:2]), (*x.shape[:2], math.ceil(x.shape[2] / SCALE_ROWS)))
            if value.dtype != torch.float32 or value.device != x.device:
                return f"{name} is a float32 tensor on {x.device}, not {value.dtype} on {value.device}."
            if value.numel() != 1 and (tuple(value.shape) not in shapes or not value.is_contiguous()):
                return (f"{name} is contiguous, of one element or of shape {shapes[0]} or {shapes[1]},"
                        f" not {tuple(value.shape)}.")
    return None


def tile_lists(nq: int, nk: int, heads: int, programs: int, *, block_m: int, block_n: int, causal: bool,
               group: int) -> list[list[int]]:
    """A list of tiles a program: the longest first inside a group of heads, each to the program that is free first.

    heads: query heads over the batch. A tile costs its blocks of keys and one more; tile h·⌈Nq / block_m⌉ + i is block
    i from the end of head h's rows."""
    blocks = -(-nq // block_m)
    free = [(0.0, program) for program in range(programs)]
    lists: list[list[int]] = [[] for _ in range(programs)]
    for first in range(0, heads, group):
        for block in range(blocks):
            end = nq - max(0, nq - (blocks - block) * block_m)
            idle = 1 - -(-(end - (blocks - block - 1) * block_m) // 64) * 64 / block_m  # consumers without rows
            seen = max(0, min(nk, end + nk - nq)) if causal else nk
            cost = -(-seen // block_n) * max(0.5, 1 - idle) + 1
            for head in range(first, min(first + group, heads)):
                time, program = heapq.heappop(free)
                lists[program].append(head * blocks + block)
                heapq.heappush(free, (time + cost, program))
    return lists


def head_group(heads: int, kv_bytes: float) -> int:
    """Heads worked on at a time: the largest divisor of `heads` whose keys and values fit L2_BYTES, at least 4."""
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    return max([d for d in divisors if d * kv_bytes <= L2_BYTES] + [next((d for d in divisors if d >= 4), heads)])


@functools.lru_cache(maxsize=64)
def _tiles(nq: int, nk: int, heads: int, programs: int, block_m: int, block_n: int, causal: bool, group: int,
           device: torch.device) -> torch.Tensor:
    lists = tile_lists(nq, nk, heads, programs, block_m=block_m, block_n=block_n, causal=causal, group=group)
    width, end = max(map(len, lists)) + 1, heads * -(-nq // block_m)
    return torch.tensor([one + [end] * (width - len(one)) for one in lists], dtype=torch.int32).to(device)


@functools.lru_cache(maxsize=8)
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones(1, device=device)


def _scale(given: torch.Tensor | None, x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A scale, and the elements from a head to the next and from a block of 128 rows to the next."""
    given = _one(x.device) if given is None else given
    if given.numel() == 1:
        return given, 0, 0
    return (given, 1, 0) if given.ndim == 2 else (given, given.shape[2], 1)


def launches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, *,
             q_scale: torch.Tensor | None, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, causal: bool,
             scale: float, tuning: Tuning, multiprocessors: int) -> list[tuple[Any, tuple, tuple, dict]]:
    """The two launches of a call, each (kernel, grid, arguments, options); out and lse are written."""
    from kernels import hopper_fp8
    from kernels.gluon_names import TensorDescriptor, gl

    (batch, heads, nq, d), (kv_heads, nk) = q.shape, k.shape[1:3]
    padded = -(-nk // KEYS) * KEYS
    turned = torch.empty(batch * kv_heads, d, padded, dtype=v.dtype, device=v.device)

    def source(x: torch.Tensor, block: list[int]) -> Any:
        kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float8e4nv
        layout = gl.NVMMASharedLayout.get_default_for(block, kind)
        return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)

    sources = (source(q, [1, 1, 64, d]), source(k, [1, 1, tuning.block_n, d]), source(turned, [1, d, tuning.block_n]),
               source(out.view(batch * heads, nq, d), [1, 64, d]))
    block_m = 64 * tuning.consumers
    count = batch * heads * -(-nq // block_m)
    programs = min(multiprocessors, count)
    group = head_group(batch * heads, 2 * nk * d * kv_heads / heads)
    tiles = _tiles(nq, nk, batch * heads, programs, block_m, tuning.block_n, causal, group, q.device)
    scales = tuple(_scale(*pair) for pair in ((q_scale, q), (k_scale, k), (v_scale, v)))
    constants = {
        "CONSUMERS": tuning.consumers, "GROUP": heads // kv_heads, "BLOCK_N": tuning.block_n, "STAGES": tuning.stages,
        "CAUSAL": 0 if not causal else 1 if (nk - nq) % 64 == 0 else 2,
        "BLOCK_SCALES": any(block for _, _, block in scales[1:]), "LINEAR": tuning.linear, "ORDER": tuning.order, "TURNS": tuning.turns,
        "Q_REGISTERS": tuning.q_registers, "num_warps": 4, "maxnreg": 168 if tuning.consumers == 2 else 128}
    return [
        (hopper_fp8.transpose, (padded // KEYS, batch * kv_heads),
         (v.view(torch.uint8), turned.view(torch.uint8), *v.stride()[:3], kv_heads, nk, padded),
         {"HEAD_DIM": d, "KEYS": KEYS, "num_warps": max(1, KEYS * d // 8192)}),
        (hopper_fp8.forward, (programs,),
         (*sources, sum(scales, ()), lse, tiles, tiles.shape[1], scale, heads, nq, nk, count), constants)]


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, q_scale: torch.Tensor | None = None,
            k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None, causal: bool = False,
            scale: float | None = None, return_lse: bool = True, tuning: dict[str, Any] | None = None,
            out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), float8 e4m3, as `supports` says -> out (B, H, Nq, D) in bfloat16, and
    the natural-log LSE, float32 (B, H, Nq), or None. The scales: see above. tuning: fields of Tuning."""
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if k.shape[2] == 0 or out.numel() == 0:
        return out.zero_(), lse.fill_(float("-inf")) if return_lse else None
    with torch.cuda.device(q.device):
        for kernel, grid, arguments, options in launches(
                q, k, v, out, lse, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, causal=causal,
                scale=q.shape[3] ** -0.5 if scale is None else scale,
                tuning=replace(TABLE[q.shape[3]], **(tuning or {})),
                multiprocessors=torch.cuda.get_device_properties(q.device).multi_processor_count):
            kernel[grid](*arguments, **options)
    return out, lse if return_lse else None
