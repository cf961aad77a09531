"""How many query-key pairs a mask leaves, and how a blocked kernel meets them. Closed forms; whole numbers only.

Bottom-right alignment: with Δ = nk − nq, query i sees keys i + Δ − left … i + Δ + right (a side of −1 has no limit).
The interval moves by one key a row, so the rows of one block see one contiguous run of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiler.spec import Mask


def ceil_div(a: int, b: int) -> int:
    """⌈a / b⌉ for whole numbers, b > 0."""
    return -(-a // b)


def _triangle(y: int) -> int:
    """Σ max(x, 0) over all whole x < y."""
    return y * (y - 1) // 2 if y > 0 else 0


def _clamped_sum(rows: int, offset: int, top: int) -> int:
    """Σ min(max(i + offset, 0), top) over i = 0 … rows − 1."""
    rising = _triangle(offset + rows) - _triangle(offset)
    above = _triangle(offset + rows - top) - _triangle(offset - top)
    return rising - above


def visible_pairs(mask: Mask, nq: int, nk: int) -> int:
    """Pairs (query, key) of one head that the mask leaves visible: Σ over queries of the length of its key interval."""
    delta = nk - nq
    ends = nq * nk if mask.right < 0 else _clamped_sum(nq, delta + mask.right + 1, nk)
    starts = 0 if mask.left < 0 else _clamped_sum(nq, delta - mask.left, nk)
    return ends - starts


def pairs_within(mask: Mask, nq: int, nk: int, rows: range, columns: range) -> int:
    """Visible pairs of one head in a rectangle of the score matrix: keys below its end less those below its start."""
    def below(top: int) -> int:
        offset = rows.start + nk - nq
        ends = len(rows) * top if mask.right < 0 else _clamped_sum(len(rows), offset + mask.right + 1, top)
        starts = 0 if mask.left < 0 else _clamped_sum(len(rows), offset - mask.left, top)
        return ends - starts

    return below(columns.stop) - below(columns.start)


def rows_that_see(mask: Mask, nq: int, nk: int) -> int:
    """Queries of one head that see at least one key: those with i + Δ + right ≥ 0."""
    if nk == 0:
        return 0
    return nq if mask.right < 0 else max(0, min(nq, nk + mask.right))


def keys_seen(mask: Mask, nq: int, nk: int) -> int:
    """Keys of one head that at least one query sees: from the first key of the first query to the last key of all."""
    if nq == 0:
        return 0
    return nk if mask.left < 0 else min(nk, nq + mask.left)


def key_interval(mask: Mask, first: int, last: int, nq: int, nk: int) -> tuple[int, int]:
    """[low, high): the keys that the rows first … last (inclusive) see together."""
    delta = nk - nq
    low = 0 if mask.left < 0 else min(nk, max(0, first + delta - mask.left))
    high = nk if mask.right < 0 else min(nk, max(0, last + delta + mask.right + 1))
    return low, max(low, high)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The BM × BN blocks of one head's score matrix, as an outer loop over query blocks meets them.

    full: every pair visible, no mask needed; crossing: some visible, or the last key block is cut; skipped: none.
    key_rows: Σ over query blocks of the key rows in the blocks it visits, rows past nk not counted.
    real_pairs: pairs of the visited blocks inside the Nq × Nk matrix, masked ones included.
    row_visits: Σ over query blocks of BM · key blocks visited (each visit rescales each of the BM rows once).
    """

    block_m: int
    block_n: int
    full: int
    crossing: int
    skipped: int
    key_rows: int
    real_pairs: int

    @property
    def visited(self) -> int:
        return self.full + self.crossing

    @property
    def computed_pairs(self) -> int:
        """Pairs that are computed: whole blocks, masked and padded pairs included."""
        return self.visited * self.block_m * self.block_n

    @property
    def row_visits(self) -> int:
        return self.visited * self.block_m


def count_blocks(mask: Mask, nq: int, nk: int, block_m: int, block_n: int) -> Blocks:
    """Classify the blocks of one head.

    Key block j of query block i (rows r₀ … r₁) is visited where it meets the keys that r₀ … r₁ see together, full where
    it lies between the last row's first key and the first row's last key. For a causal mask that is the usual rule:
    full if (j+1)·BN − 1 ≤ i·BM + Δ, skipped if j·BN > r₁ + Δ.
    """
    full = visited = key_rows = real_pairs = 0
    row_blocks, key_blocks = ceil_div(nq, block_m), ceil_div(nk, block_n)
    for i in range(row_blocks):
        first, last = i * block_m, min((i + 1) * block_m, nq) - 1
        low, high = key_interval(mask, first, last, nq, nk)
        if high == low:
            continue
        begin, end = low // block_n, ceil_div(high, block_n)
        visited += end - begin
        keys = min(end * block_n, nk) - begin * block_n
        key_rows += keys
        real_pairs += (last - first + 1) * keys
        sure_low = key_interval(mask, last, last, nq, nk)[0]
        sure_high = key_interval(mask, first, first, nq, nk)[1]
        full += max(0, sure_high // block_n - ceil_div(sure_low, block_n))
    return Blocks(block_m, block_n, full, visited - full, row_blocks * key_blocks - visited, key_rows, real_pairs)
