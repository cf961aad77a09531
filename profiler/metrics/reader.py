"""Reading numbers in base units from the raw metrics of one launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profiler.metrics import rules, units

Raw = Mapping[str, tuple[Any, str]]  # name -> (number, text or None; unit as it came)


@dataclass(slots=True)
class Resolved:
    """values: column → value in base units, or None. used: column → raw names it came from. kinds: "measured" or
    "derived".

    no_number: columns whose counter was collected but holds no number (NaN). unknown_units: raw name → unit that
    could not be turned into the base unit, so that the value was not used. wrong_units: raw name → unit of another
    dimension than the name has (sectors in %), not used either. fractions: raw name → unit of a total that is no whole
    number of it, not used either. chosen: where a name came with several units, the unit
    of the value that was used.
    """

    values: dict[str, Any] = field(default_factory=dict)
    used: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    no_number: set[str] = field(default_factory=set)
    unknown_units: dict[str, str] = field(default_factory=dict)
    wrong_units: dict[str, str] = field(default_factory=dict)
    fractions: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)

    def put(self, column: str, value: Any, names: tuple[str, ...], kind: str) -> None:
        self.values[column], self.used[column], self.kinds[column] = value, names, kind


class Found(NamedTuple):
    value: float
    names: tuple[str, ...]


def _part(value: float) -> bool:
    return math.isfinite(value) and value != int(value)


def cc_number(cc: str | None) -> float | None:
    """"9.0" → 9.0; None when it is not known."""
    try:
        return float(cc) if cc else None
    except ValueError:
        return None


def applies(rule: Any, cc: float | None) -> bool:
    """Whether a rule may be used on this compute capability; on an unknown one every name that is there is believed."""
    return cc is None or rule.since <= cc < rule.until


class Reader:
    """Reads base-unit numbers of one launch; remembers what had no number or an unknown unit."""

    def __init__(self, raw: Raw, out: Resolved):
        self.raw, self.out = raw, out

    def number(self, name: str, unit: str = "") -> float | None:
        """The value of ``name`` in base units; NaN when it has no number; None when it is absent or in another
        dimension."""
        entry = self.raw.get(name)
        if entry is None:
            return None
        wanted = unit or units.expected(name)
        value = self._in_base(name, entry, wanted)
        others = self.raw.get(f"{name}\0")
        if others:  # one display name with several units: "Memory Throughput" in % and in byte/s
            self.out.chosen[name] = entry[1]
            for other in others[0] if value is None or math.isnan(value) else ():
                found = self._in_base(name, other, wanted)
                if found is not None:
                    value, self.out.chosen[name] = found, other[1]
                    break
        if value is not None:
            self.out.wrong_units.pop(name, None)
        return value

    def _in_base(self, name: str, entry: tuple[Any, str], wanted: str) -> float | None:
        value, unit = entry
        known = units.base(unit or "")
        if known is None:
            if value is None:
                return math.nan
            self.out.unknown_units[name] = unit
            return None
        factor, have = known
        if not units.agree(have, wanted):
            if value is not None and name not in rules.SEVERAL_UNITS:
                self.out.wrong_units[name] = unit
            return None
        if value is None:
            return math.nan
        if not isinstance(value, (int, float)):
            return None
        if factor == 1.0 and have in units.WHOLE and name.endswith(".sum") and _part(value):
            self.out.fractions[name] = unit  # 510.18 bytes: the unit lost its prefix
            return None
        return value if factor == 1.0 else value * factor

    def all(self, names: tuple[str, ...], unit: str = "") -> list[float] | None:
        found = []
        for name in names:
            value = self.number(name, unit)
            if value is None:
                return None
            found.append(value)
        return found

    def counter(self, base: str, unit_name: str) -> Found | None:
        """Total of a counter: its sum, or its rate a cycle times the cycles, or its rate a second times the time."""
        value = self.number(f"{base}.sum")
        if value is not None:
            return Found(value, (f"{base}.sum",))
        rate = self.number(f"{base}.sum.per_cycle_elapsed")
        if rate is not None:
            cycles = self.cycles(unit_name)
            if cycles is not None:
                return Found(rate * cycles.value, (f"{base}.sum.per_cycle_elapsed", *cycles.names))
        pair = (f"{base}.sum.per_second", "gpu__time_duration.sum")
        both = self.all(pair)
        return Found(both[0] * both[1] * 1e-9, pair) if both else None

    def cycles(self, unit_name: str) -> Found | None:
        """Elapsed cycles of one ``sm`` or ``smsp``."""
        for name in (f"{unit_name}__cycles_elapsed.avg", f"{unit_name}__cycles_elapsed.max"):
            value = self.number(name)
            if value is not None:
                return Found(value, (name,))
        pair = (f"{unit_name}__cycles_elapsed.avg.per_second", "gpu__time_duration.sum")
        both = self.all(pair)
        return Found(both[0] * both[1] * 1e-9, pair) if both else None

