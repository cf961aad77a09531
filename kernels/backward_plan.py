"""How a FlashAttention-2 backward is cut into programs, decided before anything is launched.

The rows of TMA for head sizes 64 and 128 are the fastest correct candidates of an H200 at N 4096, Triton 3.6, bfloat16
(tests/gpu/check_flash2_backward.py measures them anew), also where a few registers spill; the others are not measured
and keep nothing in local memory inside their loops, save head size 256, which has no such blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from kernels.errors import UnsupportedCall
from kernels.plan import padded, tma_obstacle


class Pass(NamedTuple):
    """block_m queries by block_n keys a step; num_stages blocks in flight; maxnreg: most registers a thread."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    maxnreg: int | None = None


@dataclass(frozen=True)
class Tuning:
    """How a backward is cut into programs.

    keys: the pass that makes dK and dV. queries: the pass that makes dQ, or None for one pass with atomic dQ.
    seed: the accumulators of S and dP start from the row statistics. tma: descriptors, or pointers.
    """

    keys: Pass
    queries: Pass | None
    seed: bool = False
    tma: bool = False


# (padded head size, whether there is a mask); the winners of 13 to 18 candidates each.
TMA = {
    (64, False): Tuning(Pass(64, 64, 4, 3, 168), Pass(128, 64, 8, 3), tma=True),
    (64, True): Tuning(Pass(64, 64, 4, 2, 168), Pass(64, 64, 4, 3), tma=True),
    (128, False): Tuning(Pass(64, 64, 4, 2), Pass(128, 64, 8, 3), seed=True, tma=True),
    (128, True): Tuning(Pass(64, 64, 4, 2), Pass(128, 64, 8, 3), seed=True, tma=True),
    (256, False): Tuning(Pass(32, 64, 8, 1), Pass(64, 32, 8, 1), tma=True),
    (256, True): Tuning(Pass(32, 64, 8, 1), Pass(64, 32, 8, 1), tma=True),
}
POINTER = {
    64: Tuning(Pass(64, 64, 4, 2), Pass(64, 64, 4, 2)),
    128: Tuning(Pass(32, 64, 4, 2), Pass(64, 64, 4, 2)),
    256: Tuning(Pass(32, 32, 8, 1), Pass(32, 32, 8, 1)),
}
# Query heads that share a key head add a loop around the keys' pass, whose registers these blocks have: (row, tma).
GROUPED_KEYS = {(64, True): Pass(64, 64, 4, 2), (128, True): Pass(32, 64, 4, 3), (64, False): Pass(32, 64, 4, 2)}
# With an option of kernels.scores, by (row, tma): smaller blocks, so that with all of them at once nothing spills, save
# at head size 256; not measured.
SCORED = {
    (64, True): (Pass(32, 64, 4, 2), Pass(64, 32, 4, 2)), (64, False): (Pass(32, 64, 4, 2), Pass(32, 32, 4, 2)),
    (128, True): (Pass(16, 64, 8, 2), Pass(64, 16, 4, 2)), (128, False): (Pass(16, 64, 8, 2), Pass(64, 32, 8, 2)),
    (256, True): (Pass(16, 64, 8, 1), Pass(64, 32, 8, 1)), (256, False): (Pass(16, 32, 8, 1), Pass(32, 32, 8, 1)),
}
FLOAT32 = {  # no tensor cores: multiply-adds in full precision
    64: Tuning(Pass(32, 32, 8, 1), Pass(32, 32, 4, 1)),
    128: Tuning(Pass(16, 32, 4, 1), Pass(32, 16, 4, 1)),
    256: Tuning(Pass(16, 16, 4, 1), Pass(16, 16, 4, 1)),
}
INTERPRETER = Tuning(Pass(32, 32, 4, 1), Pass(32, 32, 4, 1))  # small: few tokens give full, diagonal and tail blocks
_OF_TUNING = ("one_pass", "seed", "tma")


def choose(tensors: tuple[torch.Tensor, ...], *, masked: bool, cc: tuple[int, int] | None,
           tuning: Tuning | Mapping[str, Any] | None = None, scored: bool = False, left: bool = False) -> Tuning:
    """The configuration for tensors (q, k, v, dO); without `tuning` always two passes, so always deterministic.

    masked: causal or a window. scored: any option that kernels.scores carries out. left: the window has a left side.
    cc: compute capability, None in Triton's interpreter.
    tuning: a whole Tuning, or any of the names of `parameters`, which replace those of the table or are refused.
    """
    if isinstance(tuning, Tuning):
        return tuning
    row = max(64, padded(tensors[0].shape[-1]))
    if cc is None:
        base = INTERPRETER
    elif tensors[0].dtype == torch.float32:
        base = FLOAT32[row]
    elif cc[0] in (9, 10) and all(tma_obstacle("", x) is None for x in tensors):
        base = TMA[row, masked]
    else:
        base = POINTER[row]
    if cc is not None and tensors[0].dtype != torch.float32 and tensors[0].shape[1] != tensors[1].shape[1]:
        base = replace(base, keys=GROUPED_KEYS.get((row, base.tma), base.keys), seed=False)
    if cc is not None and tensors[0].dtype != torch.float32 and scored:
        keys, queries = SCORED[row, base.tma]
        base = replace(base, keys=keys, queries=queries, seed=False)
    elif left:
        base = replace(base, keys=base.keys._replace(maxnreg=None))  # the limit of the measured loops would spill here
    return _override(base, tuning) if tuning else base


def parameters(tuning: Tuning) -> dict[str, Any]:
    """A Tuning as flat names: one_pass, seed, tma, and for both passes key_ or query_ before a field of Pass."""
    flat: dict[str, Any] = {"one_pass": tuning.queries is None, "seed": tuning.seed, "tma": tuning.tma}
    for side, one in (("key", tuning.keys), ("query", tuning.queries)):
        for name, value in one._asdict().items() if one is not None else ():
            if value is not None:
                flat[f"{side}_{name}"] = value
    return flat


def _override(base: Tuning, given: Mapping[str, Any]) -> Tuning:
    known = {*_OF_TUNING, *(f"{side}_{name}" for side in ("key", "query") for name in Pass._fields)}
    for name, value in given.items():
        if name not in known:
            raise UnsupportedCall("tuning", f"keys among {', '.join(sorted(known))}", repr(name))
        if name in _OF_TUNING:
            if not isinstance(value, bool):
                raise UnsupportedCall(f"tuning[{name!r}]", "True or False", repr(value))
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UnsupportedCall(f"tuning[{name!r}]", "a positive whole number", repr(value))
        elif "block" in name and (value & (value - 1) or not 16 <= value <= 128):
            raise UnsupportedCall(f"tuning[{name!r}]", "a power of two from 16 to 128", repr(value))
        elif name.endswith("warps") and value & (value - 1):
            raise UnsupportedCall(f"tuning[{name!r}]", "a power of two", repr(value))

    def of_side(one: Pass, side: str) -> Pass:
        return one._replace(**{name: given[f"{side}_{name}"] for name in Pass._fields if f"{side}_{name}" in given})

    one_pass = given.get("one_pass", base.queries is None)
    if one_pass and any(name.startswith("query_") for name in given):
        raise UnsupportedCall("tuning", "no query_ parameter where one_pass is True", ", ".join(sorted(given)))
    queries = None if one_pass else of_side(base.queries or base.keys, "query")
    return replace(base, keys=of_side(base.keys, "key"), queries=queries, seed=given.get("seed", base.seed),
                   tma=given.get("tma", base.tma))
