"""What an implementation does beside its matmuls: the share that FlashAttention-2 cut against FlashAttention-1."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.evidence import launch_questions as ask
from profiler.evidence.facts import Facts, Run
from profiler.evidence.finding import CANNOT_TELL
from profiler.spec import AttentionShape

FIRST, SECOND = "flash1", "flash2"
NO_SHARED = "no counter gives the shared-memory bytes that the Tensor Cores read themselves"


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one pass. share: CUDA-core and special-function operations a matmul FLOP, counted; None where one
    was not. stall: what most warps wait for; "" where it was not collected."""

    implementation: str
    matmul_flops: float | None
    core_flops: float | None
    special_ops: float | None
    share: float | None
    stall: str


def beside_matmuls(facts: Facts, shape: AttentionShape, direction: str = "forward") -> list[Work]:
    """A row for every counted implementation on a shape, in the bundle's order."""
    here = [r for r in facts.runs if r.shape == shape and r.config.direction == direction and r.rows]
    best = dict.fromkeys(r.config.implementation for r in here)
    return [_work(facts, run) for name in best if (run := facts.run(name, shape, direction)) and run.rows]


def _work(facts: Facts, run: Run) -> Work:
    matmul, core, special = (run.total(c) for c in ("tensor_flops", "fp32_flops", "special_ops"))
    known = core is not None and special is not None and bool(matmul)
    longest = max(run.rows, key=lambda row: row["duration_ns"] or 0)
    raw = facts.bundle.raw(int(longest["launch"]))
    values = dict(raw[["metric", "value"]].itertuples(index=False))
    found = ask.stalls(longest, values)
    return Work(run.config.implementation, matmul, core, special,
                (core + special) / matmul if known and core is not None and special is not None and matmul else None,
                "" if found.verdict == CANNOT_TELL else found.sentence)


def why_not_both(facts: Facts, shape: AttentionShape, direction: str = "forward") -> str:
    """Why FlashAttention-1 and 2 cannot be compared on a shape; "" where both are counted."""
    absent = [name for name in (FIRST, SECOND)
              if (run := facts.run(name, shape, direction)) is None or not run.rows]
    return f"this source holds no counted launch of {' or '.join(absent)} on this shape" if absent else ""
