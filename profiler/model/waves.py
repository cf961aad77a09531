"""What DRAM must give again where the keys and values in flight exceed the L2: predicted from the order of programs.

Programs start in the order of their numbers, as many at a time as the GPU holds (a wave: SMs · programs an SM holds).
Those of a wave walk the rows of their heads side by side, so a row that several of them read crosses from DRAM once a
wave. The next wave finds it in L2 only if all that was touched in between fits: what the wave walked, in as many copies
as the L2 may hold (`prediction.L2_COPIES`), and what streamed past, the programs' own rows in and out. Else every wave
reads what it walks again. Nothing is fitted; the replacement policy of the hardware is not public, so the truth may lie
anywhere from `once` to `each_wave`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profiler.model.counts import ceil_div, key_interval
from profiler.model.pattern import Pattern
from profiler.model.prediction import L2_COPIES
from profiler.spec import AttentionShape, RunConfig

# flash2 forward works on as many key heads at a time as have this much of K and V, at least 4, and since CAPPED_SINCE
# on no more than half the L2 holds.
L2_SHARE_BYTES = 16 << 20
CAPPED_SINCE = "2026-11-30T06:55:29"
Program = tuple[int, int, int, int]  # first head whose rows it walks, number of heads, [first, last) row


@dataclass(frozen=True, slots=True)
class WaveReads:
    """DRAM reads of a stage in bytes. once: each byte once; expected: what stays in L2 is not read again, what does not
    is, a wave; each_wave: nothing stays from one wave to the next."""

    waves: int
    once: int
    expected: int
    each_wave: int


def wave_reads(config: RunConfig, stage: str, once: int, slots: int, l2_size_bytes: int, *,
               created: str = "") -> WaveReads | None:
    """For the stages of flash2 that walk rows, "attention", "keys" and "queries"; None for others and unknown tiles.

    once: compulsory reads of the stage. slots: programs that the GPU holds at a time. created: when the profile was
    made (ISO 8601, UTC), "" for now: the forward's order of programs has changed once. Of what is walked, K and V (Q
    and dO in the pass over keys), a row is 2·D·e bytes.
    """
    p, side = config.parameters, {"keys": "key_", "queries": "query_"}.get(stage, "")
    m, n = p.get(f"{side}block_m"), p.get(f"{side}block_n")
    if config.implementation != "flash2" or stage not in ("attention", "keys", "queries") or not (m and n) or slots < 1:
        return None
    pattern, own = Pattern.of(config), int(m)
    walk_block = int(n)
    if stage == "keys":
        pattern, own, walk_block = pattern.transposed(), int(n), int(m)
    row = 2 * config.shape.head_dim * config.shape.element_bytes
    intervals = [_walked(pattern, top, own, walk_block) for top in range(0, pattern.nq, own)]
    half = 0 if "" < created < CAPPED_SINCE else l2_size_bytes // 2
    programs = list(_order(config, stage, intervals, half))
    seen: dict[int, tuple[int, int]] = {}  # head → rows of it that an earlier wave read
    before: dict[int, tuple[int, int]] = {}
    walked_before = again_expected = again_always = 0
    for start in range(0, len(programs), slots):
        wave = programs[start:start + slots]
        span: dict[int, tuple[int, int]] = {}
        for first, count, low, high in wave:
            for head in range(first, first + count):
                if high > low:
                    span[head] = _union(span.get(head), (low, high))
        walked = row * sum(high - low for low, high in span.values())
        between = L2_COPIES * (walked + walked_before) // 2 + row * own * len(wave)
        for head, rows in span.items():
            known = _common(rows, seen.get(head))
            again_always += row * known
            again_expected += row * (known - (_common(rows, before.get(head)) if between <= l2_size_bytes else 0))
            seen[head] = _union(seen.get(head), rows)
        before, walked_before = span, walked
    return WaveReads(ceil_div(len(programs), slots), once, once + again_expected, once + again_always)


def _order(config: RunConfig, stage: str, intervals: list[tuple[int, int]], half: int) -> Iterator[Program]:
    """Programs in the order of their numbers. Heads are those of the walked tensors. half: of the L2, 0: no cap."""
    s = config.shape
    group, heads, blocks = s.heads // s.kv_heads, s.batch * s.heads, range(len(intervals))
    if stage == "keys":
        for head in range(s.batch * s.kv_heads):
            yield from ((head * group, group, *intervals[block]) for block in blocks)
    elif stage == "queries":
        for head in range(heads):
            yield from ((head // group, 1, *intervals[block]) for block in reversed(blocks))
    else:
        together = heads_together(s, half) * group
        for first in range(0, heads, together):
            here = range(first, min(first + together, heads))
            for block in reversed(blocks):  # longest rows first, over the heads of a group
                yield from ((head // group, 1, *intervals[block]) for head in here)


def heads_together(s: AttentionShape, half: int) -> int:
    """Key heads that flash2 forward works on at a time. half: bytes of half the L2, 0 for no cap."""
    a_head = max(1, 2 * s.nk * s.head_dim * s.element_bytes)
    wanted = max(4, L2_SHARE_BYTES // a_head)
    return max(1, min(wanted, half // a_head)) if half else wanted


def _walked(pattern: Pattern, top: int, own: int, block: int) -> tuple[int, int]:
    """[first, last) of the rows that a program walks, whole blocks, from the first one it visits to the last."""
    low, high = key_interval(pattern.mask, top, min(top + own, pattern.nq) - 1, pattern.nq, pattern.nk)
    return (low // block * block, min(ceil_div(high, block) * block, pattern.nk)) if high > low else (0, 0)


def _union(a: tuple[int, int] | None, b: tuple[int, int]) -> tuple[int, int]:
    return (min(a[0], b[0]), max(a[1], b[1])) if a else b


def _common(a: tuple[int, int], b: tuple[int, int] | None) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0])) if b else 0
