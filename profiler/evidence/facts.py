"""A bundle seen as runs: one implementation on one shape, its launches by stage, its timing, its prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import pandas as pd

from profiler import model, table
from profiler.bundle import Bundle
from profiler.errors import BadInput
from profiler.evidence.rows import Columns, Row
from profiler.model.roofs import SPECIAL_OPS_PER_CYCLE
from profiler.spec import AttentionShape, RunConfig

FAR = 4  # an N×N matrix is "far above" the L2 from this multiple on: at least 3/4 of a pass must then reach HBM
MATRICES = ("S", "P", "dP", "dP∘P", "dS")  # N×N tensors
NAIVE = ("naive", "naive_folded")
# Whose numbers a source's claims and headline are, the first that it holds: the kernel that a call gets on its GPU.
FLASH_FIRST = ("hopper", "flash2", "decode", "sdpa_flash", "sdpa_cudnn")


@dataclass(frozen=True, eq=False)
class Run:
    """One configuration of a bundle. launches: stage → rows in order; timing: None when not timed."""

    config: RunConfig
    launches: dict[str, list[Row]] = field(default_factory=dict)
    timing: Row | None = None
    l2_size_bytes: int | None = None

    @property
    def shape(self) -> AttentionShape:
        return self.config.shape

    @cached_property
    def predicted(self) -> model.Prediction:
        """The model's prediction. Raises BadInput for an implementation that it does not know."""
        return model.predict(self.config, l2_size_bytes=self.l2_size_bytes)

    @property
    def prediction(self) -> model.Prediction | None:
        """The same, None for an implementation that the model does not know."""
        return self.predicted if model.knows(self.config.implementation, self.config.direction) else None

    @cached_property
    def rows(self) -> list[Row]:
        return [row for rows in self.launches.values() for row in rows]

    def total(self, column: str, stage: str | None = None) -> float | None:
        """Sum of a column over the launches (of one stage); None without launches or when one has no value."""
        rows = self.rows if stage is None else self.launches.get(stage, [])
        values = [row[column] for row in rows]
        return sum(values) if values and all(v is not None for v in values) else None

    def dram_bytes(self, stage: str | None = None) -> float | None:
        read, write = self.total("dram_read_bytes", stage), self.total("dram_write_bytes", stage)
        return None if read is None or write is None else read + write

    def weighted(self, column: str) -> float | None:
        """Mean of a column weighted by the launches' durations."""
        pairs = [(r[column], r["duration_ns"]) for r in self.rows if r[column] is not None and r["duration_ns"]]
        return sum(v * t for v, t in pairs) / sum(t for _, t in pairs) if pairs else None

    def timed(self, column: str) -> Any:
        """A value of the timing row, number or text; None when not timed or not measured."""
        return self.timing.get(column) if self.timing else None

    def names(self, *columns: str, stage: str | None = None) -> str:
        """Which launches and columns, as an input of a claim."""
        numbers = ", ".join(str(r["launch"]) for r in (self.rows if stage is None else self.launches.get(stage, [])))
        where = f"launches {numbers}" if numbers else "timings"
        return f"{where} ({self.config.implementation}, {self.shape.label()}): {', '.join(columns)}"


def roof_shares(rows: Sequence[Row], ns: float | None = None) -> dict[str, float]:
    """Share of each roof that launches reached together: Σ work / time / roof (1 is on the roof).

    ns: the time, when it is not ncu's Σ of durations. Peaks are those at the clocks that the counters saw. A roof whose
    counters or peak are missing is absent.
    """
    def total(*columns: str) -> float | None:
        values = [row[c] for row in rows for c in columns]
        return sum(values) if values and all(v is not None for v in values) else None

    def first(column: str) -> float | None:
        return next((row[column] for row in rows if row[column]), None)

    sms, clock, ns = first("sm_count"), first("sm_clock_hz"), ns or total("duration_ns")
    work = {
        "HBM": (total("dram_read_bytes", "dram_write_bytes"), first("dram_peak_bytes_per_s")),
        "L2": (total("l2_to_xbar_bytes"), first("l2_peak_bytes_per_s")),
        "Tensor Cores": (total("tensor_flops"), first("tensor_peak_flops_per_s")),
        "special functions": (total("special_ops"), SPECIAL_OPS_PER_CYCLE * sms * clock if sms and clock else None)}
    return {name: done / ns * 1e9 / peak for name, (done, peak) in work.items() if ns and peak and done is not None}


