"""Why the occupancy of a launch is what it is, and whether that is fine: sentences with the numbers of the loaded data.

The launch that is asked about is the longest of the first fused implementation; of a report that names none, the
longest of all. Every sentence says only what was counted; what was not collected is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiler import evidence, table
from profiler.bundle import Bundle
from profiler.figures import bounds, labels, quadrant, select, units
from profiler.model import visible_pairs
from profiler.model.roofs import ROOF_NAMES
from profiler.spec import AttentionShape, Mask

LOW = 50  # % of the warps of an SM: from here on occupancy is not called low
BUSY = 30  # % of the cycles: Tensor Cores that are active that often are what a fused kernel is for
NEAR = 0.6  # share of the time that a roof asks for, from which on it binds
Row = dict[str, Any]
Answer = tuple[str, str]  # question, answer


def answers(bundle: Bundle, shape: AttentionShape | None = None, implementations: Sequence[str] = (),
            direction: str = "forward") -> list[Answer]:
    """Questions and answers about one launch; empty where no launch is there."""
    if shape is None:
        rows = table.records(bundle.launches.sort_values("duration_ns", na_position="first").tail(1))
        return _of_any(bundle, rows[0]) if rows else []
    names = [n for n in implementations if select.records(bundle, shape, n, direction)]
    if not names:
        return []
    name = next((n for n in names if not labels.is_naive(n)), names[0])
    row = max(select.records(bundle, shape, name, direction), key=lambda r: r["duration_ns"] or 0)
    roofs = bounds.frame(bundle, shape, [name], direction)
    out = [_why(row, labels.implementation(name)), _fine(bundle, shape, names, name, direction, roofs),
           _limit(roofs, name), _special(row, shape, direction), _waiting(bundle, row)]
    return [one for one in out if one]


def _of_any(bundle: Bundle, row: Row) -> list[Answer]:
    """The same of a launch that belongs to no attention call: what the diagnosis of a launch says."""
    found = {f.id: f for f in evidence.diagnosis(bundle, row["launch"])}
    out = [_why(row, labels.kernel(row["kernel"]))]
    for id_, question in (("occupancy", "Is it fine?"), ("tail", "Does the grid fill the GPU?"),
                          ("nearest_roof", "What limits it?"), ("stalls", "What do its warps wait for?")):
        one = found[id_]
        out.append((question, _said(one)))
    return [one for one in out if one]


def resident(row: Row) -> int | None:
    """Blocks that are resident on an SM at once: grid ÷ (waves · SMs); None where that is no whole number."""
    size = _product(row["grid"])
    if not size or not row["waves_per_sm"] or not row["sm_count"]:
        return None
    blocks = size / (row["waves_per_sm"] * row["sm_count"])
    return round(blocks) if round(blocks) and abs(blocks / round(blocks) - 1) < 0.02 else None


def _product(text: str | None) -> int | None:
    """Blocks of a grid or threads of a block from "x,y,z"."""
    parts = [p for p in str(text or "").split(",") if p.strip().isdigit()]
    return int(parts[0]) * int(parts[1]) * int(parts[2]) if len(parts) == 3 else None


def _why(row: Row, who: str) -> Answer | None:
    """What a block asks for, how many fit, what was achieved."""
    achieved, most = row["achieved_occupancy_pct"], row["theoretical_occupancy_pct"]
    if achieved is None:
        return ("Why is the occupancy as it is?", "Not available: occupancy was not collected.")
    threads, blocks = _product(row["block"]), resident(row)
    asks = [f"{units.whole(row['registers_per_thread'])} registers for each of its {units.whole(threads)} threads"
            if row["registers_per_thread"] and threads else "",
            f"{units.nbytes(row['shared_bytes_per_block'])} of shared memory" if row["shared_bytes_per_block"] else ""]
    said = f"A block of {who} takes {' and '.join(a for a in asks if a)}. " if any(asks) else ""
    limit = labels.join((row["occupancy_limiter"] or "").split(", "))
    if most is not None and most < 100 and limit:
        warps = blocks * threads // 32 if blocks and threads else None
        fit = f"{labels.count(blocks, 'such block')} fit on an SM at once" if blocks else "the SM takes no more"
        if warps:
            fit += f", {units.whole(warps)} of {units.whole(100 * warps / most)} warps"
        said += f"By {limit} {fit}: {units.percent(most)} at most, "
    elif most is not None:
        said += f"Its resources allow {units.percent(most)}, "
    said += f"{units.percent(achieved)} achieved."
    if row["waves_per_sm"] and row["waves_per_sm"] < 1:
        said += (f" The grid has {labels.count(_product(row['grid']) or 0, 'block')}: "
                 f"{units.percent(100 * row['waves_per_sm'])} of what the GPU holds at once.")
    elif row["waves_per_sm"]:
        said += f" The grid makes {units.number(row['waves_per_sm'])} waves."
    return (f"Why is the occupancy {'low' if achieved < LOW else 'high'}?", said)


def _fine(bundle: Bundle, shape: AttentionShape, names: Sequence[str], name: str, direction: str,
          roofs: Any) -> Answer | None:
    """Whether few warps cost anything: beside naive, else by the nearest roof."""
    data = quadrant.frame(bundle, shape, names, direction)
    data = data.dropna(subset=["achieved_occupancy_pct", "tensor_pipe_pct", "duration_ns"])
    if not data["implementation"].eq(name).any():
        return ("Is it fine?", "Not available: occupancy and Tensor Core use were not both collected.")
    naive = next((n for n in names if labels.is_naive(n) and data["implementation"].eq(n).any()), None)
    warps, busy = (quadrant.mean(data, name, c) for c in ("achieved_occupancy_pct", "tensor_pipe_pct"))
    here = (f"with {units.percent(warps)} of the warps {labels.implementation(name)} keeps the Tensor Cores active "
            f"{units.percent(busy)} of the cycles")
    if naive and naive != name:
        other = [quadrant.mean(data, naive, c) for c in ("achieved_occupancy_pct", "tensor_pipe_pct")]
        times = [data.loc[data["implementation"].eq(n), "duration_ns"].sum() for n in (name, naive)]
        beside = (f"{here}; {labels.implementation(naive)} has {units.percent(other[0])} of them resident, keeps the "
                  f"Tensor Cores active {units.percent(other[1])} and takes {units.times(times[1] / times[0])} the "
                  "time, its launches added up under the profiler.")
        near = max((share for _, share in _shares(roofs, name)), default=0.0) >= NEAR
        if busy > other[1] and times[0] < times[1] and (busy >= BUSY or near):
            return ("Is it fine?", f"Yes: {beside}")
        if busy > other[1] and times[0] < times[1]:
            return ("Is it fine?", f"In part: {beside} But no pipe is busy and no roof near, so more work in flight "
                                   "could still help.")
        return ("Is it fine?", f"Not by this alone: {beside}")
    share = max((s for _, s in _shares(roofs, name)), default=0.0)
    if share >= NEAR:
        return ("Is it fine?", f"Yes: {here}, and the nearest roof asks for {units.percent(100 * share, 2)} of the "
                "time: more warps could not lift it.")
    return ("Is it fine?", f"This data cannot tell: {here}, and no roof is near.")


def _shares(roofs: Any, name: str) -> list[tuple[Row, float]]:
    """Roofs of an implementation, the nearest first, each with the share of the time that it asks for."""
    rows = table.records(roofs[roofs["implementation"].eq(name)])
    taken = next((r["ns"] for r in rows if r["row"] == bounds.MEASURED and r["ns"]), None)
    asked = [r for r in rows if r["kind"] == "predicted" and r["ns"]]
    return sorted(((r, r["ns"] / taken) for r in asked), key=lambda p: -p[1]) if taken else []


def _limit(roofs: Any, name: str) -> Answer | None:
    """The nearest roofs; where matmuls and exponentials ask for about the same, that only overlap hides one of them."""
    shares = _shares(roofs, name)
    if not shares:
        return None
    taken = next(iter(shares))[0]["ns"] / next(iter(shares))[1]
    said = labels.join([f"{ROOF_NAMES[r['row']]} {units.duration(r['ns'])} ({units.percent(100 * s, 2)})"
                        for r, s in shares[:3]])
    said = f"Of the {units.duration(taken)} taken the roofs alone would ask for: {said}."
    ns = {r["row"]: r["ns"] for r, _ in shares}
    matmul, special = ns.get("tensor"), ns.get("special")
    if matmul and special and special >= NEAR * matmul and matmul + special >= NEAR * taken:
        said += (f" Exponentials and matmuls one after the other would take {units.duration(matmul + special)}: how "
                 "much of that overlaps decides the time, not how many warps stand by.")
    elif shares[0][1] < NEAR:
        said += " None is near: waiting decides the time."
    return ("What limits it?", said)


def _special(row: Row, shape: AttentionShape, direction: str) -> Answer | None:
    """Special-function operations a visible pair: one exponential each, the rest rescaling."""
    pairs = shape.batch * shape.heads * visible_pairs(Mask.parse(shape.mask), shape.nq, shape.nk)
    if row["special_ops"] is None or not pairs or direction != "forward":
        return None
    return ("How many special functions?",
            f"{units.number(row['special_ops'] / 1e6)} million, {units.number(row['special_ops'] / pairs)} for each "
            "pair of query and visible key. One is its exponential; the rest are the factors α and the places of a "
            "block that are masked or padded.")


def _waiting(bundle: Bundle, row: Row) -> Answer:
    found = next(f for f in evidence.diagnosis(bundle, row["launch"]) if f.id == "stalls")
    return ("What do its warps wait for?", labels.sentence(_said(found)))


def _said(found: evidence.Finding) -> str:
    """What was found and what would change it, or what is not there."""
    if found.missing:
        return f"Not available: {found.missing.removeprefix('not counted: ')}."
    return f"{found.sentence} {found.change}".strip()
