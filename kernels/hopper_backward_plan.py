"""How a backward on Hopper is cut into programs, and its launches (kernels.hopper_backward has the kernels).

One pass ("prepare", "keys", "finish") sums dQ in float32 in whatever order the programs come; dK and dV have one order.
The deterministic form is two passes ("prepare", "keys", "queries"), dQ in a kernel of its own: bitwise reproducible.

What was measured stands at the end.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from kernels.errors import UnsupportedCall
from kernels.plan import padded, tma_obstacle

LOG2_E = math.log2(math.e)
PAD = 128  # the statistics of a head are padded to whole blocks, so that their loads need no mask
# Registers a thread at the start, by consumers: enough for 240 of each of two, or 160 of each of three, and a producer.
REGISTERS = {2: 168, 3: 128}
L2_BYTES = 48 << 20  # nearly all of an H200's


@dataclass(frozen=True)
class Tuning:
    """block_m: queries a step, 64 or 128. dq_sum: "reduce", by TMA (block_m times the padded head size is 8192), or
    "none": dQ in a kernel of its own. stages: blocks of queries in flight. consumers: two, or without dQ also three, of
    64 keys each. query_consumers, block_n, query_stages: likewise, of dQ's kernel."""

    block_m: int
    dq_sum: str
    stages: int = 2
    consumers: int = 2
    query_consumers: int = 2
    block_n: int = 128
    query_stages: int = 2


ONE_PASS = {64: Tuning(128, "reduce"), 128: Tuning(64, "reduce")}  # by padded head size
DETERMINISTIC = {
    64: Tuning(64, "none", consumers=3, query_consumers=3, block_n=64, query_stages=4), 128: Tuning(64, "none")}


def obstacle(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None) -> str | None:
    """Why these kernels cannot take checked (B, H, N, D) tensors, whatever the device; None where they can."""
    batch, heads, nq, head_dim = q.shape
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"q is {q.dtype}, not float16 or bfloat16"
    if head_dim > 128 or head_dim % 8:
        return f"head size {head_dim} is not a multiple of 8 up to 128"
    if scale is not None and not scale > 0:
        return f"scale {scale} is not above 0"
    if batch * heads * (max(nq, k.shape[2]) + PAD) >= 1 << 31:
        return f"{batch * heads} heads of {max(nq, k.shape[2])} tokens are more than 2^31 rows"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.numel() and x.stride(3) != 1:
            return f"the last stride of {name} is {x.stride(3)}, not 1"
        if x.numel() and (text := tma_obstacle(name, x)) is not None:
            return text
    return None


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False,
             window: tuple[int, int] = (-1, -1), scale: float | None = None) -> str | None:
    """None where `backward` takes a call on checked tensors, else the reason; every causal and window is taken."""
    if not q.is_cuda:
        return f"q is on {q.device}"
    major, minor = torch.cuda.get_device_capability(q.device)
    if major != 9:
        return f"compute capability {major}.{minor} is not 9.0"
    return obstacle(q, k, v, scale=scale)


def choose(q: torch.Tensor, *, deterministic: bool, tuning: Mapping[str, Any] | None = None) -> Tuning:
    """The configuration for q (B, H, N, D); `tuning` has names of Tuning that replace those of the table."""
    row = max(64, padded(q.shape[3]))
    chosen = replace((DETERMINISTIC if deterministic else ONE_PASS)[row], **(tuning or {}))
    if chosen.dq_sum not in ("reduce", "none"):
        raise UnsupportedCall("tuning", 'dq_sum "reduce" or "none"', repr(chosen.dq_sum))
    if deterministic and chosen.dq_sum != "none":
        raise UnsupportedCall("tuning", 'dq_sum "none", as deterministic=True asks', repr(chosen.dq_sum))
    if chosen.dq_sum == "reduce" and chosen.block_m * row != 8192:
        raise UnsupportedCall("tuning", f'block_m {8192 // row} with dq_sum "reduce"', repr(chosen.block_m))
    if chosen.consumers not in ((2,) if chosen.dq_sum == "reduce" else (2, 3)):
        raise UnsupportedCall("tuning", 'consumers 2, or 3 with dq_sum "none"', repr(chosen.consumers))
    return chosen


