"""Split-key decode as bytes by tensor: few queries against a long cache of keys and values, contiguous or paged.

Source: Dao, Haziza, Massa, Sizov 2023, "Flash-Decoding": the visible keys of a sequence are cut into parts of whole key
blocks, each part gives a normalised float32 output and its LSE, a second launch merges them. The query heads that share
a key head form the rows of one tile, so the cache is read once a group.
"""

from __future__ import annotations

from profiler.model.counts import ceil_div, keys_seen
from profiler.model.forward import (
    RESCALE_LANES,
    STATISTIC_BYTES,
    compulsory,
    head_pairs,
    padded_head_dim,
    statistics_bytes,
)
from profiler.model.prediction import WARP, StagePrediction, integer_divisions
from profiler.spec import Mask, RunConfig

PARTIAL_BYTES = 4  # partial outputs are float32
PAGE_ENTRY_BYTES = 4  # a page number is an int32
SECTOR_BYTES = 32  # the least that crosses between L2 and an SM
TILE_COLUMNS = 8  # keys of a tile that a warp works on: those of an mma instruction
APPEND_WARPS = 1  # of a program of append
MERGE_WARPS, MERGE_BLOCK = 4, 16  # of the second launch: warps of a program, splits it takes at a time
VECTOR = 4  # float32 elements that a thread of it loads at once


def decode(config: RunConfig) -> tuple[StagePrediction, ...]:
    """attention (one launch), and merge where ``num_splits`` > 1; append before them where ``n_new`` > 0. Parameters:
    num_splits, block_m, block_n, num_warps, page_size, n_new.

    attention, L2 → SM: each part reads Q once, and each block of rows (⌈group·Nq / BM⌉ of them) the part's K and V
    rows; rows past the length are not loaded. Without block sizes one block of rows is assumed, which is the least.
    Special functions: where a tile has fewer rows than keys its warps stand side by side over the keys, and each
    evaluates the α of all rows; five divisions a thread find its part and rows; both launches divide by the row sum.
    """
    s, p = config.shape, config.parameters
    splits, group = int(p.get("num_splits", 1)), s.heads // s.kv_heads
    must, seen = compulsory(config), keys_seen(Mask.parse(s.mask), s.nq, s.nk)
    outputs = s.batch * s.heads * s.nq
    out = {"O": s.q_bytes, "LSE": statistics_bytes(s)}
    partial = partials(config) if splits > 1 else out
    reads = {name: must[name] for name in ("Q", "K", "V")}
    if page := int(p.get("page_size", 0)):
        reads["page table"] = s.batch * ceil_div(s.nk, page) * PAGE_ENTRY_BYTES

    known = bool(p.get("block_m") and p.get("block_n"))
    row_blocks = ceil_div(group * s.nq, int(p["block_m"])) if known else 1
    keys = s.batch * s.kv_heads * row_blocks * seen * s.head_dim * s.element_bytes
    moved = {"Q": splits * s.q_bytes, "K": keys, "V": keys}
    if page:
        moved["page table"] = s.kv_heads * row_blocks * reads["page table"]
    visits = _visits(seen, splits, int(p["block_n"])) * row_blocks * s.batch * s.kv_heads if known else None
    pairs = visits * int(p["block_m"]) * int(p["block_n"]) if visits is not None else head_pairs(s)
    given = dict(partial)
    given["partial LSE" if splits > 1 else "LSE"] = SECTOR_BYTES * _sectors(
        splits * s.batch * s.kv_heads, group * s.nq, int(p["block_m"]) if known else group * s.nq)
    warps, lanes = int(p.get("num_warps", 0)), RESCALE_LANES
    counted = bool(known and warps and p["block_m"] <= p["block_n"] and TILE_COLUMNS * warps <= p["block_n"])
    overhead = 0
    if counted:
        lanes = RESCALE_LANES * warps
        programs = s.batch * s.kv_heads * splits * row_blocks
        overhead = integer_divisions(programs, warps, 5) + programs * int(p["block_m"]) * lanes
    attention = StagePrediction(
        "attention", reads, partial, l2_to_sm=moved, sm_to_l2=given, flops_visible=4 * head_pairs(s) * s.head_dim,
        at_least=(*(() if counted else ("exponentials",)), *(() if known and not page else ("l2_to_sm",))),
        flops_computed=4 * pairs * padded_head_dim(s.head_dim) if known else None, exponentials=pairs,
        rescales=lanes * visits * int(p["block_m"]) if visits is not None else None, overhead_ops=overhead,
        heads=s.batch * s.kv_heads)
    before = (append(config),) if p.get("n_new") else ()
    if splits == 1:
        return *before, attention
    # a thread evaluates the weights of the rows that it loads a part of, the exponential of the sum, and one division
    threads = WARP * MERGE_WARPS
    weights = max(1, MERGE_BLOCK * padded_head_dim(s.head_dim) // (threads * VECTOR))
    merge = StagePrediction(
        "merge", partial, out, l2_to_sm={**partial, "partial LSE": splits * outputs * SECTOR_BYTES},
        sm_to_l2={**out, "LSE": outputs * SECTOR_BYTES},
        exponentials=outputs * threads * (1 + weights * ceil_div(splits, MERGE_BLOCK)), overhead_ops=outputs * threads,
        heads=s.batch * s.heads)
    return *before, attention, merge


def append(config: RunConfig) -> StagePrediction:
    """n_new keys and values a sequence, written in place: read once, written once, the lengths and, where paged, a page
    number each read beside them. Nk of the shape is the length with them."""
    s, p = config.shape, config.parameters
    tokens = s.batch * s.kv_heads * min(int(p["n_new"]), s.nk)
    new = tokens * s.head_dim * s.element_bytes
    programs = integer_divisions(tokens, APPEND_WARPS, 3 if p.get("page_size") else 2)
    reads = {"new K": new, "new V": new}
    return StagePrediction("append", reads, {"K": new, "V": new}, l2_to_sm=reads, sm_to_l2={"K": new, "V": new},
                           at_least=("l2_to_sm", "exponentials"), overhead_ops=programs, heads=s.batch * s.kv_heads)


def partials(config: RunConfig) -> dict[str, int]:
    """Bytes of the float32 partial outputs and their LSE over all splits."""
    s, splits = config.shape, int(config.parameters.get("num_splits", 1))
    rows = splits * s.batch * s.heads * s.nq
    return {"partial O": rows * s.head_dim * PARTIAL_BYTES, "partial LSE": rows * STATISTIC_BYTES}


def _sectors(runs: int, rows: int, block: int) -> int:
    """Sectors that programs touch when each writes its ``block`` of the ``rows`` float32 numbers of one of ``runs``
    runs, which lie one behind another."""
    a_sector = SECTOR_BYTES // STATISTIC_BYTES
    total = 0
    for run in range(min(runs, a_sector)):  # from there on the places in a sector repeat
        again = len(range(run, runs, a_sector))
        starts = range(run * rows, (run + 1) * rows, block)
        total += again * sum((min(a + block, (run + 1) * rows) - 1) // a_sector - a // a_sector + 1 for a in starts)
    return total


def _visits(keys: int, splits: int, block_n: int) -> int:
    """Key blocks that all parts together walk: each part has ⌈⌈keys/splits⌉/BN⌉ blocks, the last ones fewer or none."""
    part = ceil_div(ceil_div(keys, splits), block_n) * block_n
    whole, rest = divmod(keys, part) if part else (0, 0)
    return whole * (part // block_n) + ceil_div(rest, block_n)
