"""What DRAM must give again where the keys and values in flight exceed the L2: predicted from the order of programs.

Programs start in the order of their numbers, as many at a time as the GPU holds (a wave: SMs · programs an SM holds).
Those of a wave walk the rows of their heads side by side, so a row that several of them read crosses from DRAM once a
wave. The next wave finds it in L2 only if all that was touched in between fits: what the wave walked, in as many copies
as the L2 may hold (`prediction.L2_COPIES`), and what streamed past, the programs' own rows in and out. Else every wave
reads what it walks again. Nothing is fitted; the replacement policy of the hardware is not public, so the truth may lie
anywhere from `once` to `each_wave`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, repeat

from profiler.model.counts import ceil_div, key_interval
from profiler.model.hopper import tiles_together
from profiler.model.pattern import Pattern
from profiler.model.prediction import L2_COPIES
from profiler.spec import AttentionShape, RunConfig

# flash2 forward works on as many key heads at a time as have this much of K and V, at least 4, but on no more than half
# the L2 holds. That cap came after the profiles with these code hashes were recorded: their kernels had none.
L2_SHARE_BYTES = 16 << 20
UNCAPPED = frozenset(("ff6b80eeb97df993", "3f674d79f4636925"))  # `code_hash` of profile.json
MOST_PROGRAMS = 1 << 20  # whose order is walked: beyond it nothing is foreseen
Rows = tuple[int, int]  # [first, last) row


@dataclass(frozen=True, slots=True)
class WaveReads:
    """DRAM reads of a stage in bytes. once: each byte once; expected: what stays in L2 is not read again, what does not
    is, a wave; each_wave: nothing stays from one wave to the next."""

    waves: int
    once: int
    expected: int
    each_wave: int


def wave_reads(config: RunConfig, stage: str, once: int, slots: int, l2_size_bytes: int, *,
               code_hash: str = "") -> WaveReads | None:
    """For the stages of flash2 that walk rows, "attention", "keys" and "queries", and the forward of hopper, whose
    programs stay: a wave is then a tile of each; None for others, unknown tiles and more than MOST_PROGRAMS programs.

    once: compulsory reads of the stage. slots: programs that the GPU holds at a time. code_hash: of the kernels that
    ran, as the profile holds it, "" for today's: the forward's order of programs has changed once. Of what is walked,
    K and V (Q and dO in the pass over keys), a row is 2·D·e bytes. Where programs of a wave walk rows of one head that
    lie apart (a window, and heads that share keys), those between are counted with them.
    """
    p, side = config.parameters, {"keys": "key_", "queries": "query_"}.get(stage, "")
    m, n = p.get(f"{side}block_m"), p.get(f"{side}block_n")
    modelled = config.implementation == "flash2" or (config.implementation == "hopper" and stage == "attention")
    if not modelled or stage not in ("attention", "keys", "queries") or not (m and n) or slots < 1:
        return None
    pattern, own = Pattern.of(config), int(m)
    walk_block = int(n)
    if stage == "keys":
        pattern, own, walk_block = pattern.transposed(), int(n), int(m)
    if ceil_div(pattern.nq, own) * config.shape.batch * config.shape.heads > MOST_PROGRAMS:
        return None
    row = 2 * config.shape.head_dim * config.shape.element_bytes
    intervals = [_walked(pattern, top, own, walk_block) for top in range(0, pattern.nq, own)]
    half = 0 if code_hash in UNCAPPED else l2_size_bytes // 2
    runs = _order(config, stage, intervals, half)
    programs = list(chain.from_iterable(zip(heads, repeat(rows)) for heads, rows in runs))
    if len(programs) <= slots:
        return WaveReads(1 if programs else 0, once, once, once)
    # Where the rows of each later program of a head lie within those of its first, the first says what a wave walks.
    ordered = stage == "attention" or (stage == "queries" and config.shape.heads == config.shape.kv_heads)
    nested = ordered and all(a[0] == b[0] and a[1] <= b[1] for a, b in pairwise(intervals))
    count = config.shape.heads // config.shape.kv_heads if stage == "keys" else 1  # heads that a program walks
    seen: dict[int, Rows] = {}  # head → rows of it that an earlier wave read
    before: dict[int, Rows] = {}
    walked_before = again_expected = again_always = 0
    for start in range(0, len(programs), slots):
        wave = programs[start:start + slots]
        span: dict[int, Rows] = dict(reversed(wave)) if nested else {}
        for first, rows in () if nested else wave:
            for head in range(first, first + count if rows[1] > rows[0] else first):
                span[head] = _union(span.get(head), rows)
        span = {head: rows for head, rows in span.items() if rows[1] > rows[0]}
        walked = row * sum(high - low for low, high in span.values())
        between = L2_COPIES * (walked + walked_before) // 2 + row * own * len(wave)
        for head, rows in span.items():
            known = _common(rows, seen.get(head))
            again_always += row * known
            again_expected += row * (known - (_common(rows, before.get(head)) if between <= l2_size_bytes else 0))
            seen[head] = _union(seen.get(head), rows)
        before, walked_before = span, walked
    return WaveReads(ceil_div(len(programs), slots), once, once + again_expected, once + again_always)


def _order(config: RunConfig, stage: str, intervals: list[Rows], half: int) -> Iterator[tuple[Iterable[int], Rows]]:
    """Programs in the order of their numbers, those of the same rows together: the first head of each, and its rows.
    Heads are those of the walked tensors. half: of the L2, 0: no cap."""
    s = config.shape
    group, heads = s.heads // s.kv_heads, s.batch * s.heads
    if stage == "keys":
        for head in range(s.batch * s.kv_heads):
            yield from (([head * group], rows) for rows in intervals)
    elif stage == "queries":
        for head in range(heads):
            yield from (([head // group], rows) for rows in reversed(intervals))
    else:
        together = tiles_together(config) if config.implementation == "hopper" else heads_together(s, half) * group
        for first in range(0, heads, together):
            here = [head // group for head in range(first, min(first + together, heads))]
            yield from ((here, rows) for rows in reversed(intervals))  # longest rows first, over the heads of a group


def heads_together(s: AttentionShape, half: int) -> int:
    """Key heads that flash2 forward works on at a time. half: bytes of half the L2, 0 for no cap."""
    a_head = max(1, 2 * s.nk * s.head_dim * s.element_bytes)
    wanted = max(4, L2_SHARE_BYTES // a_head)
    return max(1, min(wanted, half // a_head)) if half else wanted


def _walked(pattern: Pattern, top: int, own: int, block: int) -> Rows:
    """[first, last) of the rows that a program walks, whole blocks, from the first one it visits to the last."""
    low, high = key_interval(pattern.mask, top, min(top + own, pattern.nq) - 1, pattern.nq, pattern.nk)
    return (low // block * block, min(ceil_div(high, block) * block, pattern.nk)) if high > low else (0, 0)


def _union(a: Rows | None, b: Rows) -> Rows:
    return (min(a[0], b[0]), max(a[1], b[1])) if a else b


def _common(a: tuple[int, int], b: Rows | None) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0])) if b else 0
