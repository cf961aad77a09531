"""How the size of the on-chip memory turns into block rows, and block rows into bytes."""

from __future__ import annotations

from profiler.model import predict
from profiler.spec import AttentionShape, RunConfig

ROWS = (16, 32, 64, 128, 256, 512)


def tile_bytes(block_m: int, block_n: int, head_dim: int, element_bytes: int = 2, stages: int = 2) -> int:
    """Shared memory of one program: a Q tile, and `stages` K and V tiles in flight. S, P and acc are in registers."""
    return (block_m + stages * 2 * block_n) * head_dim * element_bytes


def largest_rows(sram_bytes: int, block_n: int, head_dim: int, element_bytes: int = 2, stages: int = 2) -> int:
    """The most of ROWS whose tiles fit in `sram_bytes`; 0 where not even the smallest does."""
    return max((m for m in ROWS if tile_bytes(m, block_n, head_dim, element_bytes, stages) <= sram_bytes), default=0)


def moved(shape: AttentionShape, block_m: int, block_n: int) -> int:
    """Predicted bytes from L2 to the SMs of one flash forward."""
    config = RunConfig("flash2", shape, parameters={"block_m": block_m, "block_n": block_n})
    predicted = predict(config).level_bytes("l2_to_sm")
    assert predicted is not None  # known wherever the blocks are
    return int(predicted)


def floor(shape: AttentionShape) -> int:
    """Bytes that any exact attention moves through HBM: Q, K and V in, O out."""
    return int(predict(RunConfig("flash2", shape)).compulsory_bytes)


def unfused(shape: AttentionShape) -> int:
    """Bytes that the best unfused form moves through HBM: the same and four passes over an N×N matrix."""
    return int(predict(RunConfig("naive_folded", shape)).dram_bytes)
