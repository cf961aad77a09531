"""What the Hopper forward (kernels.hopper) runs for a call: the configuration, and the tiles of each program.

Nothing here needs a GPU, so that the balance of the lists is tested without one. What was measured stands at the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from kernels.errors import UnsupportedCall
from kernels.options import Options
from kernels.plan import padded, tma_obstacle

SWITCHES = ("turns", "overlap", "fixed")  # fields of Config that a call may turn off, to learn what each is worth
GROUP_BYTES = 16 << 20  # keys and values of the heads worked on together: a third of the L2 of an H200
FAR = 2.0**72  # of a row's sum: far beyond what a raised maximum leaves, far below float32's end
ROW_BITS, HEAD_BITS, BATCH_BITS = 20, 24, 19  # of a tile's word, low to high; a negative word ends a list


@dataclass(frozen=True)
class Config:
    """One compiled form of the kernel.

    head_dim: of a block in shared memory (64, 128 or 256; what the tensor lacks is read as 0). consumers: warpgroups of
    64 query rows. block_n keys a step; stages: of the rings of K and of V. group: query heads a key head. causal: the
    window's right side exists; left: its left side. edge: more than one block of a consumer may cross the right side,
    or none is seen. ahead: two consumers share every block, keep Q in registers and multiply the next tile's first
    block before they write this one. fixed: the maximum of a row's first block stays (see hopper_softmax._raise); else
    a maximum a block. late: with fixed, P is looked at before it is rounded, not a step later. half: the tensors are
    float16, not bfloat16. turns: consumers multiply in turn. overlap: the softmax of a block runs under P V of the
    block before it. packed: sequences behind each other, not a batch.
    """

    head_dim: int
    consumers: int
    block_n: int
    stages: int
    group: int = 1
    causal: bool = False
    left: bool = False
    edge: bool = False
    ahead: bool = False
    fixed: bool = False
    late: bool = False
    half: bool = False
    turns: bool = True
    overlap: bool = True
    packed: bool = False

    @property
    def block_m(self) -> int:
        return 64 * self.consumers

    @property
    def parameters(self) -> dict[str, int | bool]:
        """The configuration as numbers and bools, the tile first."""
        return {"block_m": self.block_m, **asdict(self)}

    @property
    def narrow(self) -> bool:
        """Whether P may overflow when it is rounded, before it is looked at: float16 ends at 65,504, bfloat16 where
        float32 does."""
        return self.half and self.fixed and not self.late

    @property
    def largest(self) -> float:
        """A row whose sum passes this is done again (hopper_repair): P is at most its row's sum, and may have
        overflowed."""
        return 65_504.0 if self.narrow else FAR

    @property
    def paired(self) -> bool:
        """Whether two columns of P go from step to step as one int32: where a loop for blocks that a side of the window
        crosses takes it over too, ptxas would split and join 16-bit values in every step. Three consumers with a
        maximum that stays have no registers for that unless they are late."""
        return (self.left or (self.causal and self.edge)) and (self.consumers == 2 or self.late or not self.fixed)

    @property
    def cache_key(self) -> str:
        """By this Triton finds a compiled form again: the fields, and what this version makes of them."""
        return repr([self, *(getattr(self, name) for name, value in vars(Config).items()
                             if isinstance(value, property) and name != "cache_key")])

    @property
    def shared_output(self) -> bool:
        """Whether the output leaves through Q's buffer: at head size 256 there is no room for one of its own."""
        return self.head_dim > 128


