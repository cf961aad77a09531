"""What is computed and on what: shapes, configurations, devices. A leaf: standard library only, imported by anyone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiler.errors import BadInput

ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
DIRECTIONS = ("forward", "backward")
LARGEST = 1 << 24  # of any size of a shape: beyond it nothing is a real call, and counting blocks takes minutes

# The key of a configuration, carried by every row of `launches` and `timings`; null in reports that are not ours.
CONFIG_KEY = (
    "config_id", "implementation", "stage", "direction", "dtype", "batch", "heads", "kv_heads",
    "nq", "nk", "head_dim", "mask", "range_path",
)


@dataclass(frozen=True, slots=True)
class Mask:
    """Which keys a query sees: keys j with i + nk - nq - left <= j <= i + nk - nq + right (bottom-right aligned).

    A side of -1 is unlimited. ``full`` is (-1, -1), ``causal`` is (-1, 0), a window is ``window:LEFT,RIGHT``.
    """

    left: int = -1
    right: int = -1

    @classmethod
    def parse(cls, text: str) -> Mask:
        if text == "full":
            return cls()
        if text == "causal":
            return cls(-1, 0)
        match = re.fullmatch(r"window:(-1|\d+),(-1|\d+)", text)
        if not match:
            raise BadInput(f"mask: expected 'full', 'causal' or 'window:LEFT,RIGHT', got {text!r}.")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return {(-1, -1): "full", (-1, 0): "causal"}.get((self.left, self.right), f"window:{self.left},{self.right}")

    def visible(self, row: int, nq: int, nk: int) -> range:
        """The keys that query ``row`` of ``nq`` sees among ``nk`` keys; empty where it sees none."""
        middle = row + nk - nq
        low = 0 if self.left < 0 else max(0, middle - self.left)
        high = nk if self.right < 0 else min(nk, middle + self.right + 1)
        return range(low, max(low, high))

    def pairs(self, nq: int, nk: int) -> int:
        """Pairs of a query and a key that it sees, of one head."""
        return sum(len(self.visible(row, nq, nk)) for row in range(nq))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention call: q (batch, heads, nq, head_dim), k and v (batch, kv_heads, nk, head_dim)."""

    batch: int
    heads: int
    nq: int
    nk: int
    head_dim: int
    kv_heads: int = 0  # 0: as many as heads
    dtype: str = "bf16"
    mask: str = "full"

    def __post_init__(self) -> None:
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        for name in ("batch", "heads", "kv_heads", "nq", "nk", "head_dim"):
            value = getattr(self, name)
            least = 0 if name in ("nq", "nk") else 1
            if not isinstance(value, int) or not least <= value <= LARGEST:
                raise BadInput(f"{name}: expected a whole number from {least} to {LARGEST:,}, got {value!r}.")
        if self.heads % self.kv_heads:
            raise BadInput(f"kv_heads: expected a divisor of heads = {self.heads}, got {self.kv_heads}.")
        if self.dtype not in ELEMENT_BYTES:
            raise BadInput(f"dtype: expected one of {', '.join(ELEMENT_BYTES)}, got {self.dtype!r}.")
        Mask.parse(self.mask)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    @property
    def q_bytes(self) -> int:
        """Bytes of Q, and of O."""
        return self.batch * self.heads * self.nq * self.head_dim * self.element_bytes

    @property
    def k_bytes(self) -> int:
        """Bytes of K, and of V."""
        return self.batch * self.kv_heads * self.nk * self.head_dim * self.element_bytes

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one materialised N×N matrix (S or P) in the shape's dtype."""
        return self.batch * self.heads * self.nq * self.nk * self.element_bytes

    def label(self) -> str:
        """As people write it: ``B1 H16 N4096 D64 bf16 causal``."""
        n = f"N{self.nq}" if self.nq == self.nk else f"Nq{self.nq} Nk{self.nk}"
        h = f"H{self.heads}" if self.heads == self.kv_heads else f"H{self.heads}/{self.kv_heads}"
        return f"B{self.batch} {h} {n} D{self.head_dim} {self.dtype} {self.mask}"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One thing to profile: an implementation on a shape in one direction, with tuning parameters (block_m, ...)."""

    implementation: str
    shape: AttentionShape
    direction: str = "forward"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise BadInput(f"direction: expected one of {', '.join(DIRECTIONS)}, got {self.direction!r}.")
        for name, value in self.parameters.items():
            counted = name.endswith(("block_m", "block_n", "num_warps", "num_stages"))
            if counted and (not isinstance(value, int) or value < 1):
                raise BadInput(f"{name}: expected a positive whole number, got {value!r}.")
        for name, most in (("q_lengths", self.shape.nq), ("k_lengths", self.shape.nk)):
            given, batch = self.parameters.get(name), self.shape.batch
            whole = isinstance(given, (list, tuple)) and all(type(n) is int and 0 <= n <= most for n in given)
            if given is not None and not (whole and len(given) == batch):
                raise BadInput(f"{name}: expected {batch} whole numbers from 0 to {most}, got {given!r}.")

    @property
    def config_id(self) -> str:
        """A name that is unique in a bundle and safe inside an NVTX filter: letters, digits, '-' and '_' only."""
        s = self.shape
        parts = [self.implementation, self.direction, s.dtype, f"b{s.batch}", f"h{s.heads}", f"hk{s.kv_heads}",
                 f"q{s.nq}", f"k{s.nk}", f"d{s.head_dim}", s.mask]
        parts += [f"{name}{value}" for name, value in sorted(self.parameters.items())]
        return re.sub(r"[^A-Za-z0-9_-]+", "_", "-".join(parts))

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """Queries and keys of each sequence of the batch: Nq and Nk, or of packed ones what q_lengths and k_lengths
        say."""
        sides = (("q_lengths", self.shape.nq), ("k_lengths", self.shape.nk))
        return tuple(zip(*(self.parameters.get(name) or [n] * self.shape.batch for name, n in sides)))

    @property
    def plain(self) -> bool:
        """Whether every query sees all keys or all up to its own, each query head has keys of its own, and all
        sequences are of one length: what the others' cost is told by."""
        s = self.shape
        return (Mask.parse(s.mask) in (Mask(), Mask(-1, 0)) and s.heads == s.kv_heads
                and self.lengths == ((s.nq, s.nk),) * s.batch)

    @property
    def family(self) -> tuple[Any, ...]:
        """What a call has in common with the plain ones that its cost is told by: direction, dtype, heads, head size,
        whether it is square, and tokens."""
        s = self.shape
        return self.direction, s.dtype, s.heads, s.head_dim, s.nq == s.nk, sum(nq for nq, _ in self.lengths)

    def key(self, stage: str | None = None) -> dict[str, Any]:
        """The columns of CONFIG_KEY for one stage of this configuration (None: the configuration as a whole)."""
        s = self.shape
        return {
            "config_id": self.config_id, "implementation": self.implementation, "stage": stage,
            "direction": self.direction, "dtype": s.dtype, "batch": s.batch, "heads": s.heads,
            "kv_heads": s.kv_heads, "nq": s.nq, "nk": s.nk, "head_dim": s.head_dim, "mask": s.mask,
            "range_path": f"{self.config_id}/{stage}" if stage else self.config_id,
        }

    def to_json(self) -> dict[str, Any]:
        s = self.shape
        shape = {name: getattr(s, name) for name in s.__dataclass_fields__}
        return {"implementation": self.implementation, "direction": self.direction, "shape": shape,
                "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunConfig:
        return cls(data["implementation"], AttentionShape(**data["shape"]), data.get("direction", "forward"),
                   dict(data.get("parameters", {})))

    def with_shape(self, **changes: Any) -> RunConfig:
        return replace(self, shape=replace(self.shape, **changes))


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Tuning parameters as the tables hold them: compact JSON with sorted keys."""
    return json.dumps(dict(parameters), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A GPU as the models need it. None: not known, and then nothing that needs it is predicted."""

    name: str
    cc: str
    sm_count: int | None = None
    l2_size_bytes: int | None = None
    sm_clock_hz: float | None = None
    dram_bytes_per_s: float | None = None
    l2_bytes_per_s: float | None = None
    tensor_flops_per_s: float | None = None  # dense, for the operand type in question
    source: str = ""  # "report counters", "measured", "data sheet"
