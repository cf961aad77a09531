"""Sequences of different lengths in one call: packed tokens (varlen), or a cache with a length per sequence (decode).

Sequences do not see each other, so everything that is counted is the sum over them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from profiler.errors import BadInput
from profiler.model.counts import Blocks
from profiler.model.prediction import StagePrediction
from profiler.spec import RunConfig

Stages = tuple[StagePrediction, ...]
PACKED = ("flash2", "flash_varlen", "decode")  # implementations that take lengths
LENGTH_BYTES = 4  # an int32


def sequences(config: RunConfig) -> list[tuple[RunConfig, int]]:
    """One configuration of batch 1 for every pair of lengths that occurs, and how often; ``config`` alone without any.

    Parameters: k_lengths, and q_lengths where queries differ too (else Nq each): a whole number a sequence, 0 allowed,
    none above the shape's Nq, Nk. Raises BadInput.
    """
    s, keys = config.shape, config.parameters.get("k_lengths")
    queries = config.parameters.get("q_lengths")
    if keys is None and queries is None:
        return [(config, 1)]
    if config.implementation not in PACKED:
        raise BadInput(f"k_lengths: {config.implementation} takes sequences of one length; {' and '.join(PACKED)} take "
                       "others.")
    pairs = []
    for name, given, most in (("q_lengths", queries, s.nq), ("k_lengths", keys, s.nk)):
        lengths = [most] * s.batch if given is None else list(given)
        if len(lengths) != s.batch or any(not isinstance(n, int) or not 0 <= n <= most for n in lengths):
            raise BadInput(f"{name}: expected {s.batch} whole numbers from 0 to {most}, got {lengths}.")
        pairs.append(lengths)
    rest = {name: value for name, value in config.parameters.items() if name not in ("q_lengths", "k_lengths")}
    return [(replace(config, shape=replace(s, batch=1, nq=nq, nk=nk), parameters=rest), often)
            for (nq, nk), often in Counter(zip(*pairs)).items()]


def add(parts: list[tuple[Stages, int]]) -> Stages:
    """Stage by stage the sum of all parts, each taken as often as it says."""
    first = parts[0][0]
    return tuple(_add([(stages[i], often) for stages, often in parts]) for i in range(len(first)))


def total(parts: list[tuple[Mapping[str, int], int]]) -> dict[str, int]:
    """Name → sum of the bytes of all parts."""
    names = dict.fromkeys(name for part, _ in parts for name in part)
    return {name: sum(part.get(name, 0) * often for part, often in parts) for name in names}


def _add(parts: list[tuple[StagePrediction, int]]) -> StagePrediction:
    """Numbers are added; what one part does not know is not known of the sum; bounds of one are bounds of the sum."""
    first = parts[0][0]

    def each(name: str, plus: Callable[[list[tuple[Any, int]]], Any]) -> Any:
        values = [(getattr(part, name), often) for part, often in parts]
        return None if any(value is None for value, _ in values) else plus(values)

    changed = {name: each(name, total) for name in ("reads", "writes", "l2_to_sm", "sm_to_l2", "refetch", "skipped")}
    changed |= {name: each(name, lambda values: sum(value * often for value, often in values))
                for name in ("flops_visible", "flops_computed", "exponentials", "rescales", "overhead_ops")}
    bounds = tuple(dict.fromkeys(bound for part, _ in parts for bound in part.at_least))
    return replace(first, **changed, at_least=bounds, blocks=each("blocks", _blocks))


def _blocks(parts: list[tuple[Blocks, int]]) -> Blocks:
    first = parts[0][0]
    names = [f.name for f in fields(Blocks) if not f.name.startswith("block_")]
    return replace(first, **{name: sum(getattr(part, name) * often for part, often in parts) for name in names})
