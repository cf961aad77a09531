"""Backward stages as bytes by tensor.

With S = scale·Q·Kᵀ, P = exp(S − LSE), dP = dO·Vᵀ, Δ = rowsum(dO ∘ O):
dV = Pᵀ·dO, dS = P ∘ (dP − Δ), dK = scale·dSᵀ·Q, dQ = scale·dS·K.

Sources: recompute: Dao 2023, arXiv 2307.08691, Algorithm 2; materialised: Dao et al. 2022, arXiv 2205.14135,
Algorithm 3.
"""

from __future__ import annotations

from profiler.model.counts import Blocks, ceil_div
from profiler.model.forward import MASK_BYTES, compulsory, head_pairs, padded_head_dim, statistics_bytes
from profiler.model.pattern import Pattern
from profiler.model.prediction import StagePrediction, integer_divisions
from profiler.spec import AttentionShape, Mask, RunConfig

STATISTIC_PAD = 128  # row statistics are stored for whole blocks of 128 queries
ROW_WARPS = 4  # of a program of prepare and finish


def compulsory_backward(config: RunConfig) -> dict[str, int]:
    """What a backward that recomputes P must move: Q, K, V, O, dO, LSE in; dQ, dK, dV out."""
    s, must = config.shape, compulsory(config)
    seen = must["Q"]
    rows = seen // max(1, s.head_dim * s.element_bytes)
    return {"Q": seen, "K": must["K"], "V": must["V"], "O": seen, "dO": seen, "LSE": rows * 4, "dQ": s.q_bytes,
            "dK": s.k_bytes, "dV": s.k_bytes}


def padded_rows(s: AttentionShape) -> int:
    """Rows of a statistic as the backward stores it: of each head Nq, rounded up to whole blocks of 128."""
    return s.batch * s.heads * ceil_div(s.nq, STATISTIC_PAD) * STATISTIC_PAD


def statistic_bytes(config: RunConfig) -> int:
    """Bytes of one statistic of one row: as the run says, else a float32, or the 16 bfloat16 terms that the Hopper
    backward multiplies."""
    return int(config.parameters.get("statistic_bytes", 32 if config.implementation == "hopper" else 4))


def width(config: RunConfig) -> int:
    """Columns of a block: the head size padded to a power of two, of the Hopper kernels to 64 at least."""
    return max(64 if config.implementation == "hopper" else 16, padded_head_dim(config.shape.head_dim))


def in_one_pass(config: RunConfig) -> bool:
    """Whether dQ is summed in ``keys``; the Hopper backward does unless it is asked for a fixed order of sums."""
    p = config.parameters
    return bool(p.get("one_pass", config.implementation == "hopper" and not p.get("deterministic")))


def sum_bytes(config: RunConfig) -> int:
    """Bytes of the float32 buffer that dQ is summed in: padded rows, padded head size."""
    return padded_rows(config.shape) * width(config) * 4


def flash2(config: RunConfig) -> tuple[StagePrediction, ...]:
    """prepare (Δ and LSE in base 2), keys (dK, dV), then queries (dQ): 7 matmuls, S and dP computed twice.

    With the parameter ``one_pass`` (of hopper without it too, but for ``deterministic``) dQ is summed at the L2 in
    ``keys`` and converted by ``finish``: 5 matmuls.
    keys, L2 → SM: K and V once a block of keys; for each query head of its group the Q, dO rows and two statistics of
    the query blocks that see it. queries: Q, dO and statistics once a block of queries; K and V of the key blocks it
    sees. Block sizes: key_block_m × key_block_n and query_block_m × query_block_n (queries × keys each).
    """
    s, one_pass = config.shape, in_one_pass(config)
    must, stat, heads = compulsory_backward(config), padded_rows(s) * statistic_bytes(config), s.batch * s.heads
    rows = {"LSE'": stat, "Δ": stat}
    buffer = {"dQ sum": sum_bytes(config)} if one_pass else {}
    inputs = {"O": s.q_bytes, "dO": s.q_bytes, "LSE": statistics_bytes(s)}
    programs = padded_rows(s) // (32 if width(config) > 128 else 64)  # a program has 64 rows, or 32
    prepare = StagePrediction("prepare", inputs, {**rows, **buffer}, l2_to_sm=inputs, sm_to_l2={**rows, **buffer},
                              overhead_ops=integer_divisions(programs, ROW_WARPS, 2), heads=heads)
    taken = {name: must[name] for name in ("Q", "K", "V", "dO")} | rows
    grads = {"dK": s.k_bytes, "dV": s.k_bytes}
    keys = _pass(config, "keys", taken | buffer, grads | buffer, 5 if one_pass else 4)
    if one_pass:
        finish = StagePrediction("finish", buffer, {"dQ": s.q_bytes}, l2_to_sm=buffer, sm_to_l2={"dQ": s.q_bytes},
                                 overhead_ops=integer_divisions(programs, ROW_WARPS, 1), heads=heads)
        return prepare, keys, finish
    return prepare, keys, _pass(config, "queries", taken, {"dQ": s.q_bytes}, 3)


def _blocks(config: RunConfig, stage: str) -> Blocks | None:
    """Blocks of one head as ``stage`` walks them; of the transposed one for ``keys``, whose outer loop is over keys."""
    name = "key" if stage == "keys" else "query"
    m, n = (config.parameters.get(f"{name}_block_{side}") for side in "mn")
    if not (m and n):
        return None
    pattern = Pattern.of(config)
    return pattern.transposed().tiles(int(n), int(m)) if stage == "keys" else pattern.tiles(int(m), int(n))


