"""`predict`: from a configuration to its Prediction. One entry an implementation and direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from profiler.errors import BadInput
from profiler.model import backward, decode, forward, hopper, sequences
from profiler.model.counts import rows_that_see
from profiler.model.forward import LEAST_TILE
from profiler.model.options import add_options
from profiler.model.prediction import Prediction, StagePrediction
from profiler.spec import DeviceSpec, Mask, RunConfig

Builder = Callable[[RunConfig], tuple[StagePrediction, ...]]

BUILDERS: Mapping[tuple[str, str], Builder] = {
    ("naive", "forward"): forward.naive,
    ("naive_folded", "forward"): forward.naive,
    ("flash1", "forward"): forward.flash1,
    ("flash2", "forward"): forward.fused,
    ("hopper", "forward"): hopper.attention,
    ("hopper_fp8", "forward"): forward.fused,
    ("flash_varlen", "forward"): forward.fused,
    ("flash_sparse", "forward"): forward.fused,
    ("decode", "forward"): decode.decode,
    ("sdpa_flash", "forward"): forward.fused,
    ("sdpa_cudnn", "forward"): forward.fused,
    ("sdpa_math", "forward"): forward.math_peer,
    ("naive", "backward"): backward.naive,
    ("naive_folded", "backward"): backward.naive,
    ("flash2", "backward"): backward.flash2,
    ("hopper", "backward"): backward.flash2,
    ("flash_varlen", "backward"): backward.flash2,
    ("flash_sparse", "backward"): backward.flash2,
    ("sdpa_flash", "backward"): backward.peer,
    ("sdpa_cudnn", "backward"): backward.peer,
}
# Fused kernels of others, under the names that their reports or runs give them. Q, K, V in and O out is what any of
# them must move; their tiles are never assumed.
FOREIGN = ("fa2", "fa3", "fa4", "vllm", "flashinfer", "sdpa_efficient")
BUILDERS = {**BUILDERS, **{(name, "forward"): forward.foreign for name in FOREIGN},
            **{(name, "backward"): backward.peer for name in ("fa2", "fa3", "fa4", "sdpa_efficient")}}
MATERIALISING = ("naive", "naive_folded", "sdpa_math")
# fused, with tiles that are known
OURS = ("flash1", "flash2", "hopper", "hopper_fp8", "flash_varlen", "flash_sparse", "decode")
BLOCK_SPARSE = ("flash2", "flash_sparse")
TWO_PASSES = ("flash2", "hopper", "flash_varlen", "flash_sparse")  # backward as flash2's, statistics padded


def predict(config: RunConfig, *, device: DeviceSpec | None = None, l2_size_bytes: int | None = None) -> Prediction:
    """What ``config`` must move, compute and hold.

    device: with it come time bounds and the L2 size, unless ``l2_size_bytes`` gives that. Parameters of ``config``
    beside tiles: block_mask (`Pattern.of`), q_lengths and k_lengths (`sequences`), options (`add_options`), of decode
    num_splits, page_size and n_new. Raises BadInput for an implementation that the model does not know, and for what
    it does not carry out.
    """
    builder = BUILDERS.get((config.implementation, config.direction))
    if builder is None:
        known = ", ".join(sorted({f"{name} {direction}" for name, direction in BUILDERS}))
        raise BadInput(f"predict: no model of {config.implementation} {config.direction}; known: {known}.")
    if l2_size_bytes is None and device is not None:
        l2_size_bytes = device.l2_size_bytes
    if config.parameters.get("block_mask") is not None and config.implementation not in BLOCK_SPARSE:
        raise BadInput(f"block_mask: {config.implementation} skips no blocks; {' and '.join(BLOCK_SPARSE)} do.")
    parts = sequences.sequences(config)
    compulsory, all_buffers = (
        (backward.compulsory_backward, _backward_buffers) if config.direction == "backward" else
        (forward.compulsory, _forward_buffers))
    must = sequences.total([(compulsory(part), often) for part, often in parts])
    buffers = sequences.total([(all_buffers(part), often) for part, often in parts])
    stages = sequences.add([(add_options(part, builder(part)), often) for part, often in parts])
    few = config.implementation == "sdpa_flash" and config.shape.nq < LEAST_TILE  # then it splits the keys as it likes
    unknown = few or config.implementation in PEAK_UNKNOWN.get(config.direction, ())
    peak = None if unknown else _peak(config, buffers)
    largest = max(buffers.items(), key=lambda item: item[1])
    return Prediction(config, stages, must, largest, peak, device, l2_size_bytes)


def knows(implementation: str, direction: str = "forward") -> bool:
    """Whether `predict` has a model of it."""
    return (implementation, direction) in BUILDERS


# Whose buffers are the library's choice: only the largest one that there must be is named.
PEAK_UNKNOWN: Mapping[str, tuple[str, ...]] = {
    "forward": ("sdpa_math", *FOREIGN), "backward": ("sdpa_flash", "sdpa_cudnn", *FOREIGN)}


def _forward_buffers(config: RunConfig) -> dict[str, int]:
    """Every tensor above the inputs that a forward allocates."""
    s = config.shape
    if config.implementation in MATERIALISING:
        n2 = s.batch * s.heads * rows_that_see(Mask.parse(s.mask), s.nq, s.nk) * s.nk * s.element_bytes
        return {"S": n2, "P": n2, "O": s.q_bytes}
    if config.implementation == "decode":
        partial = decode.partials(config) if config.parameters.get("num_splits", 1) > 1 else {}
        return {**partial, "O": s.q_bytes, "LSE": forward.statistics_bytes(s)}
    if config.implementation == "flash1":
        stat = forward.statistics_bytes(s)
        between = {"O, float32": s.batch * s.heads * s.nq * s.head_dim * forward.STATISTIC_BYTES}
        return {"O": s.q_bytes, "m": stat, "l": stat, **(between if s.element_bytes != forward.STATISTIC_BYTES else {})}
    return forward.output(config)


def _backward_buffers(config: RunConfig) -> dict[str, int]:
    """Every tensor above the inputs that a backward allocates; P of the naive one was kept by the forward. training:
    what the forward of the same step keeps for it counts too."""
    s = config.shape
    grads = {"dQ": s.q_bytes, "dK": s.k_bytes, "dV": s.k_bytes}
    if config.implementation in MATERIALISING:
        return {**grads, "dP": s.matrix_bytes, "dP∘P": s.matrix_bytes, "dS": s.matrix_bytes}
    if config.implementation not in TWO_PASSES:
        return grads
    stat = backward.padded_rows(s) * backward.statistic_bytes(config)
    total = {"dQ sum": backward.sum_bytes(config)} if backward.in_one_pass(config) else {}
    kept = {"O": s.q_bytes, "LSE": forward.statistics_bytes(s)} if config.parameters.get("training") else {}
    return {**grads, "LSE'": stat, "Δ": stat, **total, **kept}


def _peak(config: RunConfig, buffers: Mapping[str, int]) -> int:
    """Peak memory above the inputs, output included.

    Naive forward: a step's operand and result, two N×N matrices, are alive at once; S is freed before the last step, so
    that P and O are. Naive backward: while the softmax's gradient is computed dV, dP, dP ∘ P and dS are; at the end the
    three gradients and dS. Otherwise all buffers are alive together.
    """
    if config.implementation in MATERIALISING and config.direction == "backward":
        at_softmax = buffers["dV"] + buffers["dP"] + buffers["dP∘P"] + buffers["dS"]
        return max(at_softmax, buffers["dQ"] + buffers["dK"] + buffers["dV"] + buffers["dS"])
    if config.implementation in MATERIALISING:
        return max(buffers["S"] + buffers["P"], buffers["P"] + buffers["O"])
    return sum(buffers.values())