class Facts:
    """All runs of a bundle and what the claims ask about them.

    direction None, in every method: the bundle's own, which is forward unless it holds backward runs only.
    """

    bundle: Bundle
    launches: list[Row]
    gpu: dict[str, Any]
    runs: list[Run]

    def __new__(cls, bundle: Bundle) -> Facts:
        """Gathered once and kept with the bundle: going through 20,000 launches takes a second."""
        return bundle.once(cls._gathered)

    @classmethod
    def _gathered(cls, bundle: Bundle) -> Facts:
        self = super().__new__(cls)
        self.bundle = bundle
        self.launches = Columns(bundle.launches).rows()
        self.gpu = bundle.profile.get("gpu") or {}
        self.runs = self._runs()
        return self

    def _runs(self) -> list[Run]:
        found: dict[str, tuple[RunConfig, dict[str, list[Row]], list[Row]]] = {}
        timings = Columns(self.bundle.timings).rows()
        for row, config in zip(self.launches, configurations(self.bundle.launches)):
            if config is not None:
                entry = found.setdefault(row["config_id"] or config.config_id, (config, {}, []))
                entry[1].setdefault(row["stage"] or "attention", []).append(row)
        for row, config in zip(timings, configurations(self.bundle.timings)):
            if config is not None:
                found.setdefault(row["config_id"] or config.config_id, (config, {}, []))[2].append(row)
        return [Run(config, stages, timing[0] if timing else None, self.l2_size_bytes)
                for config, stages, timing in found.values()]

    @cached_property
    def l2_size_bytes(self) -> int | None:
        """From the launches' own attribute, else from the profile."""
        sizes = [r["l2_size_bytes"] for r in self.launches if r["l2_size_bytes"]]
        size = sizes[0] if sizes else self.gpu.get("l2_size_bytes")
        return int(size) if size else None

    @property
    def flushed(self) -> bool:
        """Whether ncu flushed the caches before each launch (cache control "all", ncu's default when not said)."""
        return (self.bundle.profile.get("cache_control") or "all") == "all"

    @cached_property
    def direction(self) -> str:
        found = {r.config.direction for r in self.runs}
        return "backward" if found == {"backward"} else "forward"

    def shapes(self, direction: str | None = None) -> list[AttentionShape]:
        """Shapes in the order of the bundle, each once."""
        return list(dict.fromkeys(r.shape for r in self.runs if r.config.direction == (direction or self.direction)))

    def run(self, implementation: str, shape: AttentionShape, direction: str | None = None) -> Run | None:
        """The run of an implementation on a shape: the fastest timed one when there are several, counted ones first."""
        return self._best(shape, direction).get(implementation)

    def tunings(self, config: RunConfig) -> list[Run]:
        """Every run that differs from ``config`` in tuning parameters at most."""
        return [r for r in self.of(config.shape) if r.config.direction == config.direction
                and r.config.implementation == config.implementation]

    def of(self, shape: AttentionShape) -> list[Run]:
        """Every run on a shape, in either direction."""
        return self._by_shape.get(shape, [])

    @cached_property
    def _by_shape(self) -> dict[AttentionShape, list[Run]]:
        found: dict[AttentionShape, list[Run]] = {}
        for r in self.runs:
            found.setdefault(r.shape, []).append(r)
        return found

    def _best(self, shape: AttentionShape, direction: str | None) -> dict[str, Run]:
        """Implementation → its run on a shape in a direction; sorted when first asked for."""
        key = (direction or self.direction, shape)
        if key not in self._sorted:
            runs = [r for r in self.of(shape) if r.config.direction == key[0]]
            runs.sort(key=lambda r: (not r.launches, r.timed("median_ns") or float("inf")))
            self._sorted[key] = {}
            for r in runs:
                self._sorted[key].setdefault(r.config.implementation, r)
        return self._sorted[key]

    @cached_property
    def _sorted(self) -> dict[tuple[str, AttentionShape], dict[str, Run]]:
        return {}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Every implementation, ours first."""
        return tuple(dict.fromkeys((*FLASH_FIRST, *(r.config.implementation for r in self.runs))))

    def naive(self, shape: AttentionShape, direction: str | None = None) -> Run | None:
        """Naive as written, else folded."""
        return next((r for name in NAIVE if (r := self.run(name, shape, direction))), None)

    def fused(self, shape: AttentionShape, direction: str | None = None) -> list[Run]:
        """Every fused implementation on a shape, ours first."""
        here = self._best(shape, direction)
        runs = [here[name] for name in self._names if name in here and name not in model.MATERIALISING]
        return [r for r in runs if r.prediction is not None]

    def flash(self, shape: AttentionShape, direction: str | None = None) -> Run | None:
        return next(iter(self.fused(shape, direction)), None)

    def series(self, implementation: str, shape: AttentionShape, direction: str | None = None) -> list[Run]:
        """Runs that differ from ``shape`` in N only (square shapes), by N."""
        alike = self._alike.get((direction or self.direction, *_without_length(shape)), ())
        return [r for s in alike if (r := self.run(implementation, s, direction))]

    @cached_property
    def _alike(self) -> dict[tuple[Any, ...], list[AttentionShape]]:
        """Direction and everything of a shape but N → its square shapes by N."""
        found: dict[tuple[Any, ...], list[AttentionShape]] = {}
        pairs = dict.fromkeys((r.config.direction, r.shape) for r in self.runs)
        for direction, s in sorted(pairs, key=lambda pair: pair[1].nq):
            if s.nq == s.nk:
                found.setdefault((direction, *_without_length(s)), []).append(s)
        return found

    def rows_of(self, shape: AttentionShape) -> list[Row]:
        """Every launch on a shape, in either direction."""
        return self._rows_by_shape.get(shape, [])

    @cached_property
    def _rows_by_shape(self) -> dict[AttentionShape, list[Row]]:
        found: dict[AttentionShape, list[Row]] = {}
        for r in self.runs:
            found.setdefault(r.shape, []).extend(r.rows)
        return found


def _without_length(s: AttentionShape) -> tuple[Any, ...]:
    return s.batch, s.heads, s.kv_heads, s.head_dim, s.dtype, s.mask


KEY = ("implementation", "batch", "heads", "nq", "nk", "head_dim", "dtype", "mask", "kv_heads", "direction",
       "parameters")
NEEDED = 8  # the first of them: without one a row names no configuration


def configuration(row: Row) -> RunConfig | None:
    """The configuration that a row of launches or timings carries; None when its key is null (foreign reports)."""
    return _configuration(*(row.get(name) for name in KEY))


def configurations(frame: pd.DataFrame) -> list[RunConfig | None]:
    """The same of every row of a table."""
    if frame["implementation"].isna().all():
        return [None] * len(frame)
    return [_configuration(*key) for key in zip(*(table.values(frame[name]) for name in KEY))]


@lru_cache(maxsize=1 << 14)
def _configuration(*key: Any) -> RunConfig | None:
    if any(value is None for value in key[:NEEDED]):
        return None
    implementation, *sizes, dtype, mask, kv_heads, direction, parameters = key
    try:
        shape = _shape(*map(int, sizes), int(kv_heads or 0), dtype, mask)
        return RunConfig(implementation, shape, direction or "forward", json.loads(parameters or "{}"))
    except (BadInput, ValueError):
        return None


@lru_cache(maxsize=1 << 12)
def _shape(batch: int, heads: int, nq: int, nk: int, head_dim: int, kv_heads: int, dtype: str,
           mask: str) -> AttentionShape:
    return AttentionShape(batch, heads, nq, nk, head_dim, kv_heads, dtype, mask)
