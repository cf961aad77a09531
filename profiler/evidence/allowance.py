"""By how much a counter may differ from the prediction, cause by cause: what makes a prediction an interval.

One account for verdicts, parity, ledger and residuals. What depends on a choice that is not ours (a library's tiles,
its spilled registers, how many launches it takes) is bounded by another counter of the same launches; the rest is
predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiler.bundle import Bundle
from profiler.evidence.facts import Facts, Row, Run
from profiler.model import StagePrediction, wave_reads

DIRTY = "dirty lines left in L2"
CARRIED = "dirty lines of earlier kernels"
REFETCH = "refetch: the working set exceeds L2"
WAVE_REFETCH = "refetch as predicted: what a wave walks exceeds L2"
THROUGH = "O, m and l, which go through memory between passes over the keys"
MASK_AGAIN = "the mask matrix, read again by every head"
TILES = "operands read again by several tiles"
CACHED = "already in L2"
IN_L1 = "already in L1"
SKIPPED = "masked elements that are not read"
HANDED = "handed from one launch of the library to the next"
SPILLED = "spilled registers"
UNKNOWN_TILES = "tiles of the library, not known"
ONCE_A_THREAD = "index arithmetic and the division by the row sum"
REST = "rest"
SPILL_BYTES = 128  # at most, of one local-memory request: 32 lanes of 4 B
# Special-function operations of a thread outside the loop: integer divisions and reciprocals run on the same units.
# Every flash2 forward recorded on an H200 has 11 a thread.
OPERATIONS_A_THREAD = 16
# Read by a launch beside its tensors (instructions, arguments, hopper's lists of tiles): at most 75 kB a launch in all
# H200 profiles.
LAUNCH_BYTES = 80 * 1024
# Of the L2: dirty lines that a launch may find in spite of a flush. Decode launches on an H200, which have next to
# nothing to write, wrote 2.0 to 2.5 MB of them (4%).
FLUSH_LEAVES = 0.05
# quantity → (launches column, unit, tolerance beyond the predicted interval)
QUANTITIES = {
    "dram_read": ("dram_read_bytes", "B", 0.02), "dram_write": ("dram_write_bytes", "B", 0.02),
    "l2_to_sm": ("l2_to_sm_bytes", "B", 0.01), "sm_to_l2": ("sm_to_l2_bytes", "B", 0.05),
    "tensor_flops": ("tensor_flops", "FLOP", 0.001), "special_ops": ("special_ops", "op", 0.10),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """A prediction and what may be added or missing. less, more: (cause, at most how much), likeliest first.

    A cause without a known limit has math.inf.
    """

    predicted: float
    less: tuple[tuple[str, float], ...] = ()
    more: tuple[tuple[str, float], ...] = ()

    @property
    def low(self) -> float:
        return max(0.0, self.predicted - sum(most for _, most in self.less))

    @property
    def high(self) -> float:
        """math.inf for a lower bound."""
        return self.predicted + sum(most for _, most in self.more)

    def outside(self, measured: float) -> float:
        """How far measured lies above high or (negative) below low."""
        return max(0.0, measured - self.high) + min(0.0, measured - self.low)

    def causes(self, measured: float) -> list[tuple[str, float]]:
        """measured − predicted as named parts, each within what its cause can explain, and the rest."""
        left, out = measured - self.predicted, []
        sign = 1.0 if left > 0 else -1.0
        for cause, most in self.more if left > 0 else self.less:
            part = sign * min(abs(left), most)
            if part:
                out.append((cause, part))
                left -= part
        return [*out, (REST, left)] if left else out


def expected(facts: Facts, run: Run, stage: StagePrediction, quantity: str) -> Expected | None:
    """What a counter of ``stage`` may show; None where the model does not predict it, or needs an unknown L2 size."""
    if quantity in ("dram_read", "dram_write"):
        return _dram(facts, run, stage, quantity)
    value = {"tensor_flops": stage.flops_computed, "special_ops": stage.special_ops}.get(quantity) \
        if quantity in ("tensor_flops", "special_ops") else stage.level_bytes(quantity)
    if value is None:
        return None
    more = [] if quantity in ("tensor_flops", "special_ops") else beyond_the_model(run, stage, quantity)
    if quantity == "special_ops" and "exponentials" not in stage.at_least:
        more += _named((ONCE_A_THREAD, OPERATIONS_A_THREAD * _threads(run.launches.get(stage.stage, []))))
    bound = "exponentials" if quantity == "special_ops" else quantity
    if bound in stage.at_least:
        more.append((UNKNOWN_TILES, math.inf))
    less: tuple[tuple[str, float], ...] = ()
    if quantity == "l2_to_sm":
        kept = sum(stage.refetch.values()) if quantity in stage.at_least else 0
        less = _named((SKIPPED, sum(stage.skipped.values())), (IN_L1, kept))
    return Expected(value, less, tuple(more))


def slack(facts: Facts, run: Run, stage: StagePrediction, quantity: str, predicted: float) -> float:
    """How far outside its interval a counter still agrees: the quantity's tolerance, or what every launch adds."""
    fixed = {"dram_read": float(LAUNCH_BYTES), "dram_write": FLUSH_LEAVES * (facts.l2_size_bytes or 0)}
    launches = len(run.launches.get(stage.stage, ()))
    return max(QUANTITIES[quantity][2] * predicted, fixed.get(quantity, 0.0) * launches)


