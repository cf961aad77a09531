"""From what must be to what was counted, cause by cause: every quantity of every stage of one run."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.evidence.allowance import ONCE_A_THREAD, QUANTITIES, REST, UNKNOWN_TILES, expected
from profiler.evidence.facts import Facts, Run
from profiler.model import StagePrediction, visible_pairs
from profiler.spec import AttentionShape, Mask

MASKED = "masked pairs of blocks on the diagonal"
PADDING = "tile padding"
STATISTICS = "row statistics"
AGAIN = "K and V read again by every query block"
REPEATED = "scores that several warps compute"
RESCALE = "rescaling when the maximum moves"


@dataclass(frozen=True, slots=True)
class Residual:
    """One quantity of one stage: least + Σ causes = measured; the last cause is the rest where one is left.

    least: what the mathematics asks for (visible pairs, each tensor once). predicted: least and the causes that the
    model predicts; the others are measured − predicted, named where a cause can explain it.
    """

    stage: str
    quantity: str  # as in parity.QUANTITIES
    unit: str
    least: float
    predicted: float
    measured: float
    causes: tuple[tuple[str, float], ...]

    @property
    def rest(self) -> float:
        """What no cause explains."""
        return dict(self.causes).get(REST, 0.0)


def residuals(facts: Facts, implementation: str, shape: AttentionShape, direction: str = "forward") -> list[Residual]:
    """Rows for every quantity that was counted; empty when the run is not in the bundle or has no model."""
    run = facts.run(implementation, shape, direction)
    if run is None or run.prediction is None:
        return []
    out = []
    for stage in run.predicted.stages:
        for quantity, (column, unit, _) in QUANTITIES.items():
            measured = run.total(column, stage.stage)
            if measured is not None:
                out.append(_residual(facts, run, stage, quantity, unit, measured))
    return out


def _residual(facts: Facts, run: Run, stage: StagePrediction, quantity: str, unit: str, measured: float) -> Residual:
    least, steps = _steps(run.shape, stage, quantity)
    predicted = least + sum(amount for _, amount in steps)
    found = expected(facts, run, stage, quantity)
    if found is not None:
        steps += found.causes(measured)
    elif measured != predicted:
        steps.append((UNKNOWN_TILES if measured > predicted else REST, measured - predicted))
    return Residual(stage.stage, quantity, unit, least, predicted, measured, tuple(steps))


def _steps(shape: AttentionShape, stage: StagePrediction, quantity: str) -> tuple[float, list[tuple[str, float]]]:
    """(least, predicted causes) of a quantity; without tiles only the least."""
    if quantity == "dram_read":
        return stage.dram_read_bytes, []
    if quantity == "dram_write":
        statistics = stage.writes.get("LSE", 0)
        return stage.dram_written_bytes - statistics, _named((STATISTICS, statistics))
    if quantity == "l2_to_sm":
        once = stage.dram_read_bytes
        return once, _named((AGAIN, (stage.level_bytes(quantity) or once) - once))
    if quantity == "sm_to_l2":
        given = stage.level_bytes(quantity) or 0
        statistics = (stage.sm_to_l2 or {}).get("LSE", 0)
        return given - statistics, _named((STATISTICS, statistics))
    blocks = stage.blocks
    if quantity == "tensor_flops":
        if blocks is None or stage.flops_computed is None:
            masked = (stage.flops_computed or stage.flops_visible) - stage.flops_visible
            return stage.flops_visible, _named((MASKED, masked))
        real = stage.flops_visible * blocks.real_pairs * stage.heads // max(1, _visible(stage, shape))
        once = 2 * stage.flops_computed // (1 + _repeats(stage))
        return stage.flops_visible, _named((MASKED, real - stage.flops_visible), (PADDING, once - real),
                                           (REPEATED, stage.flops_computed - once))
    if blocks is None:
        return stage.exponentials or 0, _named((RESCALE, stage.rescales or 0), (ONCE_A_THREAD, stage.overhead_ops))
    visible, real = _visible(stage, shape), blocks.real_pairs * stage.heads
    once = (stage.exponentials or 0) // _repeats(stage)
    return visible, _named((MASKED, real - visible), (PADDING, once - real),
                           (REPEATED, (stage.exponentials or 0) - once), (RESCALE, stage.rescales or 0),
                           (ONCE_A_THREAD, stage.overhead_ops))


def _repeats(stage: StagePrediction) -> int:
    """How often each score of a visited block is computed: more than once where warps outnumber the rows."""
    pairs = stage.heads * stage.blocks.computed_pairs if stage.blocks else 0
    return max(1, (stage.exponentials or 0) // pairs) if pairs else 1


def _visible(stage: StagePrediction, shape: AttentionShape) -> int:
    """Visible pairs over all heads: each costs the same number of visible FLOPs."""
    return stage.heads * visible_pairs(Mask.parse(shape.mask), shape.nq, shape.nk)


def _named(*steps: tuple[str, float]) -> list[tuple[str, float]]:
    return [(cause, amount) for cause, amount in steps if amount]
