"""The Hopper forward: programs that stay, one an SM, and walk lists of tiles.

Sources: Shah et al. 2024, arXiv 2407.08608 (FlashAttention-3); the schedule is kernels/hopper.py's, block for block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from profiler.model import backward, forward
from profiler.model.counts import ceil_div
from profiler.model.pattern import Pattern
from profiler.model.prediction import StagePrediction
from profiler.spec import AttentionShape, Mask, RunConfig

PROGRAMS = 132  # one an SM, of an H100 or H200; what depends on it is 0.1% of the FLOPs
UNIT = 64  # query rows of a warpgroup
RESCALE_LANES = 8  # a row's maximum and sum lie twice in each of four lanes, and each place evaluates its alpha
GROUP_BYTES = 16 << 20  # keys and values of the heads that are worked on together


@dataclass(frozen=True, slots=True)
class Form:
    """The compiled form, from the parameters that the kernel reports; what they leave out is as the kernel chooses.

    lowest, highest: query i sees keys i + lowest to i + highest, None: no side. ahead: the consumers share every block,
    and multiply the next tile's first block before they write this one. half: the first of them sees half of the block
    on the diagonal. edge: a side may cross several blocks. fixed: the first block's maximum stays: no alpha. narrow: P
    is rounded to float16 before it is looked at, so a first block of few keys is no measure alone.
    """

    consumers: int
    unit: int
    block_n: int
    lowest: int | None
    highest: int | None
    ahead: bool
    edge: bool
    fixed: bool
    narrow: bool

    @classmethod
    def of(cls, config: RunConfig) -> Form:
        s, p, mask = config.shape, config.parameters, Mask.parse(config.shape.mask)
        block_m, shift = int(p["block_m"]), s.nk - s.nq
        consumers = block_m // UNIT if block_m % UNIT == 0 else 1
        highest = shift + mask.right if mask.right >= 0 else None
        crossed = highest is not None and (mask.right > 0 or highest < 0 or highest % UNIT != 0)
        fixed = bool(p.get("fixed", s.head_dim <= 128))
        sided = highest is not None or mask.left >= 0
        late = bool(p.get("late", s.dtype == "fp16" and (sided or s.head_dim > 64 or s.nk > 2048)))
        return cls(consumers, block_m // consumers, int(p["block_n"]), shift - mask.left if mask.left >= 0 else None,
                   highest, bool(p.get("ahead", False)), bool(p.get("edge", crossed)), fixed,
                   s.dtype == "fp16" and fixed and not late)

    @property
    def left_out(self) -> int:
        """Columns of the block on the diagonal that the first consumer leaves out."""
        return self.block_n // 2 if self.ahead and self.highest is not None and not self.edge else 0

    def tile(self, row: int, s: AttentionShape) -> tuple[int, int]:
        """First and one past the last key block of the tile from ``row``: at least one, so that rows are written."""
        rows = min(row + self.consumers * self.unit, s.nq)
        end = s.nk if self.highest is None else min(s.nk, rows + self.highest)
        first = 0 if self.lowest is None else max(0, row + self.lowest) // self.block_n
        return first, max(ceil_div(end, self.block_n), first + 1)

    def last(self, top: int, first: int, end: int, nq: int) -> int:
        """One past the last block of the consumer whose rows begin at ``top``."""
        if self.ahead or self.edge:
            return end
        if top >= nq:
            return first + 1
        return end if self.highest is None else min(end, ceil_div(top + self.unit + self.highest, self.block_n))

    def masked_steps(self, top: int, row: int, first: int, last: int) -> int:
        """Steps after the first block that look for a maximum although it is fixed: those at a side that may cross."""
        count, clean, left = last - first, 1, last - first
        if self.highest is not None:
            clean = min(max(last - max(row + self.highest, 0) // self.block_n, 1), count)
        if self.lowest is not None:
            left = max(count - max(ceil_div(top + self.unit - 1 + self.lowest, self.block_n) - first, 0), clean)
        return clean - 1 + count - left

    def looks_ahead(self, first: int, last: int, nk: int) -> bool:
        """Whether a consumer multiplies its second block twice: for its maxima too, where the first has less than half
        of its keys."""
        if not self.narrow or last - first < 2 or self.highest is not None or self.lowest is not None:
            return False
        return nk - (last - 1) * self.block_n < self.block_n // 2


def attention(config: RunConfig) -> tuple[StagePrediction, ...]:
    """The forward: Q once a tile of 64 rows a consumer, the K and V rows of the blocks that a tile visits, O and LSE.

    FLOPs as the kernel issues them: whole blocks of 64 rows, a block for rows that are not there, half of the scores on
    the diagonal for the first consumer of a causal pair, and at the end of each program the first scores of a tile that
    does not come. Exponentials: of those scores; with a maximum a block also 8 alphas a row and step after the first.
    A row whose sum outgrows 2^8 raises its maximum, and one beyond 2^72, of float16 that is rounded before it is looked
    at beyond 65,504, is done again: neither is counted.
    """
    s, p = config.shape, config.parameters
    if not (p.get("block_m") and p.get("block_n") and s.nq and s.nk) or s.dtype == "fp8":
        return forward.fused(config)
    form, heads = Form.of(config), s.batch * s.heads
    must, writes = forward.compulsory(config), forward.output(config)
    row_bytes, columns = s.head_dim * s.element_bytes, backward.width(config)
    keys = scores = again = products = real = alphas = rows = 0
    for top, row, first, end in _consumers(form, s):
        if top == row:
            keys += max(0, min(end * form.block_n, s.nk) - first * form.block_n)
        last, cut = form.last(top, first, end, s.nq), form.left_out if top == row else 0
        scores += form.unit * ((last - first) * form.block_n - cut)
        again += form.unit * form.block_n * form.looks_ahead(first, last, s.nk)
        products += form.unit * (last - first) * form.block_n
        inside = min(last * form.block_n - cut, s.nk) - first * form.block_n
        real += max(0, min(form.unit, s.nq - top)) * max(0, inside)
        steps = last - first - 1 if not form.fixed else form.masked_steps(top, row, first, last) if form.edge else 0
        alphas, rows = alphas + form.unit * steps, rows + form.unit
    tiles = ceil_div(s.nq, form.consumers * form.unit)
    next_scores = form.unit * (form.consumers * form.block_n - form.left_out)
    after = min(PROGRAMS, heads * tiles) * next_scores if form.ahead else 0
    pattern, moved = Pattern.of(config), heads * keys * row_bytes
    blocks = pattern.tiles(form.consumers * form.unit, form.block_n)
    return (StagePrediction(
        "attention", {name: must[name] for name in "QKV"}, writes, l2_to_sm={"Q": s.q_bytes, "K": moved, "V": moved},
        sm_to_l2=writes, refetch={name: max(0, moved - must[name]) for name in "KV"},
        flops_visible=4 * heads * pattern.pairs * s.head_dim,
        flops_computed=2 * columns * (heads * (scores + again + products) + after), exponentials=heads * scores,
        rescales=heads * alphas * RESCALE_LANES, overhead_ops=heads * rows * forward.RESCALE_LANES,
        blocks=replace(blocks, real_pairs=real), heads=heads, note=said(config)),)


def _consumers(form: Form, s: AttentionShape) -> Iterator[tuple[int, int, int, int]]:
    """Of one head: first row of each consumer and of its tile, first and one past the last block of the tile."""
    for row in range(0, s.nq, form.consumers * form.unit):
        first, end = form.tile(row, s)
        for consumer in range(form.consumers):
            yield row + consumer * form.unit, row, first, end


def tiles_together(config: RunConfig) -> int:
    """Query heads worked on together: one where all tiles are alike, else as many as keep 16 MB of K and V, at least 4;
    always a divisor of all."""
    s, form = config.shape, Form.of(config)
    heads = s.batch * s.heads
    if form.highest is None and s.nq % (form.consumers * form.unit) == 0:
        return 1
    a_head = 2 * s.nk * s.head_dim * s.element_bytes // (s.heads // s.kv_heads)
    divisors = [d for d in range(1, heads + 1) if heads % d == 0]
    return max([d for d in divisors if d * a_head <= GROUP_BYTES] + [next((d for d in divisors if d >= 4), heads)])


def balance(config: RunConfig, programs: int = PROGRAMS) -> float:
    """Mean over greatest cost of the programs' lists: 1 where all are done at once.

    A tile costs its key blocks and one more, with few rows by the consumers that work; the longest of a group of heads
    come first, each to the program that is done first. programs: at most, one an SM.
    """
    s, form = config.shape, Form.of(config)
    block_m = form.consumers * form.unit
    costs = []
    for row in range(0, s.nq, block_m):
        first, end = form.tile(row, s)
        share = max(0.5, ceil_div(min(block_m, s.nq - row), form.unit) * form.unit / block_m)
        costs.append((end - first) * share + 1)
    costs.sort(reverse=True)
    return _evenness(tuple(costs), s.batch * s.heads, tiles_together(config), programs)


@lru_cache(maxsize=1024)  # a page predicts one call several times, and this is most of it
def _evenness(costs: tuple[float, ...], heads: int, group: int, programs: int) -> float:
    """The balance of lists filled with tiles of ``costs``, the greatest first, of each of ``heads`` heads."""
    busy = [0.0] * min(programs, heads * len(costs))
    for start in range(0, heads, group):
        for cost in costs:
            for _ in range(min(group, heads - start)):
                heapq.heapreplace(busy, busy[0] + cost)
    return sum(busy) / len(busy) / max(busy)


MOST_TILES = 1 << 16  # whose lists are made: beyond it nothing is said of them


def said(config: RunConfig) -> str:
    """How evenly the lists are filled, as a note; "" for too many tiles."""
    s, block_m = config.shape, int(config.parameters["block_m"])
    tiles = s.batch * s.heads * ceil_div(s.nq, block_m)
    if tiles > MOST_TILES:
        return ""
    share = f"{100 * balance(config):.1f}% of the time of the longest"
    return f"{min(PROGRAMS, tiles)} programs stay, one an SM; on average they work {share}"
