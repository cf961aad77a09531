"""Questions that the counters of one launch answer, whoever wrote its kernel."""

from __future__ import annotations

import math
from dataclasses import replace

from profiler import metrics
from profiler.evidence import nsight
from profiler.evidence.claim import digits, size
from profiler.evidence.facts import Row, configuration
from profiler.evidence.finding import CANNOT_TELL, FINE, LOOK, Finding, lacking

NEAR = 0.6  # of a roof: from here on it binds
BUSY = 0.5  # of a roof, or of the time that matmuls and exponentials take in turn: waiting is hidden well enough
ENOUGH = 50  # per cent of the warps: more of them hide no more
CONFLICT_SHARE, TAIL_SHARE = 0.10, 0.20
REREAD = 1.1  # bytes to the SMs over bytes from HBM: below, nothing is read twice and L2 has nothing to serve
ONCE = 1.02  # of what the operands are: read from HBM once
WARPS_PER_SM = {"7.5": 32, "8.6": 48, "8.7": 48, "8.9": 48, "12.0": 48, "12.1": 48}  # of the others 64
ELEMENT_WISE = ("scale", "mask", "softmax", "prepare", "finish", "merge", "d_softmax", "d_scale", "d_mask")
LIBRARY = ("sdpa_", "naive")  # steps of a library: it may launch a kernel several times, and some have no matmul
MATMUL = 0.2  # of the call's 4·B·H·Nq·Nk·D: floating-point work on the CUDA cores below this is no matmul of it


def tensor_cores(row: Row, values: dict[str, str]) -> Finding:
    """Tensor Cores used, and if not, why."""
    id_, question = "tensor_cores", "Are the Tensor Cores used?"
    work, pipe = row["tensor_flops"], row["tensor_pipe_pct"]
    operations = row["tensor_ops"]
    if work is None and operations is None:
        return lacking(id_, question, row, "tensor_flops")
    if work or operations:
        busy = "" if pipe is None else f", their pipe is active in {digits(pipe)}% of the cycles"
        return Finding(id_, question, FINE, f"Used with {row['tensor_dtype'] or 'mixed'} operands{busy}.", pipe, "%",
                       nsight=nsight.float_roofline(values))
    config = configuration(row)
    if row["stage"] in ELEMENT_WISE:
        return Finding(id_, question, FINE, f"Not used, and the {row['stage']} step has no matmul.", 0.0, "FLOP")
    core, kind = max((row[c] or 0.0, c) for c in ("fp32_flops", "fp64_flops", "fp16_flops"))
    whole = 4 * config.shape.batch * config.shape.heads * config.shape.nq * config.shape.nk * config.shape.head_dim \
        if config is not None and config.implementation.startswith(LIBRARY) else 0
    if core <= MATMUL * whole and (config is None or whole):
        return Finding(id_, question, FINE, "Not used, and no floating-point matmul was counted either.", 0.0, "FLOP")
    why, change = f"its {kind[:4]} work ran on the CUDA cores ({core:.3g} FLOP)", "Use fp16 or bf16 operands."
    if config is not None and config.shape.dtype in ("fp32", "fp64"):
        why = f"{config.shape.dtype} operands are multiplied on the CUDA cores"
        change = "Use bf16 or fp16, or allow TF32."
    elif config is not None and config.shape.head_dim % 16:
        why = f"head size {config.shape.head_dim} is not a multiple of 16"
        change = "Pad the head size to a multiple of 16."
    verdict = LOOK if config is not None or row["stage"] else FINE
    return Finding(id_, question, verdict, f"Not used: {why}.", 0.0, "FLOP", change if verdict == LOOK else "")


