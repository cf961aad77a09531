"""Where S and P would live, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

from profiler.spec import AttentionShape


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes. one_head: one N×N matrix of one head; matrix: of all heads and batches; tensors: Q, K, V and O together;
    lse: the row statistics that flash writes in place of S and P."""

    one_head: int
    matrix: int
    tensors: int
    lse: int

    @property
    def ratio(self) -> float:
        """One N×N matrix over the four tensors: N / (4·D) for equal lengths and heads."""
        return self.matrix / self.tensors


def sizes(shape: AttentionShape) -> Sizes:
    calls = shape.batch * shape.heads
    return Sizes(shape.matrix_bytes // calls, shape.matrix_bytes, 2 * shape.q_bytes + 2 * shape.k_bytes,
                 calls * shape.nq * 4)
