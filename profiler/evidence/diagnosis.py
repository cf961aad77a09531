"""What holds one launch back: the usual troubleshooting questions asked of its counters, each with its number.

Every finding says whether it matters here. A low occupancy, say, is no fault of a kernel that keeps its pipes busy with
few warps, whatever a general rule estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from profiler import metrics
from profiler.evidence.claim import digits, size, time
from profiler.evidence.facts import Facts, Row, configuration, roof_shares

FINE, LOOK, CANNOT_TELL = "fine", "look here", "cannot tell"
NEAR = 0.6  # of a roof: from here on it binds
CONFLICT_SHARE, TAIL_SHARE = 0.10, 0.20
ELEMENT_WISE = ("scale", "mask", "softmax", "prepare", "finish", "merge", "d_softmax", "d_scale", "d_mask")


@dataclass(frozen=True, slots=True)
class Finding:
    """One question about a launch. value in unit decides; change: what to change, "" when nothing; nsight: where Nsight
    Compute's own rule says otherwise; missing: the counter that is not there, and how to collect it."""

    id: str
    question: str
    verdict: str
    sentence: str
    value: float | None = None
    unit: str = ""
    change: str = ""
    nsight: str = ""
    missing: str = ""


def diagnosis(facts: Facts, launch: int) -> list[Finding]:
    """All findings on one launch, in a fixed order. Raises KeyError for a launch that is not there."""
    row = next((r for r in facts.launches if r["launch"] == launch), None)
    if row is None:
        raise KeyError(f"no launch {launch} in {facts.bundle.name}")
    raw = facts.bundle.metrics
    values = {r.metric: r.value for r in raw[raw["launch"].eq(launch)][["metric", "value"]].itertuples(index=False)}
    shares = roof_shares([row])
    questions: tuple[Callable[[], Finding], ...] = (
        lambda: tensor_cores(row), lambda: nearest_roof(row, shares), lambda: occupancy(row, shares),
        lambda: spills(row), lambda: bank_conflicts(row, values), lambda: tail(row), lambda: l2_misses(row),
        lambda: stalls(row, values), lambda: captured(facts, row))
    return [ask() for ask in questions]


def _missing(id_: str, question: str, row: Row, *columns: str, what: str = "") -> Finding:
    absent = [c for c in columns if row.get(c) is None]
    flag = metrics.missing_flag(absent, row["cc"])
    text = what or f"not counted: {', '.join(absent)}"
    how = f"; collect with {flag}" if flag else ""
    return Finding(id_, question, CANNOT_TELL, "The report does not say.", missing=text + how)


def tensor_cores(row: Row) -> Finding:
    """Tensor Cores used, and if not, why."""
    id_, question = "tensor_cores", "Are the Tensor Cores used?"
    work, pipe = row["tensor_flops"], row["tensor_pipe_pct"]
    operations = row["tensor_ops"]
    if work is None and operations is None:
        return _missing(id_, question, row, "tensor_flops")
    if work or operations:
        busy = "" if pipe is None else f", their pipe is active in {digits(pipe)}% of the cycles"
        return Finding(id_, question, FINE, f"Used with {row['tensor_dtype'] or 'mixed'} operands{busy}.", pipe, "%")
    config = configuration(row)
    if row["stage"] in ELEMENT_WISE:
        return Finding(id_, question, FINE, f"Not used, and the {row['stage']} step has no matmul.", 0.0, "FLOP")
    core = max(((row[c] or 0.0, c) for c in ("fp32_flops", "fp64_flops", "fp16_flops")), default=(0.0, ""))
    if config is None and not core[0]:
        return Finding(id_, question, FINE, "Not used; no floating-point matmul was counted either.", 0.0, "FLOP")
    why, change = f"its {core[1][:4]} work ran on the CUDA cores ({core[0]:.3g} FLOP)", "Use fp16 or bf16 operands."
    if config is not None and config.shape.dtype in ("fp32", "fp64"):
        why = f"{config.shape.dtype} operands are multiplied on the CUDA cores"
        change = "Use bf16 or fp16, or allow TF32."
    elif config is not None and config.shape.head_dim % 16:
        why = f"head size {config.shape.head_dim} is not a multiple of 16"
        change = "Pad the head size to a multiple of 16."
    verdict = LOOK if config is not None or row["stage"] else FINE
    return Finding(id_, question, verdict, f"Not used: {why}.", 0.0, "FLOP", change if verdict == LOOK else "")