def _pass(config: RunConfig, stage: str, reads: dict[str, int], writes: dict[str, int],
          matmuls: int) -> StagePrediction:
    s, heads, blocks = config.shape, config.shape.batch * config.shape.heads, _blocks(config, stage)
    pairs = heads * Pattern.of(config).pairs
    visible = matmuls * 2 * pairs * s.head_dim
    if blocks is None:
        return StagePrediction(
            stage, reads, writes, at_least=("exponentials",), flops_visible=visible, flops_computed=None,
            exponentials=pairs, heads=heads, note="tile sizes not known")
    row = s.head_dim * s.element_bytes
    walked = heads * blocks.key_rows * row  # rows of the inner loop's tensors
    if stage == "keys":
        programs, warps = s.batch * s.kv_heads * ceil_div(s.nk, blocks.block_m), config.parameters.get("key_num_warps")
        # whole blocks of queries: the padding is stored too
        statistic = heads * blocks.visited * blocks.block_n * statistic_bytes(config)
        moved = {"K": s.k_bytes, "V": s.k_bytes, "Q": walked, "dO": walked, "LSE'": statistic, "Δ": statistic}
    else:
        programs, warps = heads * ceil_div(s.nq, blocks.block_m), config.parameters.get("query_num_warps")
        statistic = programs * blocks.block_m * statistic_bytes(config)
        moved = {"Q": s.q_bytes, "dO": s.q_bytes, "K": walked, "V": walked, "LSE'": statistic, "Δ": statistic}
    atomics = "dQ sum" in writes
    given = dict(writes)
    if atomics:  # every visit adds a float32 block of dQ at the L2
        given["dQ sum"] = heads * blocks.visited * blocks.block_n * width(config) * 4
    return StagePrediction(
        stage, reads, writes, l2_to_sm=moved, sm_to_l2=given, flops_visible=visible, heads=heads, blocks=blocks,
        refetch={name: max(0, moved[name] - reads[name]) for name in moved},
        flops_computed=matmuls * 2 * heads * blocks.computed_pairs * width(config),
        exponentials=heads * blocks.computed_pairs, overhead_ops=integer_divisions(programs, warps, 2))


def naive(config: RunConfig) -> tuple[StagePrediction, ...]:
    """P kept from the forward; dP and dS materialised: P read for dV; dP written; dS from P and dP; [mask]; scale; dS
    read for dQ and for dK. 4 matmuls over every pair. N×N passes: 12, 14 with a mask; folded 10: the scale is the
    matmuls' own, and where P is 0 dS is 0 without a mask. PyTorch's softmax backward is two launches: dP ∘ P, then
    dS = dP ∘ P − P · rowsum(dP ∘ P), so that P is read twice."""
    s = config.shape
    q, k, n2, heads = s.q_bytes, s.k_bytes, s.matrix_bytes, s.batch * s.heads
    visible, computed = 2 * head_pairs(s) * s.head_dim, 2 * heads * s.nq * s.nk * s.head_dim
    mask = s.nq * s.nk * MASK_BYTES

    def stage(name: str, reads: dict[str, int], writes: dict[str, int], *, matmul: bool = False,
              refetch: dict[str, int] | None = None, skipped: dict[str, int] | None = None) -> StagePrediction:
        again = refetch or {}
        return StagePrediction(
            name, reads, writes, l2_to_sm={t: b + again.get(t, 0) for t, b in reads.items()}, sm_to_l2=writes,
            refetch=again, skipped=skipped or {}, at_least=("l2_to_sm",), flops_visible=visible if matmul else 0,
            flops_computed=computed if matmul else 0, heads=heads)

    steps = [stage("d_values", {"P": n2, "dO": q}, {"dV": k}, matmul=True),
             stage("d_weights", {"dO": q, "V": k}, {"dP": n2}, matmul=True),
             stage("d_softmax", {"P": 2 * n2, "dP": n2, "dP∘P": n2}, {"dP∘P": n2, "dS": n2})]
    if config.implementation == "naive":
        if Mask.parse(s.mask) != Mask():
            steps.append(stage("d_mask", {"dS": n2, "mask": mask}, {"dS": n2}, refetch={"mask": (heads - 1) * mask},
                               skipped={"dS": n2 - head_pairs(s) * s.element_bytes}))
        steps.append(stage("d_scale", {"dS": n2}, {"dS": n2}))
    steps += [stage("d_queries", {"dS": n2, "K": k}, {"dQ": q}, matmul=True),
              stage("d_keys", {"dS": n2, "Q": q}, {"dK": k}, matmul=True)]
    return tuple(steps)


def peer(config: RunConfig) -> tuple[StagePrediction, ...]:
    """Another library's backward: its compulsory bytes; how many launches and float32 buffers it has is its choice."""
    s = config.shape
    must = compulsory_backward(config)
    reads = {name: must[name] for name in ("Q", "K", "V", "O", "dO", "LSE")}
    writes = {name: must[name] for name in ("dQ", "dK", "dV")}
    return (StagePrediction(
        "attention", reads, writes, at_least=("dram", "exponentials"), flops_visible=10 * head_pairs(s) * s.head_dim,
        flops_computed=None, exponentials=head_pairs(s), rescales=None, heads=s.batch * s.heads,
        note="tile sizes and buffers not known"),)
