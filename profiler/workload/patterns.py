"""Who sees whom: the mask, and the parameters of a configuration beyond it, by the model's names: lengths of sequences
(q_lengths, k_lengths) and kept blocks (block_mask, block_size)."""

from __future__ import annotations

from typing import Any

import torch

from profiler.errors import BadInput
from profiler.spec import Mask, RunConfig

NAMES = ("q_lengths", "k_lengths", "block_mask", "block_size")
BLOCK_SIZE = 128  # of a block mask, unless block_size says otherwise


def causal(config: RunConfig) -> bool:
    """Whether the mask is causal and no window."""
    return Mask.parse(config.shape.mask) == Mask(-1, 0)


def window(config: RunConfig) -> tuple[int, int] | None:
    """(left, right) of a window as the kernels take it; None of a full or causal mask."""
    mask = Mask.parse(config.shape.mask)
    return None if mask in (Mask(), Mask(-1, 0)) else (mask.left, mask.right)


def of(config: RunConfig) -> dict[str, Any]:
    """Those that the configuration has."""
    return {name: config.parameters[name] for name in NAMES if config.parameters.get(name) is not None}


def options(config: RunConfig, device: torch.device | str) -> dict[str, Any]:
    """The same as the kernels take them: block_mask as a bool tensor (1, 1, query blocks, key blocks)."""
    found = of(config)
    if "block_mask" in found:
        found["block_mask"] = block_mask(config, device)
    return found


def block_mask(config: RunConfig, device: torch.device | str) -> torch.Tensor:
    """Rows of 0 and 1, one a block of keys; a count instead of a row keeps so many blocks, evenly spread."""
    size, shape = int(config.parameters.get("block_size", BLOCK_SIZE)), config.shape
    columns, rows = -(-shape.nk // size), []
    for row in config.parameters["block_mask"]:
        if isinstance(row, int):
            if not 0 <= row <= columns:
                raise BadInput(f"block_mask: expected counts of 0 to {columns} blocks, got {row}.")
            kept = {(2 * i + 1) * columns // (2 * row) for i in range(row)}
            row = [column in kept for column in range(columns)]
        if len(row) != columns:
            raise BadInput(f"block_mask: expected {columns} blocks in every row, got {len(row)}.")
        rows.append([bool(keep) for keep in row])
    if len(rows) != -(-shape.nq // size):
        raise BadInput(f"block_mask: expected {-(-shape.nq // size)} rows, got {len(rows)}.")
    return torch.tensor(rows, dtype=torch.bool, device=device)[None, None]


def hidden(config: RunConfig, device: torch.device | str) -> torch.Tensor | None:
    """Which pairs nobody sees, bool (B or 1, 1, Nq, Nk), the mask included; None where a full or causal mask says it.
    """
    found, s = of(config), config.shape
    if not found and window(config) is None:
        return None
    rows, columns = (torch.arange(n, device=device, dtype=torch.int32) for n in (s.nq, s.nk))
    mask, rows, columns = Mask.parse(s.mask), rows[:, None], columns[None, :]
    q, k = (torch.tensor(found.get(name, [n]), device=device, dtype=torch.int32).view(-1, 1, 1, 1)
            for name, n in (("q_lengths", s.nq), ("k_lengths", s.nk)))
    distance = columns - rows - (k - q)  # bottom-right in each sequence
    out = (rows >= q) | (columns >= k)
    if mask.left >= 0:
        out = out | (distance < -mask.left)
    if mask.right >= 0:
        out = out | (distance > mask.right)
    if "block_mask" in found:
        size = int(found.get("block_size", BLOCK_SIZE))
        kept = block_mask(config, device).repeat_interleave(size, 2).repeat_interleave(size, 3)
        out = out | ~kept[:, :, :s.nq, :s.nk]
    return out
