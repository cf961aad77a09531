"""From the raw metrics of one launch to the columns of ``launches``: values in base units, the names used, and what
had no number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profiler.metrics import rules, units
from profiler.metrics.rules import Rule

Raw = Mapping[str, tuple[Any, str]]  # name -> (number, text or None; unit as it came)


@dataclass(slots=True)
class Resolved:
    """values: column → value in base units, or None. used: column → raw names it came from. kinds: "measured" or
    "derived".

    no_number: columns whose counter was collected but holds no number (NaN). unknown_units: raw name → unit that
    could not be turned into the base unit, so that the value was not used. chosen: where a name came with several units,
    the unit of the value that was used.
    """

    values: dict[str, Any] = field(default_factory=dict)
    used: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    no_number: set[str] = field(default_factory=set)
    unknown_units: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)

    def put(self, column: str, value: Any, names: tuple[str, ...], kind: str) -> None:
        self.values[column], self.used[column], self.kinds[column] = value, names, kind


class Found(NamedTuple):
    value: float
    names: tuple[str, ...]


def cc_number(cc: str | None) -> float | None:
    """"9.0" → 9.0; None when it is not known."""
    try:
        return float(cc) if cc else None
    except ValueError:
        return None


def applies(rule: Any, cc: float | None) -> bool:
    """Whether a rule may be used on this compute capability; on an unknown one every name that is there is believed."""
    return cc is None or rule.since <= cc < rule.until


class _Reader:
    """Reads base-unit numbers of one launch; remembers what had no number or an unknown unit."""

    def __init__(self, raw: Raw, out: Resolved):
        self.raw, self.out = raw, out

    def number(self, name: str, unit: str = "") -> float | None:
        """The value of ``name`` in base units; NaN when it has no number; None when it is absent or in another
        dimension."""
        entry = self.raw.get(name)
        if entry is None:
            return None
        value = self._in_base(name, entry, unit)
        if value is None and unit:  # one display name with several units: "Memory Throughput" in % and in byte/s
            for other in self.raw.get(f"{name}\0", ((), ""))[0]:
                value = self._in_base(name, other, unit)
                if value is not None:
                    self.out.chosen[name] = other[1]
                    break
        elif value is not None and f"{name}\0" in self.raw:
            self.out.chosen[name] = entry[1]
        return value

    def _in_base(self, name: str, entry: tuple[Any, str], wanted: str) -> float | None:
        value, unit = entry
        if value is None:
            return math.nan
        if not isinstance(value, (int, float)):
            return None
        known = units.base(unit or "")
        if known is None:
            self.out.unknown_units[name] = unit
            return None
        factor, have = known
        if wanted and have and not _same(have, wanted):
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


def _same(have: str, wanted: str) -> bool:
    """Units agree; a count may come with its denominator or without (register, register/thread, byte, byte/block)."""
    return have == wanted or (have.split("/")[0] == wanted.split("/")[0] and not ("/s" in have) ^ ("/s" in wanted))


def resolve(raw: Raw, cc: str | None = None) -> Resolved:
    """The columns that ``raw`` can give on compute capability ``cc`` (None: not known). See ``rules`` for the
    choices."""
    out, number = Resolved(), cc_number(cc)
    reader = _Reader(raw, out)
    for column, choices in rules.COLUMNS.items():
        _plain(column, choices, number, reader)
    _core_flops(reader)
    _tensor(reader, number)
    _limiter(reader)
    for column, value in list(out.values.items()):
        if isinstance(value, float) and not math.isfinite(value):
            out.no_number.add(column)
            out.values[column] = None
    return out


def _plain(column: str, choices: tuple[Rule, ...], cc: float | None, reader: _Reader) -> None:
    for rule in choices:
        if not applies(rule, cc):
            continue
        found = reader.all(rule.names, rule.unit)
        if found is None:
            continue
        try:
            value = rule.formula(*found) if rule.formula else found[0]
        except ZeroDivisionError:
            continue
        reader.out.put(column, value, rule.names, rule.kind)
        if math.isfinite(value):
            return


def _core_flops(reader: _Reader) -> None:
    for column, (letter, lanes) in rules.CORE_FLOPS.items():
        parts = [reader.counter(rules.SASS_OPS.format(letter + op), "smsp") for op in ("add", "mul", "fma")]
        if all(parts):
            add, mul, fma = parts
            names = tuple(dict.fromkeys(n for part in parts for n in part.names))
            reader.out.put(column, lanes * (add.value + mul.value + 2 * fma.value), names, "derived")


@dataclass(slots=True)
class _Counted:
    """Operations on one operand type: their number, the names it came from, the rule, and which of its parts did most."""

    total: float
    names: tuple[str, ...]
    rule: rules.TensorRule
    most: int


def _tensor(reader: _Reader, cc: float | None) -> None:
    """tensor_flops, tensor_ops, tensor_dtype and the dense peak of that type."""
    by_type: dict[str, _Counted] = {}
    for rule in rules.TENSOR:
        if rule.dtype in by_type or not applies(rule, cc):
            continue
        parts = [(i, found) for i, part in enumerate(rule.parts)
                 if (found := reader.counter(rules.TENSOR_PREFIX + part, "sm"))]
        if parts:
            names = tuple(dict.fromkeys(n for _, found in parts for n in found.names))
            most = max(parts, key=lambda part: part[1].value)[0]
            by_type[rule.dtype] = _Counted(sum(found.value for _, found in parts), names, rule, most)
    for integer, column in ((False, "tensor_flops"), (True, "tensor_ops")):
        mine = [counted for counted in by_type.values() if counted.rule.integer == integer]
        if mine:
            names = tuple(dict.fromkeys(n for counted in mine for n in counted.names))
            kind = "measured" if all(n.endswith(".sum") for n in names) else "derived"
            reader.out.put(column, sum(counted.total for counted in mine), names, kind)
    from_opcodes = _tensor_from_opcodes(reader, cc)
    _idle(reader)
    dtype, most_done = max(by_type.items(), key=lambda item: item[1].total, default=("", None))
    if most_done is not None and most_done.total > 0:
        reader.out.put("tensor_dtype", dtype, most_done.names, "derived")
        _dense_peak(reader, most_done, cc)
    elif from_opcodes:
        dtype = max(from_opcodes, key=lambda t: from_opcodes[t][0])
        reader.out.put("tensor_dtype", dtype, from_opcodes[dtype][1], "derived")


def _dense_peak(reader: _Reader, counted: _Counted, cc: float | None) -> None:
    """Dense FLOP/s of the operand type and accumulator that did most, at the clock of the launch.

    Only for a known architecture: whether a name's peak is the dense or the sparse one depends on it.
    """
    clock = "sm__cycles_elapsed.avg.per_second"
    hz = reader.number(clock, "hz")
    if hz is None or cc is None or counted.rule.integer or not counted.rule.peaks:
        return
    choices = [counted.rule.peaks[counted.most]]
    if 9.0 <= cc < 10.0:  # Hopper has one dense peak a type, whatever the instruction and accumulator
        choices += [peak for rule in rules.TENSOR if rule.dtype == counted.rule.dtype and applies(rule, cc)
                    for peak in rule.peaks]
    for counter, factor in choices:
        name = f"{rules.TENSOR_PREFIX}{counter}.sum.peak_sustained"
        value = reader.number(name)
        if value is not None:
            reader.out.put("tensor_peak_flops_per_s", value * factor * hz, (name, clock), "derived")
            return


def _tensor_from_opcodes(reader: _Reader, cc: float | None) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Tensor operations from executed instructions, where no counter gives them: each says its shape and types.

    A warp-level IMMA.16832.S8.S8 does 2·16·8·32 integer operations. Volta's HMMA.884 comes in steps of unlike size
    and is left.
    """
    listed = [name for name in reader.raw if name.startswith(rules.OPCODES + "[")]
    if not listed or "tensor_flops" in reader.out.values:
        return {}
    totals: dict[tuple[bool, str], float] = {}
    names: dict[tuple[bool, str], tuple[str, ...]] = {}
    for name in listed:
        opcode = name[len(rules.OPCODES) + 1:-1]
        if not re.match(r"[A-Z]?(?:[HIBD]|HG|IG|QG|BG)MMA\.|(?:UTC|WARPSYNC)?[A-Z]*MMA\b", opcode) or opcode.startswith("HFMA2"):
            continue
        work = instruction_ops(opcode)
        if work is None:
            return {}
        ops, dtype, integer = work
        value = reader.number(name)
        if value is None:
            return {}
        key = (integer, dtype)
        totals[key] = totals.get(key, 0.0) + ops * value
        names[key] = (*names.get(key, ()), name)
    for integer, column in ((False, "tensor_flops"), (True, "tensor_ops")):
        mine = [key for key in totals if key[0] == integer]
        used = tuple(n for key in mine for n in names[key]) or (rules.OPCODES,)
        if column not in reader.out.values:
            reader.out.put(column, sum(totals[key] for key in mine), used, "derived")
    return {key[1]: (value, names[key]) for key, value in totals.items() if value}


