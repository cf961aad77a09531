"""The Hopper forward on packed sequences: its tiles, listed on the device, and its launch.

No length is read on the host: `list_tiles` finds every tile's place, so that each program of kernels.hopper walks a
list as it does for a plain call. Sequences that begin within one span of queries are dealt out together, the tiles of
all their heads, longest first, forth and back; the next span begins behind the program at which this one ended. Causal
tiles of a sequence go down to one block, so that a span's end costs little, and spans are short; else one span is all.
`group_rows` then orders each list inside a span by groups of heads, so that few have their K and V in use at a time.
Where there are as many tokens as sequences of the greatest length, the list is the plain call's of as many batch
elements: all have that length, or else some tiles have no rows.

By simulation, causal, 16 heads of 128, 132 programs, a step a key block and one more a tile, speeds that differ by 2 %:
mean load over the greatest, and bytes of K and V read from memory over all there are, where the L2 keeps the latest 20
or 40 MB. 16,384 tokens: the mean of 20 draws of 1,024 to 8,192, and 8,192, 5,003, 2,048, 1,024 and 117:
                                                     1,024 to 8,192           8,192 to 117
  one span, longest first, not ordered by heads      0.994  10.6 x  6.6 x     0.990  10.2 x  5.3 x
  longest first by 16 blocks, heads inside           0.915   7.5    3.6       0.937   7.3    3.5
  one span, ordered by heads                         0.994   8.6    3.5       0.990   7.3    2.2
  spans, not ordered by heads                        0.990   4.6    1.9       0.995   4.9    2.1
  spans of 8 of the heads, not ordered               0.969   1.8    1.0       0.993   1.9    1.0
  spans, ordered by heads: as here                   0.990   1.8    1.1       0.995   1.7    1.0
  a plain call's, each tile to who is done first     0.991   1.1    1.0       0.995   1.2    1.0
The worst draw has 0.981 here; sequences of 256 to 2,048 tokens 0.955, one span 0.969. The last line's programs cannot
be told one tile without all before it. On an H200, bfloat16, causal, two calls of 492 or 117 to 8,192 tokens: head size
128 658 -> 680 and 670 -> 692 TFLOP/s of visible pairs, 64 509 -> 515 and 509 -> 514.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels.hopper_plan import BATCH_BITS, GROUP_BYTES, HEAD_BITS, ROW_BITS, Config, head_group
from kernels.hopper_plan import choose as choose_plain
from kernels.hopper_plan import supports as supports_plain
from kernels.options import Options

HEAD_SHIFT, SEQUENCE_SHIFT = tl.constexpr(ROW_BITS), tl.constexpr(ROW_BITS + HEAD_BITS)
HEAD_FIELD, NO_SPAN, NO_TILE = (tl.constexpr(n) for n in ((1 << HEAD_BITS) - 1, (1 << 31) - 1, 1 << 62))
TURNS = 4  # tiles of a program in a span of tokens; by simulation 2 balance less, 6 need more of the L2
# Of a program of `list_tiles`: tiles and heads that it places, and sequences that it compares the tiles with at a time.
BLOCKS, HEADS, SEQUENCES = 32, 4, 32


@triton.jit
def _lengths(cu_q, cu_k, sequence, sequences, longest, BLOCK_M: tl.constexpr):
    """Query blocks, keys, and keys before the first query's own, of sequences; none of those beyond the last."""
    known = sequence < sequences
    nq = tl.load(cu_q + sequence + 1, mask=known, other=0) - tl.load(cu_q + sequence, mask=known, other=0)
    nk = tl.load(cu_k + sequence + 1, mask=known, other=0) - tl.load(cu_k + sequence, mask=known, other=0)
    return (tl.minimum(nq, longest) + BLOCK_M - 1) // BLOCK_M, nk, nk - nq


