"""Where one value of ``launches`` came from, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiler.metrics import rules, tensor
from profiler.metrics.ask import TENSOR_COLUMNS, missing_flag, unavailable


@dataclass(frozen=True, slots=True)
class Provenance:
    """kind: "measured", "derived", "not_collected" or "not_available".

    names: raw metrics it was made from. reason: why there is no value. flag: the ncu option that would collect it.
    """

    kind: str
    names: tuple[str, ...] = ()
    reason: str = ""
    flag: str = ""


def provenance(bundle: Any, launch: int, column: str) -> Provenance:
    """How ``column`` of launch number ``launch`` in ``bundle`` came about.

    Where the bundle keeps no raw metrics for a value, its kind is that of the column's usual rule and names is empty.
    """
    rows = bundle.launches[bundle.launches["launch"] == launch]
    if rows.empty:
        raise KeyError(f"no launch {launch} in {bundle.name}")
    if rows[column].isna().iloc[0]:
        cc = rows["cc"].iloc[0] if rows["cc"].notna().iloc[0] else None
        return absent(column, cc, _collected(bundle, launch, column))
    names = _collected(bundle, launch, column)
    return Provenance(kind(column, names), names)


def _collected(bundle: Any, launch: int, column: str) -> tuple[str, ...]:
    mine = bundle.raw(launch)
    used = [column in columns.split() for columns in mine["used_for"].fillna("")]
    return tuple(str(name) for name in mine["metric"][used])


def kind(column: str, names: tuple[str, ...]) -> str:
    """Measured when the names are a counter that is the value as it stands, else derived."""
    if column in ("tensor_flops", "tensor_ops"):
        return "measured" if not names or all(n.startswith(tensor.TENSOR_PREFIX) and n.endswith(".sum")
                                              for n in names) else "derived"
    if column in (*TENSOR_COLUMNS, *rules.CORE_FLOPS, "occupancy_limiter"):
        return "derived"
    choices = rules.COLUMNS.get(column, ())
    if not names:
        return choices[0].kind if choices else "measured"
    return next((rule.kind for rule in choices if set(rule.names) == set(names)), "derived")


def absent(column: str, cc: str | None, names: tuple[str, ...] = ()) -> Provenance:
    """Why ``column`` has no value on a device of compute capability ``cc``."""
    reason = unavailable(column, cc)
    if reason:
        return Provenance("not_available", reason=reason)
    flag = missing_flag([column], cc)
    if names:
        return Provenance("not_collected", names, "The counter was collected but holds no number in this launch.", flag)
    return Provenance("not_collected", reason="The report holds none of the metrics this is made of.", flag=flag)
