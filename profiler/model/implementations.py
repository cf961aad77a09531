"""`predict`: from a configuration to its Prediction. One entry an implementation and direction."""

from __future__ import annotations

from collections.abc import Callable

from profiler.errors import BadInput
from profiler.model import forward
from profiler.model.counts import rows_that_see
from profiler.model.prediction import Prediction, StagePrediction
from profiler.spec import DeviceSpec, Mask, RunConfig

Builder = Callable[[RunConfig], tuple[StagePrediction, ...]]

BUILDERS: dict[tuple[str, str], Builder] = {
    ("naive", "forward"): forward.naive,
    ("naive_folded", "forward"): forward.naive,
    ("flash1", "forward"): forward.flash1,
    ("flash2", "forward"): forward.fused,
    ("sdpa_flash", "forward"): forward.fused,
    ("sdpa_cudnn", "forward"): forward.fused,
    ("sdpa_math", "forward"): forward.math_peer,
}
MATERIALISING = ("naive", "naive_folded", "sdpa_math")


def predict(config: RunConfig, *, device: DeviceSpec | None = None, l2_size_bytes: int | None = None) -> Prediction:
    """What ``config`` must move, compute and hold.

    device: with it come time bounds and the L2 size, unless ``l2_size_bytes`` gives that. Raises BadInput for an
    implementation that the model does not know.
    """
    builder = BUILDERS.get((config.implementation, config.direction))
    if builder is None:
        known = ", ".join(sorted({f"{name} {direction}" for name, direction in BUILDERS}))
        raise BadInput(f"predict: no model of {config.implementation} {config.direction}; known: {known}.")
    if config.direction == "forward" and config.parameters.get("num_splits", 1) > 1:
        builder = forward.split
    s = config.shape
    if l2_size_bytes is None and device is not None:
        l2_size_bytes = device.l2_size_bytes
    buffer, peak = _memory(config)
    return Prediction(config, builder(config), forward.compulsory(s), buffer, peak, device, l2_size_bytes)


def knows(implementation: str, direction: str = "forward") -> bool:
    """Whether `predict` has a model of it."""
    return (implementation, direction) in BUILDERS


def _memory(config: RunConfig) -> tuple[tuple[str, int], int | None]:
    """Largest buffer above the inputs, and peak memory above the inputs (output included).

    Materialising: a step's operand and result, two N×N matrices, are alive at once; before the last step S is freed, so
    that P and O are. Fused: O, and LSE where it is written. The library's own unfused form: its peak is not predicted.
    """
    s = config.shape
    if config.implementation in MATERIALISING:
        n2 = s.batch * s.heads * rows_that_see(Mask.parse(s.mask), s.nq, s.nk) * s.nk * s.element_bytes
        return ("S", n2), None if config.implementation == "sdpa_math" else max(2 * n2, n2 + s.q_bytes)
    stat = forward.statistics_bytes(s)
    splits = int(config.parameters.get("num_splits", 1))
    if splits > 1:
        partial = splits * s.batch * s.heads * s.nq * s.head_dim * 4
        return ("partial O", partial), partial + splits * stat + s.q_bytes + stat
    out = forward.output(config)
    return max(out.items(), key=lambda item: item[1]), sum(out.values())
