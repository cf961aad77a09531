"""What a checked claim is, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiler.spec import AttentionShape

HOLDS, FAILS, CANNOT_TELL = "holds", "fails", "cannot tell"
UNDECIDED = "This data does not decide it."


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim, checked on one shape or (shape None) on all shapes of a bundle.

    sentence: generated, with the numbers of the data; for "cannot tell" it ends with what is missing.
    value, unit: the figure that decides. tolerance: in words.
    inputs: which launches or timing rows and which columns. missing: for "cannot tell", what is missing, how to get it.
    kind: "measured", "derived", "predicted" or a mixture joined by " and ". figure: the figure that shows it.
    cases: the same claim shape by shape, when this one sums them up. source: the bundle that decided it, where that is
    not the one that was asked.
    """

    id: str
    statement: str
    verdict: str
    sentence: str
    value: float | None = None
    unit: str = ""
    tolerance: str = ""
    inputs: tuple[str, ...] = ()
    missing: str = ""
    kind: str = "measured"
    figure: str = ""
    shape: AttentionShape | None = None
    cases: tuple[Claim, ...] = ()
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "statement": self.statement, "verdict": self.verdict, "sentence": self.sentence,
            "value": self.value, "unit": self.unit, "tolerance": self.tolerance, "inputs": list(self.inputs),
            "missing": self.missing, "kind": self.kind, "figure": self.figure, "source": self.source,
            "shape": self.shape.label() if self.shape else None,
            "cases": [{"shape": c.shape.label() if c.shape else None, "verdict": c.verdict, "value": c.value,
                       "sentence": c.sentence, "inputs": list(c.inputs), "missing": c.missing} for c in self.cases],
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found on one shape; ``evaluate`` makes the Claim of it."""

    verdict: str
    sentence: str
    value: float | None = None
    unit: str = ""
    inputs: tuple[str, ...] = ()
    missing: str = ""
    kind: str = "measured"


def cannot_tell(missing: str, *, sentence: str = "", inputs: tuple[str, ...] = (), value: float | None = None,
                unit: str = "") -> Outcome:
    """An undecided outcome. sentence: what is known all the same; missing: what is missing, and how to get it."""
    return Outcome(CANNOT_TELL, sentence or UNDECIDED, value, unit, inputs, missing)


def tile(parameters: Mapping[str, Any]) -> str:
    """A configuration in words: "64 × 128, 4 warps, 2 stages" (query rows × keys); of a backward both passes."""
    p = parameters
    if "block_m" not in p:
        return "; ".join(f"{word} {p[f'{side}_block_m']} × {p[f'{side}_block_n']}" for side, word in
                         (("key", "dK and dV"), ("query", "dQ")) if f"{side}_block_m" in p)
    rest = [f"{p[name]} {word}" for name, word in (("num_warps", "warps"), ("num_stages", "stages"),
                                                   ("num_splits", "parts of the keys")) if name in p]
    return ", ".join([f"{p['block_m']} × {p.get('block_n', '?')}", *rest])


def size(value: float) -> str:
    """Bytes for a sentence: three significant digits, decimal prefixes."""
    for factor, prefix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= 0.9995 * factor:
            return f"{digits(value / factor)} {prefix}"
    return f"{value:.0f} B"


def digits(value: float) -> str:
    """Three significant digits, thousands separated, never in powers of ten."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    if magnitude < 0.995:
        return f"{value:#.3g}"
    return f"{value:,.{decimals}f}"


def time(ns: float) -> str:
    """Nanoseconds for a sentence."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if ns >= factor:
            return f"{digits(ns / factor)} {unit}"
    return f"{digits(ns)} ns"


def flops(value: float) -> str:
    """FLOP for a sentence."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{digits(value / factor)} {prefix}FLOP"
    return f"{value:,.0f} FLOP"
