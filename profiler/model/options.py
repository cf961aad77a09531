"""What the options of fused attention add to bytes and operations, by the names that flash_attention has for them.

Parameters: attn_bias: how many different Nq × Nk matrices there are, 1 to batch · heads (True: all), bias_bytes of an
element (the operands' by default); key_padding_mask: True; softcap, dropout_p: > 0; alibi_slopes, sinks: True.
A window changes which blocks are visited, not how (`profiler.model.pattern`).
"""

from __future__ import annotations

from dataclasses import replace

from profiler.errors import BadInput
from profiler.model.prediction import WARP, StagePrediction
from profiler.spec import RunConfig

SECTOR_BYTES = 32  # the least that crosses between L2 and an SM
TANH_OPS = 2  # special-function operations of 1 − 2 / (1 + exp 2y): an exponential and a reciprocal
CARRIED_OUT: dict[str, tuple[str, ...]] = {
    "flash2": ("attn_bias", "key_padding_mask", "softcap", "alibi_slopes", "sinks", "dropout_p"),
    "flash_varlen": ("softcap", "alibi_slopes", "sinks", "dropout_p"), "decode": ("softcap",)}
NAMES = CARRIED_OUT["flash2"]
PAIRWISE = ("attention", "keys", "queries")  # stages that look at pairs


def add_options(config: RunConfig, stages: tuple[StagePrediction, ...]) -> tuple[StagePrediction, ...]:
    """The stages with what the options that are on add. Raises BadInput for one that the implementation has not.

    Additive bias: each tile's elements are read beside its scores, by every head: heads · (pairs in visited tiles)
    elements from L2, different matrices once from HBM, again where they have left the L2. Softcap c·tanh(s/c) adds an
    exponential and a reciprocal a computed pair, in every pass that computes the scores. Dropout draws by integer
    arithmetic (Philox): no bytes but the seed, one reciprocal a thread, and the mask is computed again in the backward.
    A sink joins the denominator at the end: two exponentials in each lane that holds a row.
    """
    on = [name for name in NAMES if config.parameters.get(name)]
    has = CARRIED_OUT.get(config.implementation, ())
    if missing := [name for name in on if name not in has]:
        raise BadInput(f"{missing[0]}: {config.implementation} has no such option; it has {', '.join(has) or 'none'}.")
    return tuple(_add(config, stage, on) if stage.stage in PAIRWISE else stage for stage in stages) if on else stages


def _add(config: RunConfig, stage: StagePrediction, on: list[str]) -> StagePrediction:
    s, p, blocks = config.shape, config.parameters, stage.blocks
    heads, forward = s.batch * s.heads, stage.stage == "attention"
    reads, again, moved = dict(stage.reads), dict(stage.refetch), dict(stage.l2_to_sm or {})
    programs = stage.heads * _programs(config, stage)

    def read(name: str, once: int, crossing: int) -> None:
        reads[name], moved[name] = once, max(once, crossing) if blocks else once
        if crossing > once:
            again[name] = crossing - once

    if "attn_bias" in on:
        matrices = heads if p["attn_bias"] is True else int(p["attn_bias"])
        if not 1 <= matrices <= heads:
            raise BadInput(f"attn_bias: expected 1 to batch · heads = {heads} matrices, got {matrices}.")
        pairs = blocks.real_pairs if blocks else s.nq * s.nk
        element = int(p.get("bias_bytes") or s.element_bytes)
        read("bias", matrices * pairs * element, heads * pairs * element)
    if "key_padding_mask" in on:
        rows = s.nk if stage.stage == "keys" or not blocks else blocks.key_rows
        read("padding", s.batch * s.nk, heads * rows)
    for name, once in (("alibi_slopes", heads * 4), ("sinks", s.heads * 4), ("dropout_p", 8)):
        if name in on and (name != "sinks" or forward):  # the backward takes the sinks from LSE
            read({"dropout_p": "seed"}.get(name, name), once, programs * SECTOR_BYTES)
    extra = TANH_OPS * (stage.exponentials or 0) if "softcap" in on else 0
    if forward and stage.overhead_ops and blocks:  # the number of threads is known
        lanes = (stage.rescales or 0) // max(1, blocks.visited * stage.heads) * programs  # of all rows of all programs
        extra += 2 * lanes * ("sinks" in on) + programs * WARP * int(p["num_warps"]) * ("dropout_p" in on)
    known = stage.at_least if blocks else tuple(dict.fromkeys((*stage.at_least, "l2_to_sm")))
    return replace(stage, reads=reads, refetch=again, l2_to_sm=None if stage.l2_to_sm is None else moved,
                   overhead_ops=stage.overhead_ops + extra, at_least=known)


def _programs(config: RunConfig, stage: StagePrediction) -> int:
    """Programs a head: blocks of queries, of keys in the pass over keys; 0 where tiles are not known."""
    if stage.blocks is None:
        return 0
    rows = config.shape.nk if stage.stage == "keys" else config.shape.nq
    return -(-rows // stage.blocks.block_m)