@triton.jit
def _no_longer(blocks, nk, highest, cost, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """How many tiles of a sequence have at most `cost` key blocks; none has fewer than one."""
    some = tl.where(nk <= cost * BLOCK_N, blocks, 0)
    if CAUSAL:
        some = tl.maximum(some, tl.minimum(tl.maximum((cost * BLOCK_N - highest) // BLOCK_M, 0), blocks))
    return tl.where(cost > 0, some, 0)


@triton.jit(do_not_specialize=["sequences", "heads", "group", "span", "programs", "width", "longest", "right"])
def list_tiles(cu_q, cu_k, table, sequences, heads, group, span, programs, width, longest, right, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, BLOCKS: tl.constexpr, SEQUENCES: tl.constexpr,
               HEADS: tl.constexpr):
    """BLOCKS tiles of one sequence in HEADS heads into table (programs, width), words as kernels.hopper_plan.pack; the
    programs after the last sequence's write the -1 behind each list. group: heads, a divisor of `heads`, that are
    worked on together where tiles cost the same. span: tokens; sequences that begin in one are dealt out together."""
    sequence = tl.program_id(0)
    mine = tl.where(sequence < sequences, tl.load(cu_q + sequence) // span, NO_SPAN)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    blocks, nk, shift = _lengths(cu_q, cu_k, sequence, sequences, longest, BLOCK_M)
    end = nk
    if CAUSAL:
        end = tl.minimum(nk, (block + 1) * BLOCK_M + shift + right)
    cost = tl.maximum((end + BLOCK_N - 1) // BLOCK_N, 1) + 0 * block
    inside = block - _no_longer(blocks, nk, shift + right, cost - 1, BLOCK_M, BLOCK_N, CAUSAL)  # of those of its cost
    before, alike, earlier, size = 0 * block, 0 * block, 0, 0
    for start in range(0, sequences, SEQUENCES):
        other = start + tl.arange(0, SEQUENCES)
        counts, keys, apart = _lengths(cu_q, cu_k, other, sequences, longest, BLOCK_M)
        theirs = tl.load(cu_q + other, mask=other < sequences, other=0) // span
        earlier += tl.sum(tl.where(theirs < mine, counts, 0))
        counts = tl.where(theirs == mine, counts, 0)
        size += tl.sum(counts)
        shorter = _no_longer(counts[None, :], keys[None, :], apart[None, :] + right, cost[:, None] - 1, BLOCK_M,
                             BLOCK_N, CAUSAL)
        upto = _no_longer(counts[None, :], keys[None, :], apart[None, :] + right, cost[:, None], BLOCK_M, BLOCK_N,
                          CAUSAL)
        before += tl.sum(counts[None, :] - upto, 1)
        alike += tl.sum(upto - shorter, 1)
        inside += tl.sum(tl.where(other[None, :] < sequence, upto - shorter, 0), 1)
    earlier *= heads
    if sequence == sequences:
        first = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
        others = tl.num_programs(1) * tl.num_programs(2)
        for start in range(earlier + first * BLOCKS, programs * width, others * BLOCKS):
            free = start + tl.arange(0, BLOCKS)
            place = free % programs * width + free // programs
            tl.store(table + place, tl.full([BLOCKS], -1, tl.int64), mask=free < programs * width)
    else:
        turns = size * heads // programs  # whole ones; the part of a turn behind them goes forth
        for head in range(tl.program_id(2) * HEADS, tl.minimum(heads, (tl.program_id(2) + 1) * HEADS)):
            index = before * heads + (head // group * alike + inside) * group + head % group
            turn = index // programs
            step = tl.where((turns - turn) % 2 == 0, index % programs, programs - 1 - index % programs)
            column = (earlier + step) % programs
            place = (earlier + programs - 1 - column) // programs + turn  # behind the column's tiles of earlier spans
            word = (tl.cast(sequence, tl.int64) << SEQUENCE_SHIFT) + (tl.cast(head, tl.int64) << HEAD_SHIFT) + block
            tl.store(table + column * width + place, word, mask=block < blocks)


@triton.jit(do_not_specialize=["heads", "group", "span", "width"])
def group_rows(cu_q, table, grouped, heads, group, span, width, WIDTH: tl.constexpr):
    """A program's row of the table, the tiles of each span by groups of heads and else in their order. WIDTH: a power
    of two, at least width."""
    row = tl.program_id(0) * width
    at = tl.arange(0, WIDTH)
    word = tl.load(table + row + at, mask=at < width, other=-1)
    begin = tl.load(cu_q + (word >> SEQUENCE_SHIFT), mask=word >= 0, other=0)
    key = begin // span * (heads // group) + ((word >> HEAD_SHIFT) & HEAD_FIELD) // group
    order = tl.sort(tl.where(word >= 0, key * WIDTH, NO_TILE) + at) % WIDTH
    tl.store(grouped + row + at, tl.load(table + row + order, mask=order < width, other=-1), mask=at < width)


def together(k: torch.Tensor, tokens: int, heads: int, programs: int, config: Config) -> tuple[int, int]:
    """Query heads, and queries a span, that are worked on together; k (Tk, Hk, D), tokens: of all queries. A span of 0:
    all are, and the lists are not ordered by heads."""
    if not config.causal:
        return 1, 0  # the tiles of a sequence are alike: longest first is head after head
    if 2 * k.numel() * k.element_size() <= GROUP_BYTES:
        return heads, 0  # the L2 has room for K and V of all
    group = head_group(heads, GROUP_BYTES)
    if config.edge:
        return group, tokens  # as many keys as queries in no sequence, perhaps: the last tile may be long
    return group, max(1, TURNS * programs * config.block_m // heads)


def tile_table(cu_q: torch.Tensor, cu_k: torch.Tensor, tokens: int, longest: int, heads: int, group: int, span: int,
               programs: int, config: Config, right: int) -> torch.Tensor:
    """Words of each program's tiles, (programs, most + 1) int64 on the device, each row ended by -1. tokens, longest:
    of all queries and of one sequence's. group, span: of `together`. right: of the window, where there is one."""
    sequences = len(cu_q) - 1
    most = (tokens // config.block_m + sequences) * heads
    table = torch.empty(programs, -(-most // programs) + 1, dtype=torch.int64, device=cu_q.device)
    width = table.shape[1]
    grid = (sequences + 1, max(1, -(-longest // (config.block_m * BLOCKS))), -(-heads // HEADS))
    list_tiles[grid](cu_q, cu_k, table, sequences, heads, group, span or tokens, programs, width, longest, right,
                     BLOCK_M=config.block_m, BLOCK_N=config.block_n, CAUSAL=config.causal, BLOCKS=BLOCKS,
                     SEQUENCES=SEQUENCES, HEADS=HEADS, num_warps=4)
    if not span:
        return table
    grouped, size = torch.empty_like(table), triton.next_power_of_2(width)
    group_rows[(programs,)](cu_q, table, grouped, heads, group, span, width, WIDTH=size,
                            num_warps=max(1, min(8, size // 128)))
    return grouped


def _tiles(q: torch.Tensor, k: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int, max_k: int,
           programs: int, config: Config, options: Options) -> torch.Tensor:
    """The table of a call: the plain one where all sequences are alike, else listed on the device."""
    from kernels import hopper

    (tokens, heads, head_dim), sequences = q.shape, len(cu_q) - 1
    if tokens != sequences * max_q or len(k) != sequences * max_k:
        group, span = together(k, tokens, heads, programs, config)
        return tile_table(cu_q, cu_k, tokens, max_q, heads, group, span, programs, config, options.right)
    batch = (torch.empty((sequences, x.shape[1], n, head_dim), dtype=x.dtype, device="meta")
             for x, n in ((q, max_q), (k, max_k)))
    return hopper.tiles_of(*batch, config, options.left, options.right, programs, q.device)


def _as_batch(x: torch.Tensor) -> torch.Tensor:
    """(tokens, H, D) -> (1, H, tokens, D)."""
    return x.transpose(0, 1)[None]


def supports(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, options: Options, scale: float,
             cc: tuple[int, int] | None) -> str | None:
    """Why this kernel cannot take a checked call, as a clause, or None where it can."""
    if len(cu_q) > 1 << BATCH_BITS:
        return "a tile's word holds fewer sequences"
    if q.shape[2] not in (64, 128, 256):
        return f"on packed sequences it takes head sizes 64, 128 and 256, not {q.shape[2]}"
    return supports_plain(_as_batch(q), _as_batch(k), _as_batch(v), options, scale, cc)


def choose(q: torch.Tensor, k: torch.Tensor, longest: int, options: Options, *, alike: bool) -> Config:
    """The configuration of a call. longest: keys of a sequence; alike: each has as many queries as keys."""
    more = 0 if alike or options.right < 0 else 1  # the diagonal lies anywhere
    shapes = ((1, x.shape[1], n, x.shape[2]) for x, n in ((q, longest), (k, longest + more)))
    config = choose_plain(*(torch.empty(shape, dtype=q.dtype, device="meta") for shape in shapes), options)
    return replace(config, packed=True, edge=config.edge or not alike)


def are_alike(cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int, max_k: int) -> bool:
    """Whether each sequence has as many queries as keys, as far as the host can tell: from one tensor for both."""
    return cu_q.data_ptr() == cu_k.data_ptr() and max_q == max_k


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, max_q: int,
            max_k: int, *, scale: float, options: Options, config: Config | None = None
            ) -> tuple[torch.Tensor, torch.Tensor]:
    """q (Tq, H, D), k and v (Tk, Hk, D), as `supports` lets them through -> out (Tq, H, D) contiguous and lse (H, Tq)
    float32. cu_q, cu_k: (S + 1,) int32; max_q, max_k: at least the longest. config: by default what `choose` gives."""
    from kernels import hopper

    out, lse = q.new_empty(q.shape), q.new_empty((q.shape[1], len(q)), dtype=torch.float32)
    if out.numel() == 0 or max_q == 0 or len(k) == 0:
        return out.zero_(), lse.fill_(-math.inf)
    if config is None:
        config = choose(q, k, max_k, options, alike=are_alike(cu_q, cu_k, max_q, max_k))
    programs = torch.cuda.get_device_properties(q.device).multi_processor_count
    with torch.cuda.device(q.device):
        table = _tiles(q, k, cu_q, cu_k, max_q, max_k, programs, config, options)
        grid, arguments, settings = hopper.packed_launch(
            *(_as_batch(x) for x in (q, k, v, out)), lse, cu_q, cu_k, table, config, scale=scale, left=options.left,
            right=options.right)
        hopper._forward[grid](*arguments, **settings)
    return out, lse
