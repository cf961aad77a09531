"""Float8 (e4m3) attention on Hopper: what is supported, the configuration, and the launches of kernels.hopper_fp8.

A float8 tensor x stands for x · x_scale. A scale is a positive float32 tensor on the tensor's device: of one element
(per tensor), (B, heads) (per head) or (B, heads, ⌈N / 128⌉) (per head and block of 128 rows); None is 1.
The output is bfloat16. What was measured stands at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from kernels.hopper_plan import head_group, tile_lists

SCALE_ROWS = 128
KEYS = 128  # keys a program of the transposition turns, and what its rows are padded to


@dataclass(frozen=True)
class Config:
    """One compiled form of the kernel.

    consumers: warpgroups of 64 query rows. block_n: keys a step; stages: of the rings of K and of V. q_registers: Q as
    an operand in registers. values_first: P·V is over before the next scores begin, with the fewest registers live;
    else its wait stands after their softmax. turns: consumers issue products in turns. overlap: start under the end of
    the kernel that turns V (programmatic dependent launch). causal; edge: a consumer's diagonal may cross two blocks.
    block_scales: k or v has a scale a block.
    """

    head_dim: int
    consumers: int
    block_n: int
    stages: int
    q_registers: bool = False
    values_first: bool = False
    turns: bool = True
    overlap: bool = False
    causal: bool = False
    edge: bool = False
    block_scales: bool = False


# by head size: without and with a causal mask
TABLE = {
    64: (Config(64, consumers=3, block_n=128, stages=4), Config(64, consumers=3, block_n=128, stages=4, turns=False)),
    128: (Config(128, consumers=3, block_n=128, stages=4, values_first=True),) * 2,
    256: (Config(256, consumers=2, block_n=64, stages=2),) * 2,
}
# head size 128 under a causal mask with few keys: faster at 1,024, slower at 4,096 tokens; the limit between is assumed
FEW_KEYS = 2048
SHORT = Config(128, consumers=2, block_n=128, stages=4, q_registers=True, overlap=True)


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float,
             q_scale: torch.Tensor | None = None, k_scale: torch.Tensor | None = None,
             v_scale: torch.Tensor | None = None) -> str | None:
    """Why `forward` cannot take a checked call, as a clause, or None where it can.

    Whether the GPU is a Hopper, and options beside causal, are the caller's to ask."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != torch.float8_e4m3fn:
            return f"it takes float8_e4m3fn, and {name} is {x.dtype}"
        if x.numel() and (x.data_ptr() % 16 or any(step % 16 for step in x.stride()[:3])):
            return f"TMA reads rows at multiples of 16 bytes, and the strides of {name} are {tuple(x.stride())}"
    if q.shape[3] not in TABLE:
        return f"it takes head sizes {', '.join(map(str, TABLE))}, not {q.shape[3]}"
    if not 0 < scale < math.inf:
        return f"it takes a positive scale, not {scale}"
    for name, given, x in (("q_scale", q_scale, q), ("k_scale", k_scale, k), ("v_scale", v_scale, v)):
        if given is None:
            continue
        shapes = (tuple(x.shape[:2]), (*x.shape[:2], math.ceil(x.shape[2] / SCALE_ROWS)))
        if given.dtype != torch.float32 or given.device != x.device:
            return f"{name} is float32 on {x.device}, not {given.dtype} on {given.device}"
        if given.numel() != 1 and (tuple(given.shape) not in shapes or not given.is_contiguous()):
            return f"{name} is contiguous, of one element, {shapes[0]} or {shapes[1]}, not {tuple(given.shape)}"
    return None


def choose(q: torch.Tensor, k: torch.Tensor, *, causal: bool, block_scales: bool, tuning: dict[str, Any] | None = None
           ) -> Config:
    """The configuration of a call; tuning: fields of Config in place of the table's."""
    edge = causal and (k.shape[2] - q.shape[2]) % 64 != 0
    short = causal and q.shape[3] == 128 and k.shape[2] <= FEW_KEYS
    chosen = SHORT if short else TABLE[q.shape[3]][causal]
    config = replace(chosen, **(tuning or {}), causal=causal, edge=edge, block_scales=block_scales)
    return replace(config, block_n=min(config.block_n, SCALE_ROWS)) if block_scales else config  # one scale a step


