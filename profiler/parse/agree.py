"""What the launches and metrics of one file must agree in: a damaged byte shows where they do not.

Neither a report nor an export carries a checksum, but both repeat themselves: each launch names the GPU's attributes
and the same metrics again, a metric comes as its least, mean, largest and sum, things are counted in whole numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import prod
from typing import Any

from profiler import table
from profiler.metrics import rules, units
from profiler.parse.numbers import looks_numeric_or_none
from profiler.parse.raw import RawFile, RawLaunch

ATTRIBUTE = rules.DEVICE_NAME.removesuffix("display_name")
OF_ONE_GPU = ("pci", "device_index", "numa", "host")  # two GPUs of one name may differ in these
LISTS = ("breakdown:", "group:")  # their values name other metrics, the same ones in every launch
ROLLS = ("min", "avg", "max", "sum")
SIZES = {axes: axes[0].replace("_dim_x", "_size") for axes in (rules.GRID, rules.BLOCK)}
OF_SOME = ("rule[", "sass__")  # what only some launches have: rules that fired, opcodes that ran
ROOM = 1e-6  # relative; exports print two decimals, which `digits` allows beside
PRINTED = 0.005
DAMAGED = "the file may be damaged there."


def notes(raw: RawFile, number: Callable[[str], int | float | None]) -> list[str]:
    """What does not fit, a sentence each; ``number`` reads a value of a text."""
    found = _Found()
    for launch in raw.launches:
        _one(launch, raw.text, not (raw.text or raw.session.get("metrics_left_out")), number, found)
    have: Counter[str] = Counter(name for launch in raw.launches
                                 for name in {n for n, _, value in launch.metrics if value not in (None, "")})
    some = [f"{name[:80]} ({count})" for name, count in have.items()
            if count < len(raw.launches) and not name.startswith(OF_SOME)]
    said = [f"In only some of the {len(raw.launches)} launches: {_few(some)}. They were collected differently, or "
            f"{DAMAGED}"] if some else []
    differ = [name for (_, name), values in found.same.items() if len(values) > 1]
    for names, what in ((differ, "Not the same in all launches of one GPU"),
                        (found.impossible, "A number that no measurement gives"),
                        (found.torn, "A value with a unit that is no number"),
                        (found.listed, "A list of metrics that names one which is not there"),
                        (found.parts, "A fraction of something whole"),
                        (found.order, "A least, mean, largest and sum that do not fit each other"),
                        (found.size, "A size that is not the product of its sides")):
        if names:
            said.append(f"{what}: {_few(names)}: {DAMAGED}")
    return said


class _Found:
    """Names by what is wrong with them; same: (GPU, name) → the values of what must be the same in every launch."""

    def __init__(self) -> None:
        self.same: dict[tuple[str, str], set[Any]] = defaultdict(set)
        self.impossible: dict[str, None] = {}
        self.torn: dict[str, None] = {}
        self.listed: dict[str, None] = {}
        self.parts: dict[str, None] = {}
        self.order: dict[str, None] = {}
        self.size: dict[str, None] = {}


def _one(launch: RawLaunch, text: bool, whole: bool, number: Callable[[str], int | float | None],
         found: _Found) -> None:
    """Look through one launch; whole: whether every metric of it was read."""
    gpu = next((str(value) for name, _, value in launch.metrics if name == rules.DEVICE_NAME), "")
    rolled: dict[tuple[str, str], dict[str, float]] = {}
    sides: dict[str, float] = {}
    parts = {name for name, _, _ in launch.metrics}
    of = {name.partition("__")[0] for name in parts}
    for name, unit, raw in launch.metrics:
        if name.startswith(LISTS) or (name.startswith(ATTRIBUTE) and not any(w in name for w in OF_ONE_GPU)):
            found.same[gpu, name].add(raw)
            if name.startswith(LISTS) and whole and isinstance(raw, str) and not parts >= {
                    one for one in raw.split(",") if one.strip().partition("__")[0] in of}:
                found.listed[name] = None
        value = raw
        if type(raw) is str:
            if not text:
                continue
            value = number(raw)
            if value is None:
                if (unit and raw.strip() and units.base(unit) and not name.startswith(LISTS)
                        and not looks_numeric_or_none(raw.removeprefix("(!)"))):
                    found.torn[name] = None
                continue
        if value is None or value != value:
            continue
        if not table.possible(abs(value)):
            found.impossible[name] = None
            continue
        base, _, roll = name.rpartition(".")
        if roll in ROLLS and base:
            rolled.setdefault((base, unit), {})[roll] = value
        if unit in units.WHOLE and roll != "avg" and value % 1 and (roll in ROLLS or name.startswith("launch__")):
            found.parts[name] = None
        if name.startswith("launch__"):
            sides[name] = value
    for (base, _), rolls in rolled.items():
        known = [rolls[roll] for roll in ROLLS if roll in rolls]
        room = PRINTED if text else 0.0
        if any(a > b + abs(b) * ROOM + room for a, b in pairwise(known)):
            found.order[base] = None
    for axes, size in SIZES.items():
        if size in sides and all(axis in sides for axis in axes) and sides[size] != prod(sides[a] for a in axes):
            found.size[size] = None


def _few(names: Iterable[str]) -> str:
    some = [name[:120] for name in names]
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")
