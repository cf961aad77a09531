"""Closed forms against enumeration of every element and every block, over random shapes and masks."""

import random

import pytest

from profiler.model.counts import count_blocks, keys_seen, rows_that_see, visible_pairs
from profiler.spec import Mask


def shapes(seed: int, count: int):
    draw = random.Random(seed)
    sides = (-1, 0, 1, 2, 5, 17, 60)
    for _ in range(count):
        yield (Mask(draw.choice(sides), draw.choice(sides)), draw.randrange(0, 40), draw.randrange(0, 40),
               draw.choice((1, 2, 4, 8, 16)), draw.choice((1, 2, 4, 8, 16)))


def element_grid(mask: Mask, nq: int, nk: int) -> list[list[bool]]:
    """The definition, element by element: i + nk − nq − left ≤ j ≤ i + nk − nq + right."""
    return [[(mask.left < 0 or j >= i + nk - nq - mask.left) and (mask.right < 0 or j <= i + nk - nq + mask.right)
             for j in range(nk)] for i in range(nq)]


@pytest.mark.parametrize("seed", range(4))
def test_pairs_rows_and_keys(seed):
    for mask, nq, nk, _, _ in shapes(seed, 400):
        grid = element_grid(mask, nq, nk)
        where = f"{mask} nq={nq} nk={nk}"
        assert visible_pairs(mask, nq, nk) == sum(map(sum, grid)), where
        assert rows_that_see(mask, nq, nk) == sum(map(any, grid)), where
        assert keys_seen(mask, nq, nk) == sum(any(row[j] for row in grid) for j in range(nk)), where


@pytest.mark.parametrize("seed", range(4))
def test_blocks(seed):
    for mask, nq, nk, bm, bn in shapes(seed + 100, 400):
        grid = element_grid(mask, nq, nk)
        full = crossing = skipped = key_rows = real_pairs = 0
        for top in range(0, nq, bm):
            for left in range(0, nk, bn):
                cells = [grid[i][j] for i in range(top, min(top + bm, nq)) for j in range(left, min(left + bn, nk))]
                if not any(cells):
                    skipped += 1
                    continue
                key_rows += min(bn, nk - left)
                real_pairs += len(cells)
                whole = left + bn <= nk and all(cells)
                full, crossing = full + whole, crossing + (not whole)
        blocks = count_blocks(mask, nq, nk, bm, bn)
        found = (blocks.full, blocks.crossing, blocks.skipped, blocks.key_rows, blocks.real_pairs)
        assert found == (full, crossing, skipped, key_rows, real_pairs), f"{mask} nq={nq} nk={nk} {bm}×{bn}"
        assert blocks.computed_pairs == (full + crossing) * bm * bn


def test_causal_4096_in_blocks_of_128_by_64():
    # 32 query blocks; block i visits 2(i + 1) key blocks: 2·(1 + … + 32) = 1056, the last two cross the diagonal
    blocks = count_blocks(Mask(-1, 0), 4096, 4096, 128, 64)
    assert (blocks.full, blocks.crossing, blocks.skipped) == (1056 - 64, 64, 32 * 64 - 1056)


def test_a_long_sequence_is_exact():
    n = 2**20
    assert visible_pairs(Mask(-1, 0), n, n) == n * (n + 1) // 2
