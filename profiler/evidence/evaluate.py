"""Every claim on a bundle: each check on each shape, summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from profiler import metrics, table
from profiler.evidence import checks_blocks, checks_bytes, checks_time, checks_work
from profiler.evidence.claim import CANNOT_TELL, FAILS, HOLDS, UNDECIDED, Claim, Outcome
from profiler.evidence.facts import Facts, Row
from profiler.spec import AttentionShape

DRAM = ("dram_read_bytes", "dram_write_bytes")
ROOFS = (*DRAM, "tensor_flops", "dram_peak_bytes_per_s", "tensor_peak_flops_per_s")


@dataclass(frozen=True, slots=True)
class Check:
    """One claim: its check on one shape, the launches columns it reads, its tolerance in words, the figure of it.

    suite: the one that records what it needs, where that is no part of every profile.
    """

    id: str
    statement: str
    run: Callable[[Facts, AttentionShape], Outcome]
    columns: tuple[str, ...]
    tolerance: str
    figure: str
    suite: str = ""


CHECKS: tuple[Check, ...] = (
    Check("same_result", "Flash is exact: it computes the same attention.", checks_work.same_result, (),
          "at most 2 × the error of eager PyTorch, or the floor of the dtype", "evidence"),
    Check("same_flops", "Flash does the same matrix work as naive.", checks_work.same_flops, ("tensor_flops",),
          "0.1% for a full mask", "evidence"),
    Check("no_s_p_in_hbm", "S and P stay in the SMs and never reach HBM.", checks_bytes.no_s_p_in_hbm,
          ("sm_to_l2_bytes", *DRAM), "from the SMs to L2, and through HBM, less than 40% of one N×N matrix beyond its "
          "own tensors (a causal kernel would write half)", "ledger"),
    Check("naive_passes", "Naive moves whole N×N matrices through HBM, pass by pass.", checks_bytes.naive_passes, DRAM,
          "each launch 2% beyond what is predicted; all reads within half a matrix; writes between (written − L2) and "
          "written", "ledger"),
    Check("compulsory_floor", "Flash's HBM reads are the compulsory ones where Q, K and V stay in L2.",
          checks_bytes.compulsory_floor, DRAM,
          "reads 2% where two copies of Q, K and V fit in L2; writes between (written − L2) and written", "ledger"),
    Check("memory_linear", "Flash's memory grows with N, naive's with N².", checks_bytes.memory_linear, (),
          "exponent 1 ± 0.05 and 2 ± 0.1", "memory"),
    Check("speedup", "Flash is faster.", checks_time.speedup, (), "spreads (20th to 80th percentile) apart", "time"),
    Check("occupancy_not_speed", "Occupancy does not decide speed.", checks_time.occupancy_not_speed,
          ("achieved_occupancy_pct",), "the faster one has the lower occupancy", "evidence"),
    Check("naive_memory_bound", "Naive is bound by HBM; flash is far from it.", checks_time.naive_memory_bound, ROOFS,
          "naive's nearest roof is HBM", "roofline"),
    Check("flash_compute_bound", "Flash is bound by computation.", checks_time.flash_compute_bound, ROOFS,
          "the nearest roof is Tensor Cores or special functions", "roofline"),
    Check("theorem_l2_to_sm", "Behind a large L2, the theorem's bytes flow from L2 to the SMs.",
          checks_blocks.theorem_l2_to_sm, ("l2_to_sm_bytes",), "1%", "theorem"),
    Check("block_size_raises_intensity", "A larger query block moves fewer bytes.",
          checks_blocks.block_size_raises_intensity, ("l2_to_sm_bytes",),
          "bytes fall with every step; where time stops following is told", "theorem", "tuning"),
    Check("special_functions_bind_small_d", "At a small head size the exponentials take as long as the matmuls.",
          checks_work.special_functions_bind_small_d, ("special_ops", "tensor_flops"),
          "exponentials ask for at least 95% of the matmuls' time", "roofline"),
    Check("causal_skips_half", "A causal mask saves half of the work.", checks_work.causal_skips_half,
          ("tensor_flops",), "at most 60% of the full mask's FLOPs, at least the visible share", "evidence"),
    Check("small_n_no_profit", "Short sequences do not profit.", checks_time.small_n_no_profit, (),
          "less than 1.2 × at the shortest N", "time"),
    Check("recomputation_pays", "Recomputation pays: more FLOPs, less time.", checks_work.recomputation_pays,
          ("tensor_flops",), "more tensor FLOPs and a shorter median", "evidence", "backward"),
    Check("decode_memory_bound", "Decode stays bound by memory.", checks_time.decode_memory_bound, ROOFS,
          "the nearest roof is HBM", "roofline", "decode"),
)

NO_RANGES = ("No claim can be checked without knowing which launch is which (implementation, step, shape), and this "
             "source has no ranges that say it. Profile with `python -m profiler run`, or annotate the ranges in "
             "domain flashscope.")
NEED_NAIVE = frozenset(("same_flops", "naive_passes", "memory_linear", "speedup", "occupancy_not_speed",
                        "naive_memory_bound", "small_n_no_profit"))
NO_NAIVE = "naive attention beside flash, which this profile does not hold on this shape."
NO_LAUNCHES = "This profile holds no profiled launch, so nothing about bytes or operations can be checked."
NAMED = "launches that are named; every counter for it is here"
TIMED = "unprofiled timings (time, memory, error): `python -m profiler run`"


def evaluate(facts: Facts, shape: AttentionShape | None = None, checks: Sequence[Check] = CHECKS) -> list[Claim]:
    """All claims on one shape, or (None) on every shape of the bundle, in a fixed order."""
    if not facts.runs:
        return [_undecided(facts, check) for check in checks]
    if shape is not None:
        return [_claim(facts, check, shape) for check in checks]
    shapes = list(dict.fromkeys(r.shape for r in facts.runs))
    lead = default_shape(facts)
    return [_sum_up(check, [_claim(facts, check, s) for s in shapes], lead) for check in checks]


def default_shape(facts: Facts) -> AttentionShape | None:
    """The shape that shows most: largest N ≤ 4096, full mask, D 64 first, with naive and flash recorded."""
    def rank(s: AttentionShape) -> tuple[bool, bool, bool, bool, int, int]:
        both = facts.naive(s) is not None and facts.flash(s) is not None
        return both, s.mask == "full", s.head_dim == 64, s.nq <= 4096, s.nq if s.nq <= 4096 else -s.nq, s.nk

    return max(facts.shapes(), key=rank, default=None)


def _claim(facts: Facts, check: Check, shape: AttentionShape) -> Claim:
    out = check.run(facts, shape)
    missing, sentence = "", out.sentence
    if out.verdict == CANNOT_TELL:
        counters = _absent(check, facts.rows_of(shape))
        lacking = NO_NAIVE if check.id in NEED_NAIVE and facts.naive(shape) is None else out.missing
        missing = f"{lacking} Missing {counters}." if counters else lacking
        sentence = f"{out.sentence} It needs {missing}"
    return Claim(check.id, check.statement, out.verdict, sentence, out.value, out.unit, check.tolerance, out.inputs,
                 missing, out.kind, check.figure, shape)


def _absent(check: Check, rows: Sequence[Row]) -> str:
    """The counters of a check that no launch has, and the ncu option that collects them; "" when all are there."""
    absent = [c for c in check.columns if rows and not any(row[c] is not None for row in rows)]
    if not absent:
        return ""
    listed = ", ".join(table.column("launches", c).meaning for c in absent)
    flag = metrics.missing_flag(absent, next((row["cc"] for row in rows if row["cc"]), None))
    return f"counters that the report does not hold: {listed}" + (f"; collect them with {flag}" if flag else "")


def _sum_up(check: Check, cases: Sequence[Claim], lead: AttentionShape | None) -> Claim:
    """Fails where one shape fails; holds where one holds and none fails; the sentence is the leading shape's."""
    by_verdict = {v: [c for c in cases if c.verdict == v] for v in (FAILS, HOLDS, CANNOT_TELL)}
    verdict = next(v for v in (FAILS, HOLDS, CANNOT_TELL) if by_verdict[v])
    decided = by_verdict[verdict]
    first = max(decided, key=lambda c: _likeness(c.shape, lead))
    counts = ", ".join(f"{v} on {len(by_verdict[v])}" for v in (HOLDS, FAILS, CANNOT_TELL) if by_verdict[v])
    sentence = first.sentence + (f" ({first.shape.label()}; of all shapes: {counts}.)" if first.shape else "")
    return replace(first, sentence=sentence, cases=tuple(cases))


