"""Which program computes which query block: two orders of a one-dimensional grid."""

from __future__ import annotations

Row = dict[str, int]


def textbook(batch: int, heads: int, blocks: int) -> list[Row]:
    """The query block runs fastest, then the head, then the batch."""
    return [{"program": i, "batch": i // (heads * blocks), "head": i // blocks % heads, "block": i % blocks}
            for i in range(batch * heads * blocks)]


def ours(batch: int, heads: int, blocks: int, group: int = 4) -> list[Row]:
    """Last blocks first, over `group` heads at a time: the arithmetic of kernels/flash2.py."""
    rows = []
    for program in range(batch * heads * blocks):
        first = program // (group * blocks) * group
        here = min(group, batch * heads - first)
        place = program % (group * blocks)
        at = first + place % here
        rows.append({"program": program, "batch": at // heads, "head": at % heads, "block": blocks - 1 - place // here})
    return rows


ORDERS = {"textbook": textbook, "ours": ours}
