"""Which pairs one head sees: a mask, and where given a block mask on top of it. Whole numbers, exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profiler.errors import BadInput
from profiler.model.counts import (
    Blocks,
    ceil_div,
    count_blocks,
    key_interval,
    keys_seen,
    pairs_within,
    rows_that_see,
    visible_pairs,
)
from profiler.spec import Mask, RunConfig

BLOCK_SIZE = 128  # of a block mask, unless the parameter block_size says otherwise
MOST_BLOCKS = 1 << 20  # of a block mask: each is looked at


@dataclass(frozen=True, slots=True)
class Pattern:
    """mask over nq queries and nk keys; kept: None, or for each block of ``size`` queries which blocks of ``size`` keys
    are not skipped (True)."""

    mask: Mask
    nq: int
    nk: int
    kept: tuple[tuple[bool, ...], ...] | None = None
    size: int = BLOCK_SIZE

    @classmethod
    def of(cls, config: RunConfig) -> Pattern:
        """From the shape and the parameters block_mask and block_size.

        block_mask: a list of rows, one a block of queries. A row is a list of 0 or 1, one a block of keys, or a count:
        so many whole blocks of keys are kept, which ones does not matter then. Raises BadInput.
        """
        s, given = config.shape, config.parameters.get("block_mask")
        mask, size = Mask.parse(s.mask), int(config.parameters.get("block_size", BLOCK_SIZE))
        if given is None:
            return cls(mask, s.nq, s.nk)
        if size < 1:
            raise BadInput(f"block_size: expected a positive whole number, got {size}.")
        rows, columns = ceil_div(s.nq, size), ceil_div(s.nk, size)
        if len(given) != rows or rows * columns > MOST_BLOCKS:
            raise BadInput(f"block_mask: expected {rows} rows and at most {MOST_BLOCKS:,} blocks, got {len(given)} "
                           f"rows of {columns}.")
        kept = []
        for row in given:
            if isinstance(row, int):
                if mask != Mask() or s.nk % size or not 0 <= row <= columns:
                    raise BadInput(f"block_mask: expected counts of 0 to {columns} whole blocks under a full mask, got "
                                   f"{row} under {s.mask} with {s.nk} keys; give the blocks themselves.")
                row = [column < row for column in range(columns)]
            if len(row) != columns:
                raise BadInput(f"block_mask: expected {columns} blocks in every row, got {len(row)}.")
            kept.append(tuple(map(bool, row)))
        return cls(mask, s.nq, s.nk, tuple(kept), size)

    @property
    def pairs(self) -> int:
        """Visible pairs of one head."""
        if self.kept is None:
            return visible_pairs(self.mask, self.nq, self.nk)
        return sum(pairs_within(self.mask, self.nq, self.nk, rows, columns) for rows, columns in self._blocks())

    @property
    def rows(self) -> int:
        """Queries of one head that see a key."""
        if self.kept is None:
            return rows_that_see(self.mask, self.nq, self.nk)
        return sum(any(low < stop and start < high for start, stop in self._kept_keys(row))
                   for row in range(self.nq) for low, high in [key_interval(self.mask, row, row, self.nq, self.nk)])

    @property
    def keys(self) -> int:
        """Keys of one head that a query sees."""
        if self.kept is None:
            return keys_seen(self.mask, self.nq, self.nk)
        return self.transposed().rows

    def transposed(self) -> Pattern:
        """Keys as rows: query i sees key j where j − Δ − right ≤ i ≤ j − Δ + left, the sides exchanged."""
        kept = None if self.kept is None else tuple(
            tuple(row[column] for row in self.kept) for column in range(ceil_div(self.nk, self.size)))
        return Pattern(Mask(self.mask.right, self.mask.left), self.nk, self.nq, kept, self.size)

    def tiles(self, block_m: int, block_n: int) -> Blocks:
        """Blocks of one head as a kernel with BM × BN tiles meets them: visited where a pair of the tile is seen."""
        if self.kept is None:
            return count_blocks(self.mask, self.nq, self.nk, block_m, block_n)
        full = visited = key_rows = real_pairs = 0
        across = ceil_div(self.nk, block_n)
        for top in range(0, self.nq, block_m):
            rows = range(top, min(top + block_m, self.nq))
            for left in range(0, self.nk, block_n):
                columns = range(left, min(left + block_n, self.nk))
                seen = sum(pairs_within(self.mask, self.nq, self.nk, r, c)
                           for r, c in self._blocks(rows, columns))
                if seen:
                    visited, key_rows = visited + 1, key_rows + len(columns)
                    real_pairs += len(rows) * len(columns)
                    full += seen == len(rows) * block_n
        return Blocks(block_m, block_n, full, visited - full, ceil_div(self.nq, block_m) * across - visited, key_rows,
                      real_pairs)

    def _kept_keys(self, row: int) -> Iterator[tuple[int, int]]:
        """[start, stop) of the kept key blocks of a query."""
        assert self.kept is not None
        for column, keep in enumerate(self.kept[row // self.size]):
            if keep:
                yield column * self.size, min((column + 1) * self.size, self.nk)

    def _blocks(self, rows: range | None = None, columns: range | None = None) -> Iterator[tuple[range, range]]:
        """The kept blocks, cut to ``rows`` × ``columns``."""
        assert self.kept is not None
        rows, columns = rows or range(self.nq), columns or range(self.nk)
        for i in range(rows.start // self.size, ceil_div(rows.stop, self.size)):
            cut = range(max(rows.start, i * self.size), min(rows.stop, (i + 1) * self.size))
            for j in range(columns.start // self.size, ceil_div(columns.stop, self.size)):
                if self.kept[i][j]:
                    yield cut, range(max(columns.start, j * self.size), min(columns.stop, (j + 1) * self.size))
