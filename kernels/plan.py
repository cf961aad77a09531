"""Which data path and which block sizes a FlashAttention-2 call uses, decided before anything is launched.

The tuning table was measured on an H200 (tests/gpu/check_flash2.py prints it anew); other families have blocks that fit
their shared memory and spill no register. Nothing is tuned at run time: a caller who wants
another configuration passes ``tuning={"block_m": ..., ...}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch

from kernels.errors import UnsupportedCall
from kernels.options import Options

L2_SHARE_BYTES = 16 << 20  # keys and values that programs running at the same time may touch
L2_BYTES = 50 << 20  # of an H200


@dataclass(frozen=True)
class Tuning:
    """block_m query rows by block_n keys a step; num_stages key/value blocks in flight; tma: descriptors instead of
    pointers (needs compute capability 9.0).

    There is no switch for Triton's automatic warp specialisation: each of 12 configurations of this kernel with it gave
    NaN on an H200 (Triton 3.6).
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    tma: bool = False


@dataclass(frozen=True)
class Plan:
    """What a call will run. path: "tma" or "pointer"; why: one sentence a decision."""

    tuning: Tuning
    path: str
    why: tuple[str, ...]


# (family, padded head size, causal) -> configuration; 16-bit types. Measured: H200, Triton 3.6, bfloat16.
TABLE: dict[tuple[str, int, bool], Tuning] = {
    ("sm_90", 64, False): Tuning(64, 128, 4, 2, tma=True),
    ("sm_90", 64, True): Tuning(64, 128, 4, 2, tma=True),
    ("sm_90", 128, False): Tuning(64, 64, 4, 3, tma=True),
    ("sm_90", 128, True): Tuning(64, 64, 4, 3, tma=True),
}
POINTER_SM90 = {64: Tuning(64, 64, 4, 3), 128: Tuning(64, 64, 4, 3), 256: Tuning(64, 64, 8, 2)}  # 64, 128: measured
# Where the table has no row, by padded head size, whatever the mask: compiled without a spill, not measured.
TMA = {64: Tuning(64, 128, 4, 2, tma=True), 128: Tuning(128, 128, 8, 2, tma=True), 256: Tuning(128, 64, 8, 2, tma=True)}
POINTER = {64: Tuning(128, 64, 8, 3), 128: Tuning(128, 32, 8, 2), 256: Tuning(64, 32, 8, 2)}
# With an option of kernels.scores, by (padded head size, tma): not measured; all at once spill at 256 only.
SCORED = {(64, True): Tuning(64, 32, 4, 2, tma=True), (64, False): Tuning(64, 32, 4, 2),
          (128, True): Tuning(64, 32, 4, 2, tma=True), (128, False): Tuning(64, 32, 8, 2),
          (256, True): Tuning(64, 32, 8, 2, tma=True), (256, False): Tuning(64, 32, 8, 2)}
FLOAT32 = {64: Tuning(32, 32, 8, 2), 128: Tuning(32, 32, 8, 2), 256: Tuning(32, 16, 8, 2)}  # no tensor cores
INTERPRETER = Tuning(32, 32, 4, 1)  # small, so that small shapes have full, diagonal and tail blocks


def padded(head_dim: int) -> int:
    """The head size a block has: the next power of two, at least 16."""
    return max(16, 1 << (head_dim - 1).bit_length())


def family(cc: tuple[int, int]) -> str:
    """The row family of a compute capability; sm_120 has the shared memory of sm_89 and shares its blocks."""
    return {9: "sm_90", 10: "sm_100"}.get(cc[0], "sm_80")


def tma_obstacle(name: str, tensor: torch.Tensor) -> str | None:
    """Why the tensor memory accelerator cannot read ``tensor``, or None where it can."""
    if tensor.data_ptr() % 16:
        return f"{name} starts at an address that is not a multiple of 16 bytes"
    for stride in tensor.stride()[:-1]:
        if stride * tensor.element_size() % 16:
            return f"{name} has a stride of {stride * tensor.element_size()} bytes, not a multiple of 16"
        if stride <= 0 or stride * tensor.element_size() >= 1 << 40:
            return f"{name} has a stride of {stride} elements, outside what a descriptor holds"
    return None