def nearest_roof(row: Row, shares: dict[str, float], values: dict[str, str]) -> Finding:
    """Which roof is near: memory, L2, Tensor Cores, special functions, or none (latency)."""
    id_, question = "nearest_roof", "Which roof binds?"
    if not shares:
        found = lacking(id_, question, row, "duration_ns", "dram_read_bytes", "dram_write_bytes",
                        "dram_peak_bytes_per_s", "tensor_flops", "tensor_peak_flops_per_s")
        return replace(found, nsight=nsight.bottleneck(values))
    name = max(shares, key=lambda k: shares[k])
    listed = ", ".join(f"{_pct(100 * v)} of {k}" for k, v in shares.items())
    binds = shares[name] >= NEAR
    other = nsight.bottleneck(values, binds)
    if binds:
        change = {"HBM": "Move fewer bytes: fuse steps, or keep operands on chip.",
                  "L2": "Read operands less often: more query rows a block.",
                  "special functions": "Overlap exponentials with matmuls, or compute part of them by polynomial."}
        return Finding(id_, question, FINE, f"{name}: the launch reaches {listed}.", 100 * shares[name], "%",
                       change.get(name, ""), other)
    turns = shares.get("Tensor Cores", 0.0) + shares.get("special functions", 0.0)
    if turns >= NEAR:
        return Finding(id_, question, LOOK, f"None alone: the launch reaches {listed}. Matmuls and exponentials take "
                       f"turns: one after the other they would fill {_pct(100 * turns)} of the time.",
                       100 * shares[name], "%", "Overlap the softmax of one block with the matmul of another.", other)
    return Finding(id_, question, LOOK, f"None: the launch reaches {listed}, so waiting binds it.", 100 * shares[name],
                   "%", "See the stalls: overlap loads with computation, or put more work in flight.", other)


def occupancy(row: Row, shares: dict[str, float], values: dict[str, str]) -> Finding:
    """Low occupancy: harmless where warps enough are there or the pipes are busy all the same, else it may cost."""
    id_, question = "occupancy", "Is low occupancy a problem?"
    achieved, most = row["achieved_occupancy_pct"], row["theoretical_occupancy_pct"]
    if achieved is None:
        return lacking(id_, question, row, "achieved_occupancy_pct")
    top = f" of {digits(most)}% possible" if most is not None else ""
    said = f"{digits(achieved)}%{top}{_room(row)}"
    if achieved >= ENOUGH:
        return Finding(id_, question, FINE, f"{said}. Harmless: enough warps to hide latency.", achieved, "%")
    if busy := _busy(row, shares):
        return Finding(id_, question, FINE, f"{said}. Low and harmless: {busy}.", achieved, "%",
                       nsight=nsight.occupancy(values, most))
    if most is not None and achieved < 0.6 * most:
        return Finding(id_, question, LOOK, f"{said}. Far below what its resources allow, and no roof is near.",
                       achieved, "%", "The grid is too small or uneven: more blocks, or split the work further.")
    return Finding(id_, question, LOOK, f"{said}. It may cost: no roof is near, so waiting is not hidden.", achieved,
                   "%", f"More warps (fewer {row['occupancy_limiter'] or 'resources'} a block), or the same warps with "
                   "loads and matmuls that overlap (more stages).")


def _busy(row: Row, shares: dict[str, float]) -> str:
    """Why few warps are enough: a roof is near, or matmuls and exponentials take most of the time in turn."""
    if not shares:
        return ""
    pipe = f"; the tensor pipe is active in {digits(row['tensor_pipe_pct'])}% of the cycles" \
        if row["tensor_flops"] and row["tensor_pipe_pct"] else ""
    name = max(shares, key=lambda k: shares[k])
    if shares[name] >= BUSY:
        return f"the {name} roof is at {_pct(100 * shares[name])} with these few{pipe}"
    turns = shares.get("Tensor Cores", 0.0) + shares.get("special functions", 0.0)
    if turns >= BUSY:
        return f"matmuls and exponentials, one after the other, would fill {_pct(100 * turns)} of the time{pipe}"
    return ""