def _likeness(shape: AttentionShape | None, lead: AttentionShape | None) -> tuple[bool | int, ...]:
    """How well a shape stands for the leading one: the same, the same under another mask, its head size, largest N."""
    if shape is None or lead is None:
        return (False, False, False, 0)
    return shape == lead, replace(shape, mask=lead.mask) == lead, shape.head_dim == lead.head_dim, shape.nq * shape.nk


def shared_cause(facts: Facts) -> str:
    """What keeps every claim from being checked on launches without our ranges; "" where nothing does."""
    if facts.runs:
        return ""
    return NO_RANGES if facts.launches else NO_LAUNCHES


def _undecided(facts: Facts, check: Check) -> Claim:
    """On launches without our ranges: what this claim lacks beside the shared cause, counters with their flag."""
    parts = [_absent(check, facts.launches)] if facts.launches else []
    parts += [] if check.columns else [TIMED]
    missing = "; ".join(part for part in parts if part) or NAMED
    return Claim(check.id, check.statement, CANNOT_TELL, f"{UNDECIDED} It needs {missing}.", tolerance=check.tolerance,
                 missing=f"{missing[0].upper()}{missing[1:]}.", figure=check.figure)


def beside(claims: Sequence[Claim], facts: Facts, others: Sequence[Facts]) -> list[Claim]:
    """``claims`` of ``facts``; those whose suite it is not are taken from the first of ``others`` that decides them.

    Only profiles of the same GPU count, and the claim then names its ``source``: a decode, say, is no part of every
    suite. What a short sequence or a missing counter leaves open stays open.
    """
    undecided = {c.id for c in claims if c.verdict == CANNOT_TELL} if facts.runs else set()
    shapes = list(dict.fromkeys(r.shape for r in facts.runs))
    open_ = [check for check in CHECKS if check.suite and check.id in undecided
             and all(check.run(facts, s).verdict == CANNOT_TELL for s in shapes)]
    found: dict[str, Claim] = {}
    for f in (f for f in others if open_ and f.runs and f.gpu.get("name") == facts.gpu.get("name")):
        for claim in evaluate(f, checks=open_):
            if claim.verdict != CANNOT_TELL and claim.id not in found:
                found[claim.id] = replace(claim, source=f.bundle.name)
    return [found.get(claim.id, claim) for claim in claims]