def choose(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, cc: tuple[int, int] | None,
           tuning: Mapping[str, Any] | None, options: Options | None = None) -> Plan:
    """Plan a call on checked (B, H, N, D) tensors. cc: compute capability, None in Triton's interpreter. options: as
    checked by kernels.options; by default none but causal.

    A configuration asked for in ``tuning`` is used as given or refused by name, never replaced.
    """
    why: list[str] = []
    causal = causal or (options is not None and options.right == 0)
    block_d = max(64, padded(q.shape[-1]))
    obstacle = next((text for name, t in (("q", q), ("k", k), ("v", v)) if (text := tma_obstacle(name, t))), None)
    if q.shape[-1] * q.element_size() % 16:
        obstacle = obstacle or f"head size {q.shape[-1]} is not a multiple of 16 bytes"
    if cc is None:
        base = INTERPRETER
        why.append("Triton's interpreter: small blocks, pointers.")
    elif q.dtype == torch.float32:
        base = FLOAT32[block_d]
        why.append("float32: multiply-adds in full precision, small blocks, pointers.")
    else:
        name = family(cc)
        base = TABLE.get((name, block_d, causal)) or (POINTER if name == "sm_80" else TMA)[block_d]
        why.append(f"Tuning table: {name}, head size up to {block_d}, {'causal' if causal else 'full'}.")
        if base.tma and obstacle:
            base = POINTER_SM90[block_d]
            why.append(f"Pointers instead of TMA descriptors: {obstacle}.")
        if options is not None and options.scored:
            base = SCORED[block_d, base.tma]
            why.append("Smaller blocks: options inside the kernel take registers.")
    if tuning:
        base = override(base, tuning)
        given = ", ".join(f"{name}={value}" for name, value in sorted(tuning.items()))
        why.append(f"The caller's tuning: {given}.")
        check_tuning(base, obstacle, cc)
    return Plan(base, "tma" if base.tma else "pointer", tuple(why))


def override(base: Tuning, tuning: Mapping[str, Any]) -> Tuning:
    names = {f.name for f in fields(Tuning)}
    unknown = sorted(set(tuning) - names)
    if unknown:
        raise UnsupportedCall("tuning", f"keys among {', '.join(sorted(names))}", ", ".join(map(repr, unknown)))
    return replace(base, **tuning)


def check_tuning(tuning: Tuning, obstacle: str | None, cc: tuple[int, int] | None) -> None:
    for name, value in asdict(tuning).items():
        if name == "tma":
            if not isinstance(value, bool):
                raise UnsupportedCall(f"tuning[{name!r}]", "True or False", repr(value))
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnsupportedCall(f"tuning[{name!r}]", "a positive whole number", repr(value))
        if name != "num_stages" and value & (value - 1):
            raise UnsupportedCall(f"tuning[{name!r}]", "a power of two", repr(value))
        if name.startswith("block") and not 16 <= value <= 256:
            raise UnsupportedCall(f"tuning[{name!r}]", "16 to 256", repr(value))
    if tuning.tma and obstacle:
        raise UnsupportedCall("tuning['tma']", "tensors a TMA descriptor can hold", obstacle, "Use tma=False.")
    if tuning.tma and cc is not None and cc[0] < 9:
        raise UnsupportedCall("tuning['tma']", "compute capability 9.0 or later", f"{cc[0]}.{cc[1]}", "Use tma=False.")


def head_group(k: torch.Tensor, heads: int) -> int:
    """Query heads to work on at a time: those of 4 key heads, or of as many as L2_SHARE_BYTES hold if that is more, so
    that there are rows enough; but keys and values of more than half of L2 would push each other out, so fewer then.

    Half, because an L2 of two partitions (A100, H100, H200) keeps a line that both sides read twice.
    """
    per_head = max(1, 2 * k.shape[2] * k.shape[3] * k.element_size())
    wanted = max(4, L2_SHARE_BYTES // per_head)
    return max(1, min(wanted, l2_bytes(k.device) // 2 // per_head)) * (heads // k.shape[1])


@lru_cache
def l2_bytes(device: torch.device) -> int:
    """The L2 of a CUDA device; elsewhere that of an H200."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else L2_BYTES
