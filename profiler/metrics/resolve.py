"""From the raw metrics of one launch to the columns of ``launches``: values in base units, the names used, and what
had no number."""

from __future__ import annotations

import math

from profiler.metrics import rules, tensor
from profiler.metrics.reader import Raw, Reader, Resolved, applies, cc_number
from profiler.metrics.rules import Rule


def resolve(raw: Raw, cc: str | None = None) -> Resolved:
    """The columns that ``raw`` can give on compute capability ``cc`` (None: not known). See ``rules`` for the
    choices."""
    out, number = Resolved(), cc_number(cc)
    reader = Reader(raw, out)
    for column, choices in rules.COLUMNS.items():
        _plain(column, choices, number, reader)
    _core_flops(reader)
    tensor.resolve(reader, number)
    _limiter(reader)
    for column, value in list(out.values.items()):
        if isinstance(value, float) and not math.isfinite(value):
            out.no_number.add(column)
            out.values[column] = None
    return out


def _plain(column: str, choices: tuple[Rule, ...], cc: float | None, reader: Reader) -> None:
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


def _core_flops(reader: Reader) -> None:
    for column, (letter, lanes) in rules.CORE_FLOPS.items():
        found = (reader.counter(rules.SASS_OPS.format(letter + op), "smsp") for op in ("add", "mul", "fma"))
        parts = [part for part in found if part is not None]
        if len(parts) == 3:
            add, mul, fma = parts
            names = tuple(dict.fromkeys(n for part in parts for n in part.names))
            reader.out.put(column, lanes * (add.value + mul.value + 2 * fma.value), names, "derived")


def _limiter(reader: Reader) -> None:
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


def raw_names() -> frozenset[str]:
    """Every raw name that may be used for a column, the identity or the profile."""
    names = {name for choices in rules.COLUMNS.values() for rule in choices for name in rule.names}
    names |= {name for candidates in rules.LIMITERS.values() for name in candidates}
    counters = [rules.SASS_OPS.format(letter + op) for letter, _ in rules.CORE_FLOPS.values()
                for op in ("add", "mul", "fma")]
    counters += [tensor.TENSOR_PREFIX + part for rule in tensor.TENSOR for part in rule.parts]
    names |= {f"{counter}{suffix}" for counter in counters
              for suffix in (".sum", ".sum.per_cycle_elapsed", ".sum.per_second", ".sum.peak_sustained")}
    names |= {f"{tensor.TENSOR_PREFIX}{peak}.sum.peak_sustained" for rule in tensor.TENSOR for peak, _ in rule.peaks}
    names |= {f"{unit}__cycles_elapsed.{how}" for unit in ("sm", "smsp") for how in ("avg", "max", "avg.per_second")}
    names |= {*tensor.TENSOR_IDLE, rules.DEVICE_NAME, rules.CC_MAJOR, rules.CC_MINOR, *rules.GRID, *rules.BLOCK,
              rules.PASSES}
    return frozenset(names | {name for name, _ in rules.PROFILE.values()})