SHAPES = {"16832": (16, 8, 32), "16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "8816": (8, 8, 16), "8832": (8, 8, 32),
          "884": (8, 8, 4), "16864": (16, 8, 64), "168128": (16, 8, 128), "168256": (16, 8, 256), "88128": (8, 8, 128)}


def instruction_ops(opcode: str) -> tuple[int, str, bool] | None:
    """(operations of one warp-level execution, operand type, integer) of a tensor instruction; None when its name
    does not say.

    A multiply-add counts 2. A sparse instruction (``.SP``) computes the full depth it names. HGMMA is issued by four
    warps, each doing a quarter of the 64-row tile.
    """
    head, *parts = opcode.split(".")
    integer = head.lstrip("U").startswith(("I", "B"))
    group = re.fullmatch(r"(\d+)x(\d+)x(\d+)", next((p for p in parts if "x" in p), ""))
    if group:
        m, n, k = (int(v) for v in group.groups())
        ops = 2 * m * n * k // 4
    else:
        shape = SHAPES.get(next((p for p in parts if p.isdigit()), ""))
        if shape is None or any(p.startswith("STEP") for p in parts) or (shape == (8, 8, 4) and head != "DMMA"):
            return None
        ops = 2 * shape[0] * shape[1] * shape[2]
    kinds = {"BF16": "bf16", "TF32": "tf32", "E4M3": "fp8", "E5M2": "fp8", "S8": "int8", "U8": "int8", "S4": "int4", "U4": "int4"}
    dtype = next((kinds[p] for p in parts if p in kinds), "")
    if not dtype:
        dtype = "fp64" if head == "DMMA" else "int1" if head.startswith("B") else "int8" if integer else "fp16"
    return ops, dtype, integer


def _idle(reader: _Reader) -> None:
    for column in ("tensor_flops", "tensor_ops"):
        if column in reader.out.values:
            continue
        for name in rules.TENSOR_IDLE:
            if reader.number(name) == 0:
                reader.out.put(column, 0.0, (name,), "derived")
                break


def _limiter(reader: _Reader) -> None:
    limits, names = {}, []
    for resource, candidates in rules.LIMITERS.items():
        for name in candidates:
            value = reader.number(name)
            if value is not None and math.isfinite(value):
                limits[resource] = value
                names.append(name)
                break
    if len(limits) < 4:  # the smallest of an incomplete list need not be the limiter
        return
    low = min(limits.values())
    reader.out.put("occupancy_limiter", ", ".join(r for r, v in limits.items() if v == low), tuple(names), "derived")