def nearest_roof(row: Row, shares: dict[str, float]) -> Finding:
    """Which roof is near: memory, L2, Tensor Cores, special functions, or none (latency)."""
    id_, question = "nearest_roof", "Which roof binds?"
    if not shares:
        return _missing(id_, question, row, "duration_ns", "dram_read_bytes", "dram_write_bytes",
                        "dram_peak_bytes_per_s", "tensor_flops", "tensor_peak_flops_per_s")
    name = max(shares, key=lambda k: shares[k])
    listed = ", ".join(f"{100 * v:.0f}% of {k}" for k, v in shares.items())
    if shares[name] >= NEAR:
        change = {"HBM": "Move fewer bytes: fuse steps, or keep operands on chip.",
                  "L2": "Read operands less often: more query rows a block.",
                  "special functions": "Overlap exponentials with matmuls, or compute part of them by polynomial."}
        return Finding(id_, question, FINE, f"{name}: the launch reaches {listed}.", 100 * shares[name], "%",
                       change.get(name, ""))
    return Finding(id_, question, LOOK, f"None: the launch reaches {listed}, so waiting binds it.", 100 * shares[name],
                   "%", "See the stalls: overlap loads with computation, or put more work in flight.")


def occupancy(row: Row, shares: dict[str, float]) -> Finding:
    """Low occupancy: harmful where nothing is near its roof, harmless where something is."""
    id_, question = "occupancy", "Is low occupancy a problem?"
    achieved, most = row["achieved_occupancy_pct"], row["theoretical_occupancy_pct"]
    if achieved is None:
        return _missing(id_, question, row, "achieved_occupancy_pct")
    limit = f", limited by {row['occupancy_limiter']}" if row["occupancy_limiter"] else ""
    top = f" of {digits(most)}% possible{limit}" if most is not None else ""
    nsight = ""
    if most is not None and most < 100:
        nsight = f"Nsight Compute's occupancy rule takes the missing {digits(100 - most)}% as the speed-up to be had."
    near = max(shares.values(), default=0.0)
    said = f"{digits(achieved)}%{top}"
    if achieved >= 50 or near >= 0.5 or row["stage"] in ("attention", "keys", "queries"):
        fused = "a fused kernel trades warps for registers and shared memory on purpose"
        few = "a roof is near with few warps" if near >= 0.5 else fused
        why = "enough warps to hide latency" if achieved >= 50 else few
        return Finding(id_, question, FINE, f"{said}; harmless: {why}.", achieved, "%",
                       nsight=nsight if achieved < 50 else "")
    if most is not None and achieved < 0.6 * most:
        return Finding(id_, question, LOOK, f"{said}: far below what its resources allow.", achieved, "%",
                       "The grid is too small or uneven: more blocks, or split the work further.")
    return Finding(id_, question, LOOK, f"{said}, and no roof is near.", achieved, "%",
                   f"Use fewer {row['occupancy_limiter'] or 'resources'} a block.")


def spills(row: Row) -> Finding:
    id_, question = "spills", "Do registers spill?"
    count = row["spill_requests"]
    if count is None:
        return _missing(id_, question, row, "spill_requests")
    registers = f" ({digits(row['registers_per_thread'])} registers a thread)" if row["registers_per_thread"] else ""
    if not count:
        return Finding(id_, question, FINE, f"No{registers}.", 0.0, "requests")
    return Finding(id_, question, LOOK, f"{count:,.0f} local-memory requests from spills{registers}.", count,
                   "requests", "Smaller blocks, more warps a block, or fewer stages.")


def bank_conflicts(row: Row, values: dict[str, str]) -> Finding:
    """Cycles lost to shared-memory bank conflicts, of the launch's cycles over all SMs."""
    id_, question = "bank_conflicts", "Do shared-memory accesses conflict?"
    name = next(n for n in metrics.SHOWN_NAMES if "bank_conflicts" in n)
    count = _number(values.get(name))
    cycles = row["sm_count"] and row["sm_clock_hz"] and row["duration_ns"] and \
        row["sm_count"] * row["sm_clock_hz"] * row["duration_ns"] * 1e-9
    if count is None or not cycles:
        return _missing(id_, question, row, what=f"not counted: bank conflicts; collect with --metrics {name}")
    share = count / cycles
    said = f"{count:,.0f} conflict cycles, {digits(100 * share)}% of the cycles of all SMs"
    if share < CONFLICT_SHARE:
        return Finding(id_, question, FINE, f"{said}.", 100 * share, "%")
    return Finding(id_, question, LOOK, f"{said}.", 100 * share, "%", "Swizzle or pad the shared-memory layout.")


def tail(row: Row) -> Finding:
    """Work lost because the last wave of blocks does not fill the GPU."""
    id_, question = "tail", "Does the last wave leave SMs idle?"
    waves = row["waves_per_sm"]
    if waves is None:
        return _missing(id_, question, row, "waves_per_sm")
    if waves <= 0:
        return Finding(id_, question, CANNOT_TELL, "The report gives no waves.", waves, "waves")
    lost = 1 - waves / math.ceil(waves)
    said = f"{digits(waves)} waves: up to {digits(100 * lost)}% of the SM time is idle at the end"
    if lost < TAIL_SHARE:
        return Finding(id_, question, FINE, f"{said}.", 100 * lost, "%")
    change = "More blocks: smaller query blocks, or split the keys." if waves < 1 else \
        "Smaller blocks, a persistent grid, or the longest rows first."
    return Finding(id_, question, LOOK, f"{said}.", 100 * lost, "%", change)


