"""What if the on-chip memory, the length, the head size or a rate of the GPU were another: predicted, nothing measured.

A pure function of the model: every row is `predict` at one value, its bytes and the time that one roof then asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from profiler.errors import BadInput
from profiler.model.implementations import OURS, predict
from profiler.model.prediction import rates
from profiler.spec import AttentionShape, DeviceSpec, RunConfig

# What may vary → the roof whose rate it is; None: the shape or the tiles.
VARY: Mapping[str, str | None] = {
    "sram_bytes": None, "n": None, "head_dim": None, "dram_bytes_per_s": "dram", "l2_bytes_per_s": "l2",
    "l2_to_sm_bytes_per_s": "l2_to_sm", "tensor_flops_per_s": "tensor", "special_ops_per_s": "special"}
TILES = {"block_m": 128, "block_n": 64}
HOPPER_TILES = {"block_m": 128, "block_n": 128}
DECODE_TILES = {"block_m": 16, "block_n": 64}


def what_if(shape: AttentionShape, implementation: str, device: DeviceSpec, vary: str, values: Sequence[float], *,
            direction: str = "forward", parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """A row for each of ``values`` and each roof that is known then, in that order.

    vary: "sram_bytes" (on-chip memory of one program: the tiles that fit it, `tiles_of`), "n" (Nq and Nk where they are
    equal, else Nk), "head_dim", or a rate: "dram_bytes_per_s", "l2_bytes_per_s", "l2_to_sm_bytes_per_s",
    "tensor_flops_per_s", "special_ops_per_s". parameters: tiles of the implementation; by default 128 × 64 (hopper
    128 × 128, decode 16 × 64).
    Keys of a row: value; bound: the roof ("dram", "l2", "l2_to_sm", "tensor", "special"); seconds: the least time that
    it asks for; binding: whether no other roof asks for more; hbm_bytes, l2_to_sm_bytes: bytes of all stages, the
    second None where the tiles are a library's. The same bytes stand in every row of a value.
    Raises BadInput for another ``vary``, for a value that is not positive and for what `predict` refuses.
    """
    if vary not in VARY:
        raise BadInput(f"vary: expected one of {', '.join(VARY)}, got {vary!r}.")
    rows: list[dict[str, Any]] = []
    for value in values:
        whole = VARY[vary] is None
        if not 0 < value < math.inf or (whole and value != int(value)):
            raise BadInput(f"{vary}: expected a positive {'whole ' if whole else ''}number, got {value!r}.")
        here, tiles = shape, dict(parameters or default_tiles(implementation, direction))
        if vary == "n":
            here = replace(shape, nk=int(value), nq=int(value) if shape.nq == shape.nk else shape.nq)
        elif vary == "head_dim":
            here = replace(shape, head_dim=int(value))
        elif vary == "sram_bytes":
            tiles |= tiles_of(int(value), shape, implementation, direction)
        found = predict(RunConfig(implementation, here, direction, tiles), l2_size_bytes=device.l2_size_bytes)
        a_second = rates(device) | ({roof: float(value)} if (roof := VARY[vary]) else {})
        each = [stage.times(a_second) for stage in found.stages]
        seconds = {roof: sum(times[roof] for times in each) / 1e9 for roof in a_second
                   if all(roof in times for times in each)}
        most = max(seconds.values(), default=0.0)
        rows += [{"value": value, "bound": roof, "seconds": time, "binding": time == most,
                  "hbm_bytes": found.dram_bytes, "l2_to_sm_bytes": found.level_bytes("l2_to_sm")}
                 for roof, time in seconds.items()]
    return rows


def default_tiles(implementation: str, direction: str) -> dict[str, int]:
    """Tiles that are assumed where none are given; none for what has no tiles of ours."""
    if implementation not in OURS:
        return {}
    if implementation == "decode":
        return DECODE_TILES
    if implementation == "hopper" and direction == "forward":
        return HOPPER_TILES
    return TILES if direction == "forward" else _both_passes(64, 64)


def tiles_of(sram_bytes: int, shape: AttentionShape, implementation: str, direction: str = "forward") -> dict[str, int]:
    """Tiles that an on-chip memory of M bytes holds: four of them, of M / (4·D·e) rows each, as Algorithm 1 of the
    FlashAttention paper cuts M (arXiv 2205.14135, line 1: Bc = ⌈M/4d⌉, Br = min(Bc, d)). FlashAttention-2 bounds its
    query rows by M alone. {} for what keeps no tiles of ours. Raises BadInput where not one row fits.
    """
    rows = sram_bytes // (4 * shape.head_dim * shape.element_bytes)
    if rows < 1:
        least = 4 * shape.head_dim * shape.element_bytes
        raise BadInput(f"sram_bytes: expected at least {least} (a row of Q, K, V and O), got {sram_bytes}.")
    if implementation not in OURS:
        return {}
    m, n = min(rows, max(1, shape.nq)), min(rows, max(1, shape.nk))
    if implementation == "flash1":
        m = min(m, shape.head_dim)
    elif implementation == "decode":
        m = min(rows, max(1, shape.nq * (shape.heads // shape.kv_heads)))
    return {"block_m": m, "block_n": n} if direction == "forward" else _both_passes(m, n)


def _both_passes(m: int, n: int) -> dict[str, int]:
    return {"key_block_m": m, "key_block_n": n, "query_block_m": m, "query_block_n": n}
