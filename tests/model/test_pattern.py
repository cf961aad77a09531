"""Masks, block masks and tiles against enumeration of every element, over shapes that Hypothesis looks for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.errors import BadInput
from profiler.model.counts import ceil_div
from profiler.model.pattern import Pattern
from profiler.spec import AttentionShape, Mask, RunConfig

SIDES = st.sampled_from((-1, 0, 1, 3, 9, 40))
TILES = st.sampled_from((1, 2, 3, 4, 8, 16))


@st.composite
def patterns(draw) -> Pattern:
    nq, nk, size = draw(st.integers(0, 24)), draw(st.integers(0, 24)), draw(st.sampled_from((1, 2, 4, 8)))
    mask = Mask(draw(SIDES), draw(SIDES))
    if draw(st.booleans()):
        return Pattern(mask, nq, nk)
    rows, columns = ceil_div(nq, size), ceil_div(nk, size)
    bits = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return Pattern(mask, nq, nk, tuple(tuple(bits[r * columns:(r + 1) * columns]) for r in range(rows)), size)


def grid(p: Pattern) -> list[list[bool]]:
    """The definition, element by element."""
    return [[(p.mask.left < 0 or j >= i + p.nk - p.nq - p.mask.left)
             and (p.mask.right < 0 or j <= i + p.nk - p.nq + p.mask.right)
             and (p.kept is None or p.kept[i // p.size][j // p.size]) for j in range(p.nk)] for i in range(p.nq)]


@settings(deadline=None)
@given(patterns())
def test_pairs_rows_and_keys(p):
    seen = grid(p)
    assert p.pairs == sum(map(sum, seen))
    assert p.rows == sum(map(any, seen))
    assert p.keys == sum(any(row[j] for row in seen) for j in range(p.nk))
    assert grid(p.transposed()) == [[seen[i][j] for i in range(p.nq)] for j in range(p.nk)]


@settings(deadline=None)
@given(patterns(), TILES, TILES)
def test_tiles(p, bm, bn):
    seen, full, visited, key_rows, real = grid(p), 0, 0, 0, 0
    for top in range(0, p.nq, bm):
        for left in range(0, p.nk, bn):
            cells = [seen[i][j] for i in range(top, min(top + bm, p.nq)) for j in range(left, min(left + bn, p.nk))]
            if any(cells):
                visited, key_rows, real = visited + 1, key_rows + min(bn, p.nk - left), real + len(cells)
                full += all(cells) and left + bn <= p.nk
    found = p.tiles(bm, bn)
    assert (found.full, found.visited, found.key_rows, found.real_pairs) == (full, visited, key_rows, real)
    assert found.visited + found.skipped == ceil_div(p.nq, bm) * ceil_div(p.nk, bn)


def test_counts_and_blocks_of_a_mask_mean_the_same():
    shape = AttentionShape(1, 2, 64, 64, 16)
    counts = Pattern.of(RunConfig("flash2", shape, parameters={"block_mask": [1, 2, 0, 4], "block_size": 16}))
    blocks = Pattern.of(RunConfig("flash2", shape, parameters={
        "block_mask": [[0, 0, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], "block_size": 16}))
    assert counts.pairs == blocks.pairs == 7 * 256
    assert counts.tiles(16, 16) == blocks.tiles(16, 16)


@pytest.mark.parametrize(("mask", "block_mask", "said"), [
    ("full", [[1]], "block_mask: expected 2 rows and"),
    ("full", [[1, 1], [1]], "expected 2 blocks in every row, got 1"),
    ("causal", [1, 1], "counts of 0 to 2 whole blocks under a full mask"), ("full", [3, 1], "got 3 under full")])
def test_a_block_mask_that_does_not_fit_is_refused(mask, block_mask, said):
    config = RunConfig("flash2", AttentionShape(1, 1, 32, 32, 16, mask=mask),
                       parameters={"block_mask": block_mask, "block_size": 16})
    with pytest.raises(BadInput, match=said):
        Pattern.of(config)