def l2_misses(row: Row) -> Finding:
    """How much of what the SMs read came from DRAM."""
    id_, question = "l2_misses", "Does L2 serve the re-reads?"
    read, served = row["dram_read_bytes"], row["l2_to_sm_bytes"]
    if read is None or served is None:
        return _missing(id_, question, row, "dram_read_bytes", "l2_to_sm_bytes")
    if not served:
        return Finding(id_, question, CANNOT_TELL, "Nothing was read from L2.", 0.0, "B")
    share = read / served
    said = f"{size(read)} from HBM for {size(served)} to the SMs ({digits(100 * min(share, 1))}% missed)"
    if share <= 0.5 or row["stage"] in ELEMENT_WISE:
        note = "" if share <= 0.5 else ": each byte is used once here, so L2 cannot help"
        return Finding(id_, question, FINE, f"{said}{note}.", 100 * share, "%")
    return Finding(id_, question, LOOK, f"{said}.", 100 * share, "%",
                   "If operands are re-read, order the blocks so that neighbours share them.")


STALL_ADVICE = {
    "long_scoreboard": "Waiting for global memory: load earlier (more stages), or fewer bytes.",
    "short_scoreboard": "Waiting for shared memory or special functions: overlap them with matmuls.",
    "barrier": "Waiting for other warps of the block: fewer barriers, or warps with work of their own.",
    "math_pipe_throttle": "The pipe is full: this is what a compute-bound kernel looks like.",
    "gmma": "Waiting for Tensor Core results: overlap softmax of one block with the matmul of another.",
    "wait": "Fixed latency between dependent instructions: more independent work a warp.",
    "mio_throttle": "Too many shared-memory or special-function instructions at once.",
    "lg_throttle": "Too many global-memory instructions at once: wider loads.",
    "no_instruction": "Waiting for instructions: a shorter loop body.",
}


def stalls(row: Row, values: dict[str, str]) -> Finding:
    """The reason that most warps wait for."""
    id_, question = "stalls", "What do warps wait for?"
    found = {}
    for name in metrics.SHOWN_NAMES:
        if "issue_stalled_" in name and (value := _number(values.get(name))) is not None:
            reason = name.split("issue_stalled_")[1].split("_per_")[0]
            if reason not in ("selected", "not_selected"):
                found[reason] = value
    total = sum(found.values())
    if not total:
        return _missing(id_, question, row,
                        what="not counted: warp stall reasons; collect with --section WarpStateStats")
    reason = max(found, key=lambda k: found[k])
    share = found[reason] / total
    return Finding(id_, question, FINE if reason == "math_pipe_throttle" else LOOK,
                   f"{reason.replace('_', ' ')}: {digits(100 * share)}% of the waiting.", 100 * share, "%",
                   STALL_ADVICE.get(reason, ""))


def captured(facts: Facts, row: Row) -> Finding:
    """Warm-up or autotuning caught among the launches: one stage must be one launch."""
    id_, question = "captured", "Was tuning or warm-up captured?"
    if row["config_id"] is not None:
        same = [r for r in facts.launches if r["config_id"] == row["config_id"] and r["stage"] == row["stage"]
                and r["kernel"] == row["kernel"]]
        said = f"{len(same)} launch{'es' if len(same) > 1 else ''} of this kernel in its range"
        return Finding(id_, question, FINE if len(same) == 1 else LOOK, f"{said}.", float(len(same)), "launches",
                       "" if len(same) == 1 else "Warm up before the range opens, and profile one call.")
    same = [r for r in facts.launches if r["kernel"] == row["kernel"]]
    forms = {(r["grid"], r["block"], r["registers_per_thread"], r["shared_bytes_per_block"]) for r in same}
    if len(same) > 1 and len(forms) > 1:
        times = [r["duration_ns"] for r in same if r["duration_ns"]]
        spread = f", {time(min(times))} to {time(max(times))}" if times else ""
        return Finding(id_, question, LOOK, f"{len(same)} launches of this kernel in {len(forms)} configurations"
                       f"{spread}: tuning may be among them.", float(len(forms)), "configurations",
                       "Warm up before profiling, and select launches by NVTX range.")
    return Finding(id_, question, FINE, f"{len(same)} launch{'es' if len(same) > 1 else ''} of this kernel, one "
                   "configuration.", float(len(forms)), "configurations")


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except (TypeError, ValueError):
        return None
    return None if value is None or math.isnan(value) else value