@lru_cache(maxsize=64)
def _table(device: torch.device, *tiles: Any) -> torch.Tensor:
    """The words of each program's tiles, (programs, longest + 1) int64, each row ended by -1."""
    lists, _ = tile_lists(*tiles)
    width = max(map(len, lists)) + 1
    return torch.tensor([words + [-1] * (width - len(words)) for words in lists], dtype=torch.int64, device=device)


@lru_cache(maxsize=8)
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones(1, device=device)


def _steps(given: torch.Tensor | None, x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A scale, and the elements from one head and from one block of 128 rows to the next."""
    given = _one(x.device) if given is None else given
    if given.numel() == 1:
        return given, 0, 0
    return (given, 1, 0) if given.ndim == 2 else (given, given.shape[2], 1)


def launches(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, *,
             q_scale: torch.Tensor | None = None, k_scale: torch.Tensor | None = None,
             v_scale: torch.Tensor | None = None, causal: bool, scale: float, multiprocessors: int,
             tuning: dict[str, Any] | None = None) -> list[tuple[Any, tuple, tuple, dict]]:
    """The two launches of a call as (kernel, grid, arguments, options); they write out and lse."""
    from kernels import hopper_fp8
    from kernels.gluon_names import DTYPES, TensorDescriptor, gl

    (batch, heads, nq, d), (kv_heads, nk) = q.shape, k.shape[1:3]
    scales = [_steps(q_scale, q), _steps(k_scale, k), _steps(v_scale, v)]
    config = choose(q, k, causal=causal, block_scales=any(block for _, _, block in scales[1:]), tuning=tuning)
    padded = -(-nk // KEYS) * KEYS
    turned = torch.empty(batch * kv_heads, d, padded, dtype=v.dtype, device=v.device)

    def source(x: torch.Tensor, block: list[int]) -> Any:
        layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[x.dtype])
        return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)

    block_m = 64 * config.consumers
    programs = min(multiprocessors, batch * heads * -(-nq // block_m))
    group = head_group(batch * heads, 2 * nk * d * kv_heads // heads)
    tiles = _table(q.device, batch, heads, nq, nk, block_m, config.block_n, None, nk - nq if causal else None, group,
                   programs)
    return [
        (hopper_fp8.transpose, (padded // KEYS, batch * kv_heads),
         (v.view(torch.uint8), turned.view(torch.uint8), *v.stride()[:3], kv_heads, nk, padded),
         {"HEAD_DIM": d, "KEYS": KEYS, "num_warps": KEYS * d // 8192}),
        (hopper_fp8.forward, (programs,),
         (source(q, [1, 1, 64, d]), source(k, [1, 1, config.block_n, d]), source(turned, [1, d, config.block_n]),
          source(out, [1, 1, 64, d]), *(value for one in scales for value in one), lse, tiles, tiles.shape[1],
          heads, heads // kv_heads, nq, nk, scale, config),
         {"num_warps": 4, "maxnreg": 168 if config.consumers == 2 else 128, "enable_fp_fusion": True,
          "launch_pdl": config.overlap})]


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, q_scale: torch.Tensor | None = None,
            k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None, causal: bool = False,
            scale: float | None = None, return_lse: bool = True, tuning: dict[str, Any] | None = None,
            out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q (B, H, Nq, D), k and v (B, Hk, Nk, D), float8 e4m3, as `supports` says -> out (B, H, Nq, D) in bfloat16, and
    the natural-log LSE, float32 (B, H, Nq), or None. The scales: see above; scale: of the scores, 1/√D by default.
    causal: query i sees keys j <= i + Nk - Nq. A row that sees no key is 0, its LSE -inf. tuning: fields of Config.
    out: where to write, contiguous bfloat16."""
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if k.shape[2] == 0 or out.numel() == 0:
        return out.zero_(), lse.fill_(-math.inf) if return_lse else None
    with torch.cuda.device(q.device):
        for kernel, grid, arguments, options in launches(
                q, k, v, out, lse, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, causal=causal,
                scale=q.shape[3] ** -0.5 if scale is None else scale, tuning=tuning,
                multiprocessors=torch.cuda.get_device_properties(q.device).multi_processor_count):
            kernel[grid](*arguments, **options)
    return out, lse if return_lse else None


# Measured: one H200, Triton 3.6, torch 2.11, 16,384 tokens in all, hidden size 2048, L2 flushed, the transposition of V
# counted. TFLOP/s at N 4k / 16k, in brackets over FlashAttention-3 in float8 (fa3_fwd 0.0.3):
#   head size 128, full    988 / 1071 (1.069 / 1.078)    causal    835 / 1026 (1.005 / 1.031)
#   head size 64, full     563 / 608  (0.931 / 0.889)    causal    508 / 610  (0.963 / 0.953)
# What limits it. Head size 128, up to N 4k: the transposition, and under a causal mask the diagonal's blocks; at 16k no
# single unit (derived: 0.74 of the 1,442 TFLOP/s of a product of 8192 cubed, 0.51 of the rate of exponentials). Head
# size 64: the softmax, since the rate is that of bfloat16, whose products take twice the time. Next: see the end.
#
# What was tried: rates over those of FlashAttention-3, with every form in one process, at N 4,096, 16,384 and 1,024.
#                                               full                  causal
# head size 128: three consumers                1.072  1.103  0.942   1.001  1.029  0.887    chosen
#   three, no turns                             1.020  1.050  0.907   0.961  0.993  0.894
#   two consumers                               0.950  0.957  0.916   0.955  0.933  0.954
#   two, overlap                                0.951  0.954  0.921   0.958  0.941  0.962    chosen for few keys, causal
#   two, no turns                               0.938  0.944  0.918   0.937  0.923  0.944
#   two, block_n 256                            0.980  0.997  0.893   0.940  0.935  0.895
# head size 64: three consumers                 0.925  0.887  1.018   0.932  0.918  0.991    chosen, full
#   three, no turns                             0.901  0.857  1.000   0.957  0.947  1.009    chosen, causal
#   two, block_n 256                            0.841  0.800  0.913   0.865  0.836  0.943
#
# Removed, with what was measured:
# O rescaled when a maximum grew by 0.75        right; 0.887 to 0.939 with two consumers, 1 to 4 % below 2.75 octaves
# row maxima by the bits of scores, three to    right; 1 to 10 % slower with 20 instructions a block fewer, but for
#   an instruction                              block_n 256 under a causal mask, up to 2 % faster and below three
#                                               consumers still. The chain to the exponentials is longer (derived)
# row sums by a product of P, rounded, with 1   WRONG with every number of consumers: errors 0.67 to 1.3 of the output's
#   (instead of 64 additions a block)           size, of the LSE up to 1.8; with P the identity rows 8 to 15 of each 16
#                                               are wrong, the others right. Cause not found
# and powers of two by the bits of scores       WRONG with it, never measured alone
# Not built, or compiled only, so not measured:
# an earlier start: on each multiprocessor     predicted: 2 to 3 of the transposition's 23 µs
#   without more V to turn, Q and K read first
# V turned by a warpgroup of the kernel         a layout of Gluon moves one dimension a lane, so reads or writes of
#                                               shared memory conflict four times; about 770 of 1,400 cycles a block,
#                                               and each tile of queries turns V again
# P through shared memory or shuffles           the order of keys makes the two layouts one
# P carried as bytes                            230 more instructions of about 450 in the loop (PRMT, LOP3): words
# P rounded before the wait for P·V             ptxas serialises the products (16 WARPGROUP of 4)
# three consumers, head size 128, or block_n    18 spills in the loop; with values_first none
#   256, the wait for P·V after the softmax
# three consumers, head size 128, where a       Triton 3.9 reads 23 spilled numbers in the branch that masks (3.6: none)
#   diagonal may cross two blocks
#
# V turned by a kernel before this one takes 22.8 to 23.7 µs by events of its own, launch included: 4 % of N 4k, full,
# 12 % of N 1k. It is the same at all head sizes and lengths, so neither its layouts nor its waves (1.6 of 10 programs a
# multiprocessor by registers, 160 KB of loads in flight each) set it; derived: 67 MB through HBM at 4.8 TB/s are 14 µs,
# and the flush leaves up to 50 MB in L2 to be written back first, which a forward without it would wait for too. Its
# instructions are 16 loads, 16 stores and 192 PRMT for 256 bytes a thread: about 2 µs. Next: the earlier start.
#
# Head size 64 is limited by exponentials and the instructions around them: predicted, a block of 64 x 128 scores is 512
# cycles of MUFU and 128 of QGMMA, and 424 instructions a warp; it takes about 800 cycles (derived from N 16k, full,
# at 1.75 GHz), FlashAttention-3 about 700. Next: one exponential in four as a polynomial on the FMA pipe; steps of 160
# keys, as FlashAttention-3 has (fewer barriers and rescalings a key), need blocks of Gluon that are no power of two.