def _room(row: Row) -> str:
    """What sets the possible occupancy: registers × threads, shared memory, and the blocks that leaves an SM."""
    most, limit = row["theoretical_occupancy_pct"], row["occupancy_limiter"]
    if most is None or not row["block"]:
        return f", limited by {limit}" if limit else ""
    threads = math.prod(int(n) for n in row["block"].split(","))
    warps = math.ceil(threads / 32)
    blocks = round(most / 100 * WARPS_PER_SM.get(str(row["cc"]), 64) / warps)
    needs = [f"{row['registers_per_thread']:.0f} registers × {threads} threads"] if row["registers_per_thread"] else []
    needs += [f"{size(row['shared_bytes_per_block'])} of shared memory"] \
        if row["shared_bytes_per_block"] and "shared" in (limit or "") else []
    set_by = f", set by {limit}" if limit else ""
    return (f": {' and '.join(needs) or f'{warps} warps'} a block leave room for {blocks} block{'s' * (blocks != 1)} "
            f"({blocks * warps} warps) on an SM{set_by}")


def spills(row: Row) -> Finding:
    id_, question = "spills", "Do registers spill?"
    count = row["spill_requests"]
    if count is None:
        return lacking(id_, question, row, "spill_requests")
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
        return lacking(id_, question, row, what=f"not counted: bank conflicts; collect with --metrics {name}")
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
        return lacking(id_, question, row, "waves_per_sm")
    if waves <= 0:
        return Finding(id_, question, CANNOT_TELL, "The report gives no waves.", waves, "waves")
    lost = 1 - waves / math.ceil(waves)
    said = f"{digits(waves)} waves: up to {digits(100 * lost)}% of the SM time is idle at the end"
    if lost < TAIL_SHARE:
        return Finding(id_, question, FINE, f"{said}.", 100 * lost, "%")
    change = "More blocks: smaller query blocks, or split the keys." if waves < 1 else \
        "Smaller blocks, a persistent grid, or the longest rows first."
    return Finding(id_, question, LOOK, f"{said}.", 100 * lost, "%", change)


def l2_misses(row: Row, needed: float | None) -> Finding:
    """How much of what the SMs read came from DRAM; needed: bytes of its operands once, where the model knows them."""
    id_, question = "l2_misses", "Does L2 serve the re-reads?"
    read, served = row["dram_read_bytes"], row["l2_to_sm_bytes"]
    if read is None or served is None:
        return lacking(id_, question, row, "dram_read_bytes", "l2_to_sm_bytes")
    if not served:
        return Finding(id_, question, CANNOT_TELL, "Nothing was read from L2.", 0.0, "B")
    share = read / served
    said = f"{size(read)} from HBM for {size(served)} to the SMs ({_pct(100 * min(share, 1))} missed)"
    if needed and read <= ONCE * needed:
        return Finding(id_, question, FINE, f"{said}: its operands once ({size(needed)}), which no cache can spare.",
                       100 * share, "%")
    if served < REREAD * read:
        return Finding(id_, question, FINE, f"{said}: hardly a byte is read twice, so L2 has nothing to serve.",
                       100 * share, "%")
    if share <= 0.5 or row["stage"] in ELEMENT_WISE:
        return Finding(id_, question, FINE, f"{said}.", 100 * share, "%")
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
    "imc_miss": "Waiting for constants, such as the kernel's arguments, that their cache does not hold: usual in a "
                "launch too short to warm it.",
    "drain": "Waiting for the last stores before the end: fewer or wider stores at the end.",
    "membar": "Waiting for a memory barrier: fewer fences, or fewer stores before each.",
    "sleeping": "Warps that put themselves to sleep: polling of a flag.",
    "tex_throttle": "Too many texture or surface instructions at once: fewer or wider ones.",
    "branch_resolving": "Waiting for the target of a branch: fewer branches in the loop.",
    "dispatch_stall": "The dispatcher waits for a free unit: nothing that the kernel can name.",
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
        return lacking(id_, question, row,
                        what="not counted: warp stall reasons; collect with --section WarpStateStats")
    reason = max(found, key=lambda k: found[k])
    share = found[reason] / total
    return Finding(id_, question, FINE if reason == "math_pipe_throttle" else LOOK,
                   f"{reason.replace('_', ' ')}: {digits(100 * share)}% of the waiting.", 100 * share, "%",
                   STALL_ADVICE.get(reason, ""))


def _pct(value: float) -> str:
    return f"{value:.0f}%" if value >= 9.5 or not value else f"{value:.2g}%"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except (TypeError, ValueError):
        return None
    return None if value is None or math.isnan(value) else value
