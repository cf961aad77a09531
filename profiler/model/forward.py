"""Forward stages of every implementation, as bytes by tensor. Derived from the algorithms; nothing is fitted.

Sources: naive: each launch reads its operands and writes its result (Dao et al. 2022, arXiv 2205.14135, Algorithm 0).
FlashAttention-1: ibid., Algorithm 1. FlashAttention-2: Dao 2023, arXiv 2307.08691, Algorithm 1 (outer loop over query
blocks). All batches and heads are counted in every number.
"""

from __future__ import annotations

from profiler.model.counts import ceil_div, count_blocks, key_interval, keys_seen, rows_that_see, visible_pairs
from profiler.model.pattern import Pattern
from profiler.model.prediction import OPS_A_DIVISION, WARP, StagePrediction, integer_divisions
from profiler.spec import AttentionShape, Mask, RunConfig

STATISTIC_BYTES = 4  # LSE, m, l and Δ are float32
RESCALE_LANES = 4  # a row of an mma accumulator lies in 4 lanes, and each of them evaluates its α
LEAST_TILE = 64  # query rows: below, a library's matmul pads them to its tile
WARP_ROWS = 16  # query rows of a tile that a warp works on: those of an mma instruction
MASK_BYTES = 1  # a boolean element
# implementations that write LSE without being asked
ALWAYS_LSE = ("sdpa_flash", "hopper", "hopper_fp8", "flash_varlen", "flash_sparse")


def statistics_bytes(s: AttentionShape) -> int:
    """Bytes of one float32 number a query row: LSE, Δ, m or l."""
    return s.batch * s.heads * s.nq * STATISTIC_BYTES


def compulsory(config: RunConfig) -> dict[str, int]:
    """What any exact attention must move: the queries that see a key, the keys and values that a query sees, and O."""
    s, pattern = config.shape, Pattern.of(config)
    row = s.head_dim * s.element_bytes
    keys = s.batch * s.kv_heads * pattern.keys * row if s.nq else 0
    return {"Q": s.batch * s.heads * pattern.rows * row, "K": keys, "V": keys, "O": s.q_bytes}


def head_pairs(s: AttentionShape) -> int:
    """Visible pairs over all batches and query heads."""
    return s.batch * s.heads * visible_pairs(Mask.parse(s.mask), s.nq, s.nk)


def padded_head_dim(head_dim: int) -> int:
    """Block width that holds a head: the next power of two, at least 16 (tile sizes are powers of two)."""
    return max(16, 1 << (head_dim - 1).bit_length())


