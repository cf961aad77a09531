"""How a backward on Hopper is cut into programs, and its launches (kernels.hopper_backward has the kernels).

One pass ("prepare", "keys", "finish") sums dQ in float32 in whatever order the programs come; dK and dV have one order.
The deterministic form ("prepare", "keys", "queries") makes dQ in a kernel of its own, and is bitwise reproducible.

What was tried; "compiled" is what the machine code shows (Triton 3.6), head size 128 unless said, a step and consumer:
    change                                        predicted         compiled                              measured
    dQ from registers, schedule 1 for 0           +3-8 % (no stage  0 words spilled for 77                not yet
                                                  in shared memory)
    addresses of K and V made loop-variant        16 registers      20 loads from local memory fewer      not yet
    producer the first partition, consumers       evener registers  388 instructions for 422, loads 7     not yet
      workers                                                       for 16
    schedule 3: dQ under the next exponentials,   +10 %             382 instructions, nothing spilled     not yet
      the consumers up to a block apart
    P of 16 bits between steps (schedule 3)       16 registers      417 instructions for 388: left out    -
    one program a multiprocessor, lists of tiles  +3 %              627 instructions, 54 of them on       -
                                                                    local memory: left out
    tiles of a head begin at different queries    +0-5 % (sums of   the same                              not yet
                                                  one row queue)
    three consumers at head size 64, two passes   +10 %             nothing spilled                       not yet
    both passes at once                           +3 % (a wave)     the same                              not yet
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton

from kernels.errors import UnsupportedCall
from kernels.plan import padded, tma_obstacle

LOG2_E = math.log2(math.e)
PAD = 128  # the statistics of a head are padded to whole blocks, so that their loads need no mask
# Registers a thread at the start, by consumers: enough for 240 of each of two, or 160 of each of three, and a producer.
REGISTERS = {2: 168, 3: 128}
SUMS = {"none": 0, "atomic": 1, "reduce": 2}


@dataclass(frozen=True)
class Tuning:
    """block_m: queries a step, 64 or 128. schedule: the order of a step (hopper_backward._step). dq_sum: "atomic" from
    registers, "reduce" by TMA, or "none": dQ in a kernel of its own. stages: blocks of queries in flight. consumers:
    two, or without dQ also three, of 64 keys each. query_consumers, block_n, query_stages: likewise, of dQ's kernel.
    spread: the tiles of a head begin at different queries. together: both passes at once, on two streams, so that one
    fills the multiprocessors that the end of the other leaves idle."""

    block_m: int
    schedule: int
    dq_sum: str
    stages: int = 2
    consumers: int = 2
    query_consumers: int = 2
    block_n: int = 128
    query_stages: int = 2
    spread: bool = False
    together: bool = False


# (padded head size, whether there is a mask)
ONE_PASS = {
    (64, False): Tuning(128, 3, "atomic"), (64, True): Tuning(128, 3, "atomic"),
    (128, False): Tuning(64, 3, "atomic"), (128, True): Tuning(64, 3, "atomic"),
}
TWO_PASSES = {64: Tuning(64, 0, "none", 2, 3, 3, 64, 4), 128: Tuning(64, 0, "none")}


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


def choose(q: torch.Tensor, *, masked: bool, deterministic: bool, tuning: Mapping[str, Any] | None = None) -> Tuning:
    """The configuration for q (B, H, N, D); `tuning` has names of Tuning that replace those of the table."""
    row = max(64, padded(q.shape[3]))
    base = TWO_PASSES[row] if deterministic else ONE_PASS[row, masked]
    chosen = replace(base, **(tuning or {}))
    if deterministic and chosen.dq_sum != "none":
        raise UnsupportedCall("tuning", 'dq_sum "none", as deterministic=True asks', repr(chosen.dq_sum))
    return chosen


def launches(dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
             lse: torch.Tensor, *, left: int, right: int, scale: float, dlse: torch.Tensor | None, tuning: Tuning,
             grads: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> list[tuple[str, Any, int, tuple, dict]]:
    """One backward as (stage, kernel, programs, arguments, options), in order; they fill grads (contiguous).

    left, right: the window, -1 unlimited. Nothing is launched here, so a compiler without a device can walk it too.
    """
    from kernels import hopper_backward as kernels
    from kernels import hopper_backward_queries as query_kernels
    from kernels.gluon_names import DTYPES, TensorDescriptor, gl

    (batch, heads, nq, head_dim), (kv_heads, nk) = q.shape, k.shape[1:3]
    dq, dk, dv = grads
    group, shift, row = heads // kv_heads, nk - nq, max(64, padded(head_dim))
    nqp, bm, sums = triton.cdiv(nq, PAD) * PAD, tuning.block_m, SUMS[tuning.dq_sum]
    stats = torch.empty((2, batch * heads, nqp), dtype=torch.float32, device=q.device)
    dq_sum = torch.empty((batch * heads * nqp, row) if sums else (64, row), dtype=torch.float32, device=q.device)
    tile = (64, row // 2 if bm == 64 else row)
    dq_desc = TensorDescriptor(dq_sum, list(dq_sum.shape), list(dq_sum.stride()), list(tile),
                               gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=2))

    def operand(x: torch.Tensor, rows: int) -> Any:  # four dimensions: tails are clipped, what is missing reads as 0
        block = [1, 1, rows, row]
        layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[x.dtype])
        return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)

    numbers = (nq, nk, nqp, scale, scale * LOG2_E, shift - left if left >= 0 else 0, shift + right if right >= 0 else 0)
    mask = dict(HEAD=head_dim, GROUP=group, LEFT=left >= 0, RIGHT=right >= 0)

    def threads(consumers: int) -> dict[str, Any]:  # the fusion of multiply and add is off by default from Triton 3.10
        return {"num_warps": 4, "maxnreg": REGISTERS[consumers], "enable_fp_fusion": True}

    keys, rows, queries, bn = 64 * tuning.consumers, 128 if sums else 64, 64 * tuning.query_consumers, tuning.block_n
    steps = [
        ("prepare", kernels.prepare, batch * heads * (nqp // 64),
         (out, dout, lse, lse if dlse is None else dlse, stats[0], stats[1], dq_sum, *out.stride()[:3],
          *dout.stride()[:3], heads, nq, nqp, -1.0 / scale),
         dict(HEAD=head_dim, D=row, ROWS=64, HAS_DLSE=dlse is not None, ZERO=sums > 0, num_warps=4)),
        ("keys", kernels.key_kernel, batch * kv_heads * triton.cdiv(nk, keys),
         (operand(q, bm), operand(k, rows), operand(v, rows), operand(dout, bm), dq_desc, stats[0], stats[1], dk, dv,
          dq_sum, kv_heads, *numbers),
         dict(BM=bm, KEYS=keys, STAGES=tuning.stages, DQ=sums, SCHEDULE=tuning.schedule, SPREAD=tuning.spread,
              TAIL=nk % keys != 0, **mask, **threads(tuning.consumers)))]
    if sums:
        steps.append(("finish", kernels.finish, batch * heads * (nqp // 64), (dq_sum, dq, nq, nqp, scale),
                      dict(HEAD=head_dim, D=row, BM=bm, ATOMIC_ORDER=tuning.dq_sum == "atomic", num_warps=4)))
    else:
        steps.append(("queries", query_kernels.query_kernel, batch * heads * triton.cdiv(nq, queries),
                      (operand(q, 64), operand(k, bn), operand(v, bn), operand(dout, 64), stats[0], stats[1], dq, heads,
                       *numbers),
                      dict(BN=bn, QUERIES=queries, STAGES=tuning.query_stages, TAIL=nk % bn != 0, **mask,
                           **threads(tuning.query_consumers))))
    return steps


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
    chosen = choose(q, masked=left >= 0 or right >= 0, deterministic=deterministic, tuning=tuning)
    steps = launches(dout, q, k, v, out, lse.contiguous(), left=left, right=right, scale=scale,
                     dlse=None if dlse is None else dlse.contiguous(), tuning=chosen, grads=(dq, dk, dv))
    with torch.cuda.device(q.device):
        run(steps, stage, together=chosen.together)
    return dq, dk, dv


def run(steps: list[tuple[str, Any, int, tuple, dict]],
        stage: Callable[[str], contextlib.AbstractContextManager] | None = None, *, together: bool = False) -> None:
    """Launch the steps of `launches`. together: the last two at the same time, unless a stage is to hold each alone."""
    def launch(step: tuple[str, Any, int, tuple, dict]) -> None:
        name, kernel, programs, args, options = step
        with stage(name) if stage is not None else contextlib.nullcontext():
            kernel[(programs,)](*args, **options)

    launch(steps[0])
    if together and stage is None:
        here = torch.cuda.current_stream()
        aside = _stream(here.device)
        aside.wait_stream(here)
        launch(steps[1])
        with torch.cuda.stream(aside):
            launch(steps[2])
        here.wait_stream(aside)  # what is freed after this call is used again after both
        return
    for step in steps[1:]:
        launch(step)


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def parameters(tuning: Tuning) -> dict[str, Any]:
    """A Tuning as flat names."""
    return asdict(tuning)