def select(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, scale: float,
           cc: tuple[int, int] | None, implementation: str, tuning: Mapping[str, Any] | None) -> tuple[str, str]:
    """"hopper" or "flash2" for a checked call, and why, as a sentence.

    implementation: "auto", "flash2", or "hopper", which is refused by name where it cannot take the call."""
    if implementation == "flash2":
        return "flash2", "the caller's choice."
    obstacle = supports(q, k, v, options, scale, cc)
    if implementation == "hopper":
        if obstacle is not None:
            raise UnsupportedCall("implementation", "a call that hopper can take", f"one that it cannot: {obstacle}",
                                  "Use 'auto' or 'flash2'.")
        return "hopper", "the caller's choice."
    if tuning and obstacle is None:
        obstacle = "a tuning is given, which is flash2's"
    if obstacle is None:
        return "hopper", "the fastest kernel for compute capability 9.0."
    return "flash2", f"hopper does not run: {obstacle}."


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options, scale: float,
             cc: tuple[int, int] | None) -> str | None:
    """Why this kernel cannot take a checked call, as a clause, or None where it can. cc: None in the interpreter."""
    if cc is None:
        return "Triton's interpreter does not run Gluon"
    if cc != (9, 0):
        return f"it needs compute capability 9.0, and this is {cc[0]}.{cc[1]}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"it takes float16 and bfloat16, not {q.dtype}"
    if options.scored:
        return "it takes no option but causal and window"
    if q.shape[3] % 8:
        return f"head size {q.shape[3]} is not a multiple of 16 bytes"
    if not 0 < scale < float("inf"):
        return f"it takes a positive scale, not {scale}"
    if -(-q.shape[2] // 64) >= 1 << ROW_BITS or q.shape[1] >= 1 << HEAD_BITS or q.shape[0] >= 1 << BATCH_BITS:
        return "a tile's word holds fewer rows, heads or batches"
    if q.numel() == 0 or k.numel() == 0:
        return None
    return next((text for name, t in (("q", q), ("k", k), ("v", v)) if (text := tma_obstacle(name, t))), None)


def choose(q: torch.Tensor, k: torch.Tensor, options: Options, tuning: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a call that `supports` lets through. tuning: any of SWITCHES, False to turn it off."""
    group, head_dim = q.shape[1] // max(1, k.shape[1]), max(64, padded(q.shape[3]))
    causal, left = options.right >= 0, options.left >= 0
    highest = k.shape[2] - q.shape[2] + options.right
    fixed = head_dim <= 128
    half = q.dtype == torch.float16
    # float16 that is not late goes over a tile twice where a row's scores rise by 11, e^11 being nearly 65,504, as they
    # do at a token that nearly all attention goes to: so only where late costs most, 8 to 12 %
    late = fixed and ((causal and head_dim > 64) or (half and (causal or left or head_dim > 64 or k.shape[2] > 2048)))

    def crossed(unit: int) -> bool:
        """Whether the window's right side may cross more than one key block of `unit` query rows, or hide all."""
        return causal and (options.right > 0 or highest < 0 or highest % unit != 0)

    edge = crossed(64)
    if head_dim > 128:
        consumers, block_n, stages, ahead = 2, 64, 2, False
    elif head_dim > 64:
        consumers, block_n, stages, ahead = 2, 128, 2, not crossed(128)  # Q in registers leaves too few for two masks
    elif edge or left or k.shape[2] <= 2048:
        consumers, block_n, stages, ahead, edge = 2, 128, 4, True, crossed(128)
    else:
        consumers, block_n, stages, ahead = 3, 128, 4, False
    found = Config(head_dim, consumers, block_n, stages, group, causal, left, edge, ahead, fixed, late=late,
                   half=half)
    return replace(found, **_turned_off(tuning)) if tuning else found


def _turned_off(tuning: Mapping[str, Any]) -> dict[str, bool]:
    if set(tuning) - set(SWITCHES) or any(not isinstance(value, bool) for value in tuning.values()):
        raise UnsupportedCall("tuning", f"any of {', '.join(SWITCHES)}, true or false", repr(dict(tuning)))
    return {name: value for name, value in tuning.items() if not value}


def block_range(row: int, nq: int, nk: int, block_m: int, block_n: int, lowest: int | None, highest: int | None
                ) -> tuple[int, int]:
    """First and one past the last key block of the tile from `row`: query i sees keys i + lowest to i + highest.

    A tile that sees nothing has one block, all of it hidden, so that its rows are written."""
    end = nk if highest is None else min(nk, min(row + block_m, nq) + highest)
    first = 0 if lowest is None else max(0, row + lowest) // block_n
    return first, max(-(-end // block_n), first + 1)


def head_group(heads: int, bytes_per_head: int) -> int:
    """Heads worked on together: the largest divisor of `heads` whose keys and values fit GROUP_BYTES, at least 4."""
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    return max([d for d in divisors if d * bytes_per_head <= GROUP_BYTES]
               + [next((d for d in divisors if d >= 4), heads)])


def group_of(q: torch.Tensor, k: torch.Tensor, config: Config) -> int:
    """Query heads worked on together; one where all tiles are alike, so that what is read at a time is least."""
    if not config.causal and q.shape[2] % config.block_m == 0:
        return 1
    return head_group(q.shape[0] * q.shape[1], 2 * k.shape[2] * k.shape[3] * q.element_size() // config.group)


def pack(batch: int, head: int, block: int) -> int:
    return (batch << HEAD_BITS | head) << ROW_BITS | block


@lru_cache(maxsize=64)
def tile_lists(batch: int, heads: int, nq: int, nk: int, block_m: int, block_n: int, lowest: int | None,
               highest: int | None, group: int, programs: int) -> tuple[list[list[int]], list[float]]:
    """The tiles of each program as words, and each program's cost in key blocks.

    Greedy: inside a group of heads the longest tiles first, each to the program that is done first. A tile costs its
    blocks and one more; a last tile with few rows costs by the consumers that work.
    """
    count = -(-nq // block_m)
    costs = []
    for block in range(count):
        first, end = block_range(block * block_m, nq, nk, block_m, block_n, lowest, highest)
        rows = min(block_m, nq - block * block_m)
        share = max(0.5, -(-rows // 64) * 64 / block_m)
        costs.append((end - first) * share + 1)
    order = sorted(range(count), key=lambda block: (-costs[block], -block))
    heap = [(0.0, program) for program in range(programs)]
    lists: list[list[int]] = [[] for _ in range(programs)]
    for start in range(0, batch * heads, group):
        for block in order:
            for both in range(start, min(start + group, batch * heads)):
                busy, program = heapq.heappop(heap)
                lists[program].append(pack(both // heads, both % heads, block))
                heapq.heappush(heap, (busy + costs[block], program))
    return lists, [busy for busy, _ in sorted(heap, key=lambda entry: entry[1])]


# Measured: one H200, Triton 3.6, torch 2.11, 16,384 tokens in all, hidden size 2048, L2 flushed. TFLOP/s, in brackets
# over the best of cuDNN, FlashAttention-3 (fa3_fwd 0.0.3) and FlashAttention-4 (4.0.0b36):
#                  bfloat16 N 1k  4k           16k          float16 1k   4k           16k
#   128, full      667 (1.062)    775 (1.064)  776 (1.040)  657 (1.107)  757 (1.082)  743 (1.054)
#   causal         521 (1.082)    723 (1.049)  778 (1.040)  510 (1.206)  702 (1.126)  752 (1.087)
#   64, full       483 (1.107)    587 (1.070)  609 (1.022)  489 (1.124)  576 (1.065)  597 (1.029)
#   causal         383 (1.135)    529 (1.078)  600 (1.044)  377 (1.124)  521 (1.117)  590 (1.053)
# The best peer is FlashAttention-3 in bfloat16 at head size 128 and at 64 causal 4k; cuDNN at 64 1k and in float16 at
# 1k; else FlashAttention-4 (this build of FlashAttention-3 has no float16). By switch, at N 4k, bfloat16, full /
# causal (data/h200-ladder, before the masks changed):
#                         flash2     all off    turns      and overlap  and fixed
#   head size 128         531 / 507  673 / 631  669 / 634  686 / 669    746 / 709
#   head size 64          485 / 440  508 / 455  515 / 463  546 / 433    582 / 514
# Beside the plain forward of the same process, per visible pair, head size 128 / 64 (data/h200-shapes, -half; FA4 is
# FlashAttention-4, beside its own plain forward):
#   32 query heads, 8 key heads, N 4k and 16k     1.00 to 1.02 / 1.00 to 1.02
#   window of 1023 keys to the left, N 4k; 16k    0.76 / 0.75; 0.71 / 0.67      FA4 0.78 / 0.73; 0.71 / 0.61
#   4095 to the left, 16k                         0.92 / 0.85                   FA4 0.93 / 0.88
#   1023 to both sides, 16k                       0.80 / 0.67                   FA4 0.81 / 0.74
#   packed, four of 4,096 tokens, full; causal    0.96 / 0.97; 0.96 / 0.99      FA4 0.98 / 0.98; 0.98 / 0.96
#   packed, 117 to 8,192 tokens, beside N 4k      0.96 / 0.98; 0.98 / 1.02      beside 16k 0.95 / 0.93; 0.90 / 0.89
# In absolute terms a window takes 0.85 to 0.99 of FlashAttention-4's time, both sides at head size 64 1.07; packed
# sequences 0.91 to 1.00 of the faster peer's. A tile of 128 queries has nine blocks for the eight of a window of 1023
# (0.89 at most; half blocks at both ends would make it 0.94), masks at both ends, and costs one to two more to begin
# and end. Next: at head size 64 three consumers for long windows (0.90 at 4095, where Triton 3.6 compiles them without
# spills in the loops, and 3.9 with 52).
# What limits it. Head size 128, 4k and 16k: the products, at 0.98 of the rate of one of 8192 cubed (789
# TFLOP/s), causal at 0.92 and 0.99; at 16k full under the power cap (1,845 MHz). Head size 64: the softmax, with
# exponentials at 0.59 of their rate at most (derived) and products at 0.78. N 1k: a tile is 8 blocks and costs about
# one more to begin and end; causal also 12 % hidden pairs in the blocks of the diagonal (derived). Next: at head size
# 64 fewer instructions around the exponentials; at 1k a start under the end of the kernel before, and K and V for two
# programs by one copy (multicast).
# float16 was recorded when none but causal calls at head size 128 were late, with P from 2^-6 of the first maximum on.
# That is gone: of a row of 16,384 tokens it lost all weights below 2^-19, up to 1/32 of the output; now 2^-25, as a
# softmax that is rounded to float16. And where a token takes nearly all attention, so that scores rise by 11 and more,
# each tile would be gone over twice: now that may happen in full calls at head size 64 up to 2,048 keys only, where
# late costs 8 % (448 -> 414 in one process); elsewhere it costs 1.5 to 3 %: D 64 causal 1k 369 -> 362, full 4k 581 ->
# 572, 16k 615 -> 599; D 128 full 4k 733 -> 721. By simulation, normal scores of standard deviation 3 and 4, N 16k,
# full: none and 8 of 12,288 rows are gone over.
#
# What was tried: TFLOP/s at N 1k / 4k / 16k, bfloat16, each beside the kernel without the change, on an earlier form of
# it, with a maximum a block.
#   choice, where                                           predicted    measured
#   output through a buffer of its own, D 128 full          +5%          571 -> 598 at 1k
#   K a block ahead of V in the loading warp, D 128 full    +1%          591 -> 612 / 644 -> 667 / 604 -> 615
#   rescale only when a maximum grew by > 8, D 128 full    +2%          619 -> 639 / 670 -> 702 / 624 -> 666
#   three consumers instead of two, D 64 full               +15%         437 -> 510 / 443 -> 523 at 1k / 4k
#   turns by named barriers, D 128 full                     +2%          704 (mbarriers), 707 (none) -> 712 at 4k
#   turns, three consumers, D 64 full                       0            425 -> 452 / 528 -> 534 / 529 -> 549
#   tile lists from the host, D 128 causal                  a counter's  444 / 601 / 660 (counter) -> 491 / 675 / 680
#   head groups of 16 MB, D 128 causal                      16 to 32 MB  as 32; 64: -1%; 128: -15% at 1k
#   first block of the next tile before this one's end      +3%          487 -> 498 / 671 -> 680 / 688 -> 694, causal
#   half a block on the diagonal for the first consumer     +3% at 1k    453 -> 466 / 596 -> 598 / 626 -> 643
#   Q in registers, D 64, two consumers                     +2%          426 -> 457 / 454 -> 488 / 436 -> 473
#   consumers without rows pass on, D 64 full 1k            +12%         +2%
# Measured with every form in one process, all else as chosen (the first figure of each pair is the form without):
#   the first block's maximum stays, D 128 full             +8 to 12%    608 -> 638 / 683 -> 741 / 667 -> 741
#   the same, D 128 causal                                  +5 to 8%     487 -> 493 / 668 -> 696 / 721 -> 760
#   the same, D 64 full, three consumers                    +8 to 12%    418 -> 448 / 544 -> 579 / 554 -> 585
#   the same, D 64 causal, three consumers                  +8 to 12%    301 -> 316 / 436 -> 506 / 476 -> 580
#   and late, D 128 causal                                  -3%          493 -> 494 / 696 -> 709 / 760 -> 774
#   turns, D 128 full / causal, 4k                          +2%          707 -> 741 / 688 -> 696
#   turns, D 64 full / causal, three consumers, 4k          +2%          568 -> 579 / 483 -> 506
#   two consumers instead of three, D 64 full / causal 1k   0            448 -> 476 / 316 -> 366
#   left of a window: the maximum stays, Q in registers     +15%         512 / 676 at 1023 / 4095 before; 517 / 693
# Of this last form, each commit beside the one before, windows of 1023 (4k) / 4095 (16k) / 1023 to both sides (16k):
#   masks compare registers with constants, D 128           +2%          517 / 693 / 573 -> 525 / 701 / 600
#   the same, D 64                                                       358 / 485 / - -> 368 / 488 / -
#   P of two columns in one register, D 128                 +3%          525 / 701 / 600 -> 537 / 719 / 627
#   the same, D 64                                                       368 / 488 / - -> 387 / 500 / -
#   float16 not late, D 64 full 1k / 4k / 16k               +5 to 10%    423 -> 473 / 553 -> 569 / 574 -> 599
#   the same and the masks, D 64 causal                                  340 -> 364 / 499 -> 514 / -
#   the same and the masks, D 128 full                                   618 -> 648 / 727 -> 754 / 738 -> 771
# and lost:
#   half of a window's last block where the left side       +5%          387 -> 387 / 500 -> 500 (D 64); 719 -> 728 at
#     hides the rest                                                     4095 (D 128), but Triton 3.9 spills 16 to 32
#   the first block masked only where something hides a     +1%          774 -> 754 (D 128 full 4k), 652 -> 636 at 1k;
#     part, by a branch                                                  477 -> 453 (D 64 float16 1k)
#   three consumers for windows, D 64                       +5% at 4095  390 -> 374 / 509 -> 534 / 415 -> 379
#   not late, D 128 causal                                  +3%          729 -> 685; float16 705 -> 698
#   late, D 128 full; D 64 full; D 64 causal                -3%          741 -> 722; 585 -> 581; 580 -> 560 at 16k
#   two consumers, D 64 full / causal 16k                   -5%          585 -> 539 / 580 -> 556
#   Q times the scale beforehand, scores started from -m    +5%          741 -> 764 at 16k full, 760 -> 756 causal; its
#                                                                        LSE is off by 1e-3 (Q rounded): not right
#   blocks of 64 keys, three consumers                      -5%          -17% (D 64), -9% (D 128) at 4k
#   two score blocks in flight, two consumers               +40%, D 64   454 -> 475; D 128 -8% / 0 / +1%
#   every 4th or 8th exponential as a cubic                 +5 to 10%    -7 / -4% (D 128), -18 / -14% (D 64)
#   three stages with the output in Q's buffer, D 128       0            -2%
#   a stride over tiles, or an atomic counter claimed early best         -5 to -15% causal
#   256 keys a block, D 64; Q in registers, three consumers -            spill: not run