def naive(config: RunConfig) -> tuple[StagePrediction, ...]:
    """S and P materialised. As written: scores, scale, [mask], softmax, values; folded: scores, softmax, values.

    The folded form scales inside the scores launch and masks by index inside the softmax launch. The mask step of the
    other need not read the elements of S that it overwrites, and reads a boolean Nq × Nk matrix beside S, which every
    head reads again (from HBM where it has left the L2).
    Its softmax is a kernel of ours: whole rows padded to a power of two, each thread finds its row's query by one
    division and divides by the row's sum once. Rows that see no key are left out. Matmuls compute every pair. L2 → SM
    of a matmul is at least its operands once: its tiles are the library's choice.
    """
    s = config.shape
    rows, heads = rows_that_see(Mask.parse(s.mask), s.nq, s.nk), s.batch * s.heads
    q, k, pairs = heads * rows * s.head_dim * s.element_bytes, s.k_bytes, heads * rows * s.nk
    n2 = pairs * s.element_bytes
    visible, computed = 2 * head_pairs(s) * s.head_dim, 2 * pairs * s.head_dim
    masked = Mask.parse(s.mask) != Mask()
    few = s.heads // s.kv_heads * s.nq < LEAST_TILE  # a tile of the library is wider than the rows that it is given

    def stage(name: str, reads: dict[str, int], writes: dict[str, int], *, matmul: bool = False, exponentials: int = 0,
              overhead: int = 0, refetch: dict[str, int] | None = None,
              skipped: dict[str, int] | None = None) -> StagePrediction:
        again, library = refetch or {}, exponentials and not overhead
        return StagePrediction(
            name, reads, writes, l2_to_sm={t: b + again.get(t, 0) for t, b in reads.items()}, sm_to_l2=writes,
            refetch=again, skipped=skipped or {},
            at_least=("l2_to_sm", *(("exponentials",) if library else ()), *(("tensor_flops",) if few else ())),
            exponentials=exponentials, overhead_ops=overhead, flops_visible=visible if matmul else 0,
            flops_computed=computed if matmul else 0, heads=heads)

    steps = [stage("scores", {"Q": q, "K": k}, {"S": n2}, matmul=True)]
    if config.implementation == "naive":
        steps.append(stage("scale", {"S": n2}, {"S": n2}))
        if masked:
            one = rows * s.nk * MASK_BYTES
            steps.append(stage("mask", {"S": n2, "mask": one}, {"S": n2}, refetch={"mask": (heads - 1) * one},
                               skipped={"S": n2 - head_pairs(s) * s.element_bytes}))
    if config.implementation == "naive_folded" and masked and s.nk:
        block = 1 << (s.nk - 1).bit_length()  # a program holds a row
        threads = WARP * min(32, max(1, block // 1024))
        steps.append(stage("softmax", {"S": n2}, {"P": n2}, exponentials=heads * rows * max(block, threads),
                           overhead=heads * rows * threads * (OPS_A_DIVISION + 1)))
    else:
        steps.append(stage("softmax", {"S": n2}, {"P": n2}, exponentials=pairs))
    steps.append(stage("values", {"P": n2, "V": k}, {"O": q}, matmul=True))
    return tuple(steps)


def fused(config: RunConfig) -> tuple[StagePrediction, ...]:
    """One launch that keeps S and P on the chip: Q, K, V in, O out, and LSE where it is asked for (``return_lse``) or
    always written (``sdpa_flash``).

    With ``block_m`` and ``block_n`` among the parameters, the schedule of FlashAttention-2 is counted: each query block
    reads Q once and the K and V rows of the key blocks it visits, per query head:
    L2 → SM = Q + Σ over query blocks (key rows visited) · 2·D·e; rows past the end and padded columns are not fetched.
    At most all of that comes from DRAM, where Q, K and V do not stay in L2. More warps than ``block_m`` has rows for
    (``num_warps`` · 16) share the columns of O, and each of them computes the scores and exponentials of its rows.
    Without them only what does not depend on tiles is predicted.
    """
    s, p, pattern = config.shape, config.parameters, Pattern.of(config)
    must = compulsory(config)
    writes = output(config)
    reads = {name: must[name] for name in ("Q", "K", "V")}
    heads = s.batch * s.heads
    visible = 4 * heads * pattern.pairs * s.head_dim
    if not (p.get("block_m") and p.get("block_n")):
        return (StagePrediction(
            "attention", reads, writes, sm_to_l2=writes, at_least=("exponentials",), flops_visible=visible,
            flops_computed=None, exponentials=heads * pattern.pairs, rescales=None, heads=heads,
            note="tile sizes not known"),)
    blocks = pattern.tiles(int(p["block_m"]), int(p["block_n"]))
    keys = heads * blocks.key_rows * s.head_dim * s.element_bytes
    warps, programs = int(p.get("num_warps", 0)), heads * ceil_div(s.nq, int(p["block_m"]))
    again = max(1, WARP_ROWS * warps // int(p["block_m"]))
    # flash2 finds its head and rows by three divisions; each lane that holds a row divides by its sum once
    overhead = integer_divisions(programs, warps, 3) + again * programs * blocks.block_m * RESCALE_LANES
    return (StagePrediction(
        "attention", reads, writes, l2_to_sm={"Q": s.q_bytes, "K": keys, "V": keys}, sm_to_l2=writes,
        refetch={name: max(0, keys - must[name]) for name in "KV"},
        flops_visible=visible,
        flops_computed=2 * (1 + again) * heads * blocks.computed_pairs * padded_head_dim(s.head_dim),
        exponentials=again * heads * blocks.computed_pairs,
        rescales=again * heads * blocks.row_visits * RESCALE_LANES,
        overhead_ops=overhead if config.implementation == "flash2" and warps else 0, blocks=blocks, heads=heads),)


def foreign(config: RunConfig) -> tuple[StagePrediction, ...]:
    """Another library's fused forward: Q, K, V in and O out, at least; whether it splits the keys, writes LSE or packs
    what it reads is its choice, and its tiles are not assumed, whatever ``parameters`` say."""
    must, s = compulsory(config), config.shape
    return (StagePrediction(
        "attention", {name: must[name] for name in ("Q", "K", "V")}, {"O": s.q_bytes},
        at_least=("dram", "exponentials"), flops_visible=4 * head_pairs(s) * s.head_dim, flops_computed=None,
        exponentials=head_pairs(s), rescales=None, heads=s.batch * s.heads, note="tile sizes and buffers not known"),)


def output(config: RunConfig) -> dict[str, int]:
    """What a fused forward gives: O, and LSE where it is written."""
    s = config.shape
    lse = config.parameters.get("return_lse") or config.implementation in ALWAYS_LSE
    return {"O": s.q_bytes, "LSE": statistics_bytes(s)} if lse else {"O": s.q_bytes}


def math_peer(config: RunConfig) -> tuple[StagePrediction, ...]:
    """PyTorch's own unfused form: S and P cross HBM at least once each way; its launches and their type are its choice
    (it computes half precision in fp32 copies, without Tensor Cores, unless it was told otherwise)."""
    s = config.shape
    q, k, n2 = s.q_bytes, s.k_bytes, s.matrix_bytes
    pairs = s.batch * s.heads * s.nq * s.nk
    return (StagePrediction(
        "attention", {"Q": q, "K": k, "V": k, "S": n2, "P": n2}, {"S": n2, "P": n2, "O": q},
        at_least=("dram", "exponentials"), flops_visible=4 * head_pairs(s) * s.head_dim,
        flops_computed=None, exponentials=pairs, heads=s.batch * s.heads, note="the library chooses its launches"),)


def flash1(config: RunConfig) -> tuple[StagePrediction, ...]:
    """FlashAttention-1: outer loop over key blocks, inner over query blocks (arXiv 2205.14135, Algorithm 1).

    K and V once; for each key block every query block that sees it: Q read, and O, m, l read back, but not the first
    time, and written. Between key blocks O is float32, in the authors' code and in ours; the last visit writes it in
    its type. That traffic is why FlashAttention-2 swapped the loops. At DRAM (a cache that holds O, m, l): Q, K, V in,
    O, m, l out; at most all of it, where O in float32 does not stay in L2. A visit of a row has two α and one division.
    """
    s, p = config.shape, config.parameters
    must, stat = compulsory(config), statistics_bytes(s)
    reads = {name: must[name] for name in ("Q", "K", "V")}
    writes = {"O": s.q_bytes, "m": stat, "l": stat}
    heads, visible = s.batch * s.heads, 4 * head_pairs(s) * s.head_dim
    if not (p.get("block_m") and p.get("block_n")):
        return (StagePrediction("attention", reads, writes, at_least=("exponentials",), flops_visible=visible,
                                flops_computed=None, exponentials=head_pairs(s), rescales=None, heads=heads,
                                note="tile sizes not known"),)
    block_m, block_n = int(p["block_m"]), int(p["block_n"])
    blocks = count_blocks(Mask.parse(s.mask), s.nq, s.nk, block_m, block_n)
    visits, once = _query_rows_visited(s, block_m, block_n)
    q, row = heads * visits * s.head_dim * s.element_bytes, heads * visits * STATISTIC_BYTES
    again = heads * (visits - once) * STATISTIC_BYTES  # of a number a row that comes back
    partial, final = again * s.head_dim, heads * once * s.head_dim * s.element_bytes
    unseen = s.nk - (keys_seen(Mask.parse(s.mask), s.nq, s.nk) if s.nq else 0)
    fetched = s.nk - unseen // block_n * block_n if unseen < s.nk else 0
    keys = heads * fetched * s.head_dim * s.element_bytes
    given = {"O": partial + final, "m": row, "l": row}
    shared = max(1, WARP_ROWS * int(p.get("num_warps", 0)) // block_m)  # warps that share rows, as in `fused`
    lanes = shared * heads * blocks.row_visits * RESCALE_LANES
    return (StagePrediction(
        "attention", reads, writes, l2_to_sm={"Q": q, "K": keys, "V": keys, "O": partial, "m": again, "l": again},
        sm_to_l2=given, refetch={"Q": max(0, q - must["Q"]), "O": partial, "m": again, "l": again},
        rewrite={name: max(0, amount - writes[name]) for name, amount in given.items()}, flops_visible=visible,
        flops_computed=2 * (1 + shared) * heads * blocks.computed_pairs * padded_head_dim(s.head_dim),
        exponentials=shared * heads * blocks.computed_pairs, rescales=2 * lanes, overhead_ops=lanes, blocks=blocks,
        heads=heads),)


def _query_rows_visited(s: AttentionShape, block_m: int, block_n: int) -> tuple[int, int]:
    """Σ over query blocks of their rows · the key blocks that they visit, and of the rows of those that visit any (one
    head)."""
    mask, total, once = Mask.parse(s.mask), 0, 0
    for first in range(0, s.nq, block_m):
        rows = min(block_m, s.nq - first)
        low, high = key_interval(mask, first, first + rows - 1, s.nq, s.nk)
        if high > low:
            total, once = total + rows * (ceil_div(high, block_n) - low // block_n), once + rows
    return total, once