def _dram(facts: Facts, run: Run, stage: StagePrediction, quantity: str) -> Expected | None:
    """Writes short: the write-back L2 keeps up to its size a launch; above without a flush: what earlier kernels left.

    Reads short without a flush: up to the L2 was there. Reads above: operands that do not stay in L2 come again. With
    known tiles at most once a query block, and at most once a wave of resident blocks, for those walk the same rows
    together (how much of it the order of our programs predicts comes first); a library's matmul at most as often as
    they cross from L2 to the SMs, which is counted.
    """
    l2 = facts.l2_size_bytes
    if l2 is None:
        return None
    launches = run.launches.get(stage.stage, [])
    room, own = l2 * max(1, len(launches)), beyond_the_model(run, stage, quantity)
    unflushed = 0 if facts.flushed else room
    library = [(UNKNOWN_TILES, math.inf)] if "dram" in stage.at_least else []
    if quantity == "dram_write":
        written = stage.dram_written_bytes
        beside = _named((CARRIED, unflushed), (THROUGH, sum(stage.rewrite.values())))
        return Expected(written, _named((DIRTY, min(written, room))), (*beside, *own, *library))
    again: list[tuple[str, float]] = []
    if stage.rewrite:
        again = [(THROUGH, sum(stage.refetch.values()))]
    elif not stage.stays_in_l2(l2):
        if stage.refetch:
            most, foreseen = _by_waves(launches, stage), _foreseen(facts, run, launches, stage)
            again = [(WAVE_REFETCH, min(most, foreseen)),
                     (MASK_AGAIN if set(stage.refetch) == {"mask"} else REFETCH, max(0.0, most - foreseen))]
        elif stage.flops_visible and (stage.l2_to_sm is None or "l2_to_sm" in stage.at_least):
            crossed = run.total("l2_to_sm_bytes", stage.stage)
            cause = REFETCH if stage.l2_to_sm is None else TILES
            again = [(cause, math.inf if crossed is None else max(0.0, crossed - stage.dram_read_bytes))]
    less = _named((SKIPPED, sum(stage.skipped.values())), (CACHED, unflushed))
    return Expected(stage.dram_read_bytes, less, (*_named(*again), *own, *library))


def _by_waves(launches: list[Row], stage: StagePrediction) -> float:
    """``refetch``, but no tensor more often than the launch has waves; a grid of one wave may loop over its blocks."""
    waves = max((math.ceil(row["waves_per_sm"]) for row in launches if row["waves_per_sm"]), default=0)
    if waves < 2:
        return sum(stage.refetch.values())
    return sum(min(most, (waves - 1) * stage.reads[tensor]) for tensor, most in stage.refetch.items())


def _foreseen(facts: Facts, run: Run, launches: list[Row], stage: StagePrediction) -> float:
    """What the waves of our own kernels must fetch again, predicted from the order of their programs; else 0."""
    row = launches[0] if len(launches) == 1 else {}
    if not (row.get("waves_per_sm") and row.get("grid")):
        return 0.0
    slots = round(math.prod(int(n) for n in row["grid"].split(",")) / row["waves_per_sm"])
    kept, key = facts.bundle.once(_foreseen_before), (run.config.config_id, stage.stage, slots)
    if key not in kept:
        found = wave_reads(run.config, stage.stage, stage.dram_read_bytes, slots, facts.l2_size_bytes or 0,
                           code_hash=facts.bundle.profile.get("code_hash") or "")
        kept[key] = float(found.expected - found.once) if found else 0.0
    return kept[key]


def _foreseen_before(bundle: Bundle) -> dict[tuple[str, str, int], float]:
    """Configuration, stage, slots → what `_foreseen` found: several claims ask, and the walk over programs is long."""
    return {}


def _threads(launches: list[Row]) -> int:
    """Threads of all launches, from their grids and blocks ("x,y,z"); 0 where these are not known."""
    sizes = [f"{row['grid']},{row['block']}".split(",") for row in launches if row["grid"] and row["block"]]
    return sum(math.prod(int(n) for n in size) for size in sizes)


def beyond_the_model(run: Run, stage: StagePrediction, quantity: str) -> list[tuple[str, float]]:
    """Bytes that only a library's or a compiler's choice explains, each limited by what was counted.

    Spilled registers: their local-memory requests; at DRAM no more than what left the SMs beyond the results, and read
    back no more than was written, for a line comes from DRAM only after it was evicted.
    """
    launches = run.launches.get(stage.stage, [])
    handed = sum(row["sm_to_l2_bytes"] or 0 for row in launches[:-1]) if stage.l2_to_sm is None else 0
    spills: float = SPILL_BYTES * sum(row["spill_requests"] or 0 for row in launches)
    given, out = stage.level_bytes("sm_to_l2"), run.total("sm_to_l2_bytes", stage.stage)
    if quantity in ("dram_read", "dram_write") and out is not None:
        spills = min(spills, max(0, out - (given or 0) - handed))
    if quantity == "dram_read":
        spills = min(spills, run.total("dram_write_bytes", stage.stage) or 0)
    return list(_named((HANDED, handed), (SPILLED, spills)))


def _named(*causes: tuple[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((cause, most) for cause, most in causes if most)