def launches(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, *, left: int, right: int, scale: float, dlse: torch.Tensor | None, tuning: Tuning,
             grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> Iterator[tuple[str, Any, int, tuple, dict]]:
    """One backward as (stage, kernel, programs, arguments, options), in order; they fill grads (contiguous).

    left, right: the window, -1 unlimited. Nothing is launched here, so a compiler without a device can walk it too;
    each step is made when it is asked for, so the device is at work on the first while the host makes the others.
    """
    from kernels import hopper_backward as kernels
    from kernels import hopper_backward_queries as query_kernels
    from kernels import hopper_backward_sums as sum_kernels
    from kernels.gluon_names import TensorDescriptor

    (batch, heads, nq, head_dim), (kv_heads, nk) = q.shape, k.shape[1:3]
    dq, dk, dv = grads
    group, shift, row = heads // kv_heads, nk - nq, max(64, padded(head_dim))
    nqp, bm, sums = -(-nq // PAD) * PAD, tuning.block_m, tuning.dq_sum == "reduce"
    terms = torch.empty((2, batch * heads * nqp, 16), dtype=torch.bfloat16, device=q.device)
    dq_sum = torch.empty((batch * heads * nqp, row) if sums else (64, row), dtype=torch.float32, device=q.device)

    def operand(x: torch.Tensor, *block: int) -> Any:  # a tail is clipped, what is missing reads as 0
        return TensorDescriptor(x, list(x.shape), list(x.stride()), list(block), _layout(block, x.dtype))

    numbers = (nq, nk, nqp, scale, scale * LOG2_E, shift - left if left >= 0 else 0, shift + right if right >= 0 else 0)
    mask = dict(HEAD=head_dim, GROUP=group, LEFT=left >= 0, RIGHT=right >= 0)

    def threads(consumers: int) -> dict[str, Any]:  # the fusion of multiply and add is off by default from Triton 3.10
        return {"num_warps": 4, "maxnreg": REGISTERS[consumers], "enable_fp_fusion": True, "launch_pdl": True}

    keys, rows, queries, bn = 64 * tuning.consumers, 128 if sums else 64, 64 * tuning.query_consumers, tuning.block_n
    yield ("prepare", sum_kernels.prepare, batch * heads * (nqp // 64),
           (out, dout, lse, lse if dlse is None else dlse, terms, dq_sum,
            *out.stride()[:3], *dout.stride()[:3], heads, nq, nqp, -1.0 / scale),
           dict(HEAD=head_dim, D=row, ROWS=64, HAS_DLSE=dlse is not None, ZERO=sums, num_warps=4))
    # without a mask and without dQ, programs that go on to further tiles, whose keys are loaded meanwhile
    tiles, stay = batch * kv_heads * -(-nk // keys), not sums and left < 0 and right < 0
    yield ("keys", kernels.key_kernel, min(tiles, processors(q)) if stay else tiles,
           (operand(q, 1, 1, bm, row), operand(k, 1, 1, rows, row), operand(v, 1, 1, rows, row),
            operand(dout, 1, 1, bm, row), operand(dq_sum.view(-1, 32), 128, 32), operand(dk, 1, 1, 64, row),
            operand(dv, 1, 1, 64, row), operand(terms, 2, bm, 16), kv_heads, *numbers,
            tiles if stay else heads_together(q, k, batch * kv_heads, -(-nk // keys))),
           dict(BM=bm, KEYS=keys, STAGES=tuning.stages, DQ=sums, TAIL=nk % keys != 0, BUFFERS=2 if stay else 1, **mask,
                **threads(tuning.consumers)))
    if sums:
        yield ("finish", sum_kernels.finish, batch * heads * (nqp // 64), (dq_sum, dq, nq, nqp, scale),
               dict(HEAD=head_dim, D=row, EARLY=True, num_warps=4, launch_pdl=True))
    else:
        yield ("queries", query_kernels.query_kernel, batch * heads * -(-nq // queries),
               (operand(q, 1, 1, 64, row), operand(k, 1, 1, bn, row), operand(v, 1, 1, bn, row),
                operand(dout, 1, 1, 64, row), operand(dq, 1, 1, 64, row), terms, heads, *numbers,
                heads_together(q, k, batch * heads, -(-nq // queries))),
               dict(BN=bn, QUERIES=queries, STAGES=tuning.query_stages, TAIL=nk % bn != 0, **mask,
                    **threads(tuning.query_consumers)))


def processors(x: torch.Tensor) -> int:
    """Multiprocessors of the GPU that x is on; of an H200 where it is on none."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 132


def heads_together(q: torch.Tensor, k: torch.Tensor, heads: int, blocks: int) -> int:
    """How many heads take turns at their blocks, the longest first: programs for one and a half times the
    multiprocessors, so that all end together, of no more heads than the L2 holds; one where one fills them."""
    if 10 * blocks > 9 * processors(q):
        return 1
    row = max(64, padded(q.shape[3]))
    head_bytes = row * (q.shape[2] * (4 * q.shape[1] // k.shape[1] + 4) + k.shape[2] * 4)
    return max(1, min(heads, -(-3 * processors(q) // (2 * blocks)),
                      max(L2_BYTES // head_bytes, processors(q) // blocks)))


@lru_cache
def _layout(block: tuple[int, ...], dtype: torch.dtype) -> Any:
    from kernels.gluon_names import DTYPES, gl

    return gl.NVMMASharedLayout.get_default_for(list(block), DTYPES[dtype])


def backward(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, *, scale: float, causal: bool, window: tuple[int, int] = (-1, -1),
             dlse: torch.Tensor | None = None, deterministic: bool = False,
             stage: Callable[[str], contextlib.AbstractContextManager] | None = None,
             tuning: Mapping[str, Any] | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq like q, dk and dv like k, contiguous, of a call that `supports` takes.

    dout, q, out: (B, H, Nq, D); k, v: (B, Hk, Nk, D). lse, dlse: (B, H, Nq) float32, natural logarithm, -inf for a row
    that sees no key: such a row has gradient 0. window: (left, right) inclusive, -1 unlimited; causal is right = 0,
    bottom-right. stage: called with each step's name, gives the context that its launch runs in.
    """
    if (reason := supports(q, k, v, causal, window, scale)) is not None:
        raise UnsupportedCall("q", "a call that the Hopper backward takes", reason)
    left, right = window[0], 0 if causal else window[1]
    left, right = (min(side, q.shape[2] + k.shape[2]) for side in (left, right))  # positions stay inside int32
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if q.numel() == 0 or k.numel() == 0:
        return dq.zero_(), dk.zero_(), dv.zero_()
    out = out if out.stride(3) == 1 else out.contiguous()
    dout = dout if dout.stride(3) == 1 and tma_obstacle("dout", dout) is None else dout.contiguous()
    chosen = choose(q, deterministic=deterministic, tuning=tuning)
    steps = launches(dout, q, k, v, out, lse.contiguous(), left=left, right=right, scale=scale,
                     dlse=None if dlse is None else dlse.contiguous(), tuning=chosen, grads=(dq, dk, dv))
    with torch.cuda.device(q.device):
        run(steps, stage)
    return dq, dk, dv


def run(steps: Iterable[tuple[str, Any, int, tuple, dict]],
        stage: Callable[[str], contextlib.AbstractContextManager] | None = None) -> None:
    """Launch the steps of `launches`, each in the context that `stage` gives for its name."""
    for name, kernel, programs, args, options in steps:
        with stage(name) if stage is not None else contextlib.nullcontext():
            kernel[(programs,)](*args, **options)


def parameters(tuning: Tuning) -> dict[str, Any]:
    """A Tuning as flat names."""
    return asdict(tuning)


# Measured: one H200, Triton 3.6, torch 2.11, 16,384 tokens in all, hidden size 2048, L2 flushed (data/
# h200-peers-backward, -half). TFLOP/s at N 1k / 4k / 16k, in brackets over FlashAttention-4 (4.0.0b36), the fastest
# peer in every cell; of two passes over cuDNN, whose sums have no order. At N 16k all are at the power limit and vary
# by 10 %.
#                            one pass                                   two passes
#   bfloat16, 128, full      496 / 643 / 676 (0.995 / 1.014 / 1.035)    488 / 567 / 580 (1.092 / 1.003 / 1.032)
#   causal                   345 / 571 / 670 (0.940 / 1.018 / 1.001)    346 / 511 / 571 (1.083 / 1.053 / 1.010)
#   head size 64, full       433 / 574 / 610 (0.979 / 1.031 / 1.120)    376 / 474 / 472 (1.015 / 1.031 / 1.035)
#   causal                   288 / 494 / 588 (0.886 / 0.994 / 1.017)    256 / 435 / 503 (1.012 / 1.115 / 1.137)
#   float16, 128, full       486 / 628 / 642 (0.983 / 1.009 / 1.022)    476 / 551 / 542 (1.084 / 0.995 / 1.039)
#   causal                   341 / 557 / 635 (0.942 / 1.019 / 1.001)    340 / 496 / 547 (1.080 / 1.046 / 1.031)
#   head size 64, full       428 / 558 / 564 (0.978 / 1.033 / 1.096)    371 / 461 / 472 (1.004 / 1.014 / 1.094)
#   causal                   287 / 484 / 549 (0.892 / 0.998 / 1.015)    255 / 425 / 470 (1.008 / 1.090 / 1.143)
# What limits it. Shared memory (below), and at N 16k power. N 1k: prepare (71 us) and finish (52 us) were 17 % of the
# time, causal 24 %; at 4k 5 to 10, at 16k 1 to 3. Both ran at 3.8 TB/s (derived: 268 and 201 MB, 134 of each the
# float32 workspace), whatever their rows and warps. Two passes: 7 products for 5, at 794 TFLOP/s executed at 4k; where
# a tile begins makes no difference (strides of 0 to 129 blocks). Next: at 1k a workspace that need not be emptied; 80
# queries a step at head size 128, which needs blocks of Gluon that are no power of two.
#
# The last changes, TFLOP/s at N 4096, head size 128 full / causal, 64 full / causal, each beside the form before. At
# head size 128 a step's products read 256 KB of shared memory, and 110 to 140 KB go through it besides (derived): at
# 128 bytes a cycle 80 to 95 % of a step's time. What spares it counts; what spares instructions or waiting does not.
#                                                 predicted             measured
#   the statistics by a product of ones, not by   -128 of 3,330         615 -> 623 / 553 -> 562, 540 -> 533 / 472 ->
#     16 loads of 8 bytes a thread                cycles (loads)        480; at 16k 619 -> 635 / 617 -> 638
#     two passes                                  -                     548 -> 563 / 501 -> 513
#     the ones from shared memory, not registers  4 registers, 8 KB     647 -> 649 / 574 -> 570, 559 -> 566 / 488 -> 498
#     two passes, head size 64                    (spilled: serial)     460 -> 468 / 414 -> 433
#   dQ written 16 bytes a thread in the order of  -256 cycles (banks)   630 -> 650 / 559 -> 578; at 16k 621 -> 664 /
#     the registers                                                     616 -> 653
#     head size 64, where it was red.v4 before    -                     541 -> 557 / 490 -> 489
# and lost:
#   the statistics by 16 loads of 16 bytes,       36 instructions of    613 -> 582 / 550 -> 518, 540 -> 497 / 470 ->
#     straight into the accumulators              398 fewer             441: a quarter of a warp at a time
#   with that, dP of the next block under dQ      no gap at the edge    582 -> 572 / 518 -> 521, 497 -> 481 / 441 -> 433
#   with that, a block of queries freed later     one barrier fewer     572 -> 566 / 521 -> 517, 481 -> 465 / 433 -> 417
#   with that, P of 16 bits between steps         16 registers          572 -> 560 / 521 -> 516, 481 -> 484 / 433 -> 427
#   dP of the next block under dQ, as it is now   -                     649 -> 642 / 570 -> 569, 566 -> 563 / 498 -> 500
#
# The changes before, likewise:
#                                                 predicted             measured
#   gradients leave by TMA, not from registers    4.6 us a program      615 -> 622 / 521 -> 531, 530 -> 534 / 453 -> 463
#     two passes                                  -                     529 -> 539 / 461 -> 478, 440 -> 439 / 394 -> 408
#   heads take turns, the longest blocks first    -6.6 % of keys,       531 -> 558, 456 -> 468; two or three heads'
#                                                 simulated             blocks at once: 550 and 552
#   K and Q before V and dO; each kernel under    0.3 us a program;     622 -> 629, 534 -> 542; two passes 539 -> 553 /
#     the end of the one before                   the tail of keys      478 -> 506, 439 -> 462 / 408 -> 412
#   two passes: keys goes on to its next tile,    3.6 us a program      at 1k 464 -> 484, 351 -> 371; at 4k 0.964 to
#     loaded under the one before                                       0.966 -> 0.968 of cuDNN
#   prepare and finish from the other end         0.7 % (L2)            none seen
# and lost:
#   the loading warps prepare the units of later  +4 %                  610 -> 554 / 517 -> 492, 527 -> 482 / 452 ->
#     programs and finish those of earlier ones                         403: 3 us a unit in 24 registers, loads late
#   dQ in one order by rounds: launches of a few  1.07 of cuDNN         363 / 339, 346 / 321: all heads at work at once,
#     tiles of every head, a workspace for each                         so that queries and workspace come from HBM
#   dQ's kernel: 64 keys, 3 or 4 stages; three    -                     546 -> 541 / 504 -> 500; 541 to 542 / 501 to 503
#     consumers of 64 keys
#   three or four stages in keys of two passes    -                     546 -> 546 / 504 -> 504, 454 -> 458 / 411 -> 411
#
# What was tried before: TFLOP/s at N 4096, full / causal, with every form of a group in one process; differences below
# 3 % are noise. A schedule is the order of a step: 0 has nothing in flight over the loop's edge; 1 sends dQ off under
# dK; 2 sends it off under the next scores; 3 makes the next P under dQ, and lets the consumers be a block apart. "-":
# not predicted, or not measured.
#   head size 128                                 predicted               measured
#   reduce, schedule 0                            -                       - / 481
#   reduce, schedule 1                            -                       529 / 477
#   atomic, schedule 1 (no dQ in shared memory)   1.03-1.08 of reduce     514 / 471
#   atomic, schedule 3                            1.10 of schedule 1      567 / 494
#   atomic, schedule 3, three stages              -                       565 / -
#   reduce, schedule 3 (chosen)                   -                       585 / 505; N 16k 627 / 597
#   two passes, schedule 0 (deterministic)        -                       505 / 447
#   two passes, schedule 3                        -                       492 / 437
#   head size 64
#   128 queries a step, atomic, schedule 2        -                       426 / 388
#   128 queries, atomic, schedule 3              1.10 of schedule 2      508 / 450; N 16k 537 / 536
#   64 queries, atomic, schedule 3                -                       463 / 422
#   two passes, schedule 0                        -                       406 / 361
#   two passes, schedule 0, three consumers       1.10 of two             425 / 390
#     (deterministic)
#   two passes, schedule 3, three consumers       -                       396 / 361
#   two passes, schedule 3, 128 queries           -                       401 / 359
# Removed: the ordered pass, one pass whose tiles take turns at each block of queries, by counters in global memory, so
# that dQ has one order of sums (bitwise so in 12 runs). The prediction is a simulation of the turns on 132 processors;
# it left out that a turn is passed on only after the sum has reached L2. Without a fence (release and acquire) PTX does
# not promise the order, and with one two passes are faster everywhere.
#   head size 128: one pass / two passes          -                       607 / 513; 529 / 454
#   ordered, 2 (full) or 8 (causal) steps apart   0.97 / 0.98 of reduce   520 / 431: 0.86 / 0.84
#   ordered, 4 steps apart                        0.94 / 0.92 of reduce   502 / 440: 0.83 / 0.86
#   ordered, 4 steps apart, fenced                -                       432 / 384: 0.71 / 0.75
#   head size 64: one pass / two passes           -                       526 / 456; 440 / 394
#   reduce, 128 queries                           -                       518 / 448
#   ordered, 2 (full) or 8 (causal) steps apart   -                       463 / 356
#   ordered, 4 steps apart                        -                       465 / 360
#   ordered, 4 steps apart, fenced                -                       406 / 320
# Seen in machine code only: P of 16 bits between steps (417 instructions a step for 388), and for one pass one program
# a multiprocessor with lists of tiles (627 instructions, 54 of them on local memory).
