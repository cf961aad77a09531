"""Tuned configurations of one kernel on one shape: what each asks for, what it took, why the slower lose."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from profiler.bundle import Bundle
from profiler.figures import labels, select, units
from profiler.spec import AttentionShape, RunConfig

KNOBS = ("block_m", "block_n", "num_warps", "num_stages")
MEASURES = {"registers": "registers_per_thread", "shared": "shared_bytes_per_block", "spills": "spill_requests",
            "l2_to_sm": "l2_to_sm_bytes", "tensor_flops": "tensor_flops", "fp32_flops": "fp32_flops",
            "waves": "waves_per_sm", "occupancy": "theoretical_occupancy_pct"}
SUMS = ("l2_to_sm", "spills", "tensor_flops", "fp32_flops")  # over the launches of a call; the others of its longest
COLUMNS = ["config_id", "implementation", *KNOBS, "time", "time_kind", "versus_best", *MEASURES, "limiter", "launch",
           "peak_memory", "status", "reasons"]
Row = dict[str, Any]
MORE = 1.05  # a counter that exceeds the fastest one's by less than this does not tell them apart
# block pair: ns and bytes of memory on an A100 at N 2048, D 64, as an article prints them; nothing here measured them
PUBLISHED = {(64, 64): (1.82e6, 42e6), (128, 64): (1.35e6, 48e6), (128, 128): (1.41e6, 56e6), (256, 64): (1.52e6, 72e6)}


def frame(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2",
          direction: str = "forward") -> pd.DataFrame:
    """One row a configuration with known blocks, fastest first, those without a time last.

    time in ns: the unprofiled median, or the profiler's where nothing was timed (never both in one table). status: ok,
    or why there is no time. reasons: what its launch counters show beside the fastest one's, or that they show nothing
    and which setting differs; of one that did not run, why.
    """
    return select.held(bundle, ("tuning", shape, implementation, direction),
                       lambda: _frame(bundle, shape, implementation, direction))


def _frame(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str) -> pd.DataFrame:
    timed = select.matching_records(bundle.timings, shape, implementation, direction)
    ran = select.matching_records(bundle.launches, shape, implementation, direction)
    groups: dict[str, tuple[list[Row], list[Row]]] = {}
    for i, rows in enumerate((timed, ran)):
        for one in rows:
            if one["config_id"] is not None:
                groups.setdefault(one["config_id"], ([], []))[i].append(one)
    out: list[dict[str, Any]] = []
    for config_id, (mine, launches) in groups.items():
        knobs = _knobs([one["parameters"] for one in (*launches, *mine)])
        if "block_m" not in knobs or "block_n" not in knobs:
            continue
        row: dict[str, Any] = {"config_id": config_id, "implementation": implementation, "status": "ok",
                               **{k: knobs.get(k) for k in KNOBS}}
        if mine:
            row |= {"time": mine[0]["median_ns"], "status": mine[0]["status"], "time_kind": "unprofiled median",
                    "peak_memory": mine[0]["peak_memory_bytes"]}
        elif not timed:
            row |= {"time": select.summed(launches, "duration_ns"), "time_kind": "under the profiler"}
        if launches:  # the longest launch stands for a call of several
            one = max(launches, key=lambda launch: launch["duration_ns"] or 0)
            row |= {name: one[column] for name, column in MEASURES.items()}
            row |= {"limiter": one["occupancy_limiter"], "launch": one["launch"],
                    **{name: select.summed(launches, MEASURES[name]) for name in SUMS}}
        out.append(row)
    numbers = [*KNOBS, "time", "versus_best", *MEASURES, "peak_memory"]
    data = pd.DataFrame(out, columns=COLUMNS).astype(dict.fromkeys(numbers, "Float64") | {"launch": "Int64"})
    data = data.sort_values("time", na_position="last", kind="stable").reset_index(drop=True)
    if len(data) and not units.missing(data["time"].iloc[0]):
        best = data.iloc[0].to_dict()
        data["versus_best"] = data["time"] / best["time"]
        data["reasons"] = ["the fastest" if i == 0 else loses(row, best)
                           for i, row in enumerate(data.to_dict("records"))]
    return data


def _knobs(texts: list[Any]) -> dict[str, Any]:
    """The tuning parameters of the first text that names the blocks: what ran before what was asked for."""
    for text in texts:
        knobs = {} if units.missing(text) else json.loads(text)
        if "block_m" in knobs:
            return knobs
    return {}


def tuned(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> list[str]:
    """Implementations that ran on ``shape`` with at least two different settings of blocks, warps or stages."""
    names = pd.concat([f["implementation"] for f in (bundle.timings, bundle.launches)]).dropna().unique()
    return [name for name in names if len(frame(bundle, shape, name, direction)) > 1]


def loses(row: dict[str, Any], best: dict[str, Any]) -> str:
    """Why a configuration lost to the fastest, in words; where no counter tells, what was set otherwise."""
    if units.missing(row["time"]):
        return f"did not run: {row['status']}" if row["status"] != "ok" else "not timed"
    told = "; ".join(words for _, words in reasons(row, best))
    if told:
        return told
    if all(units.missing(row[name]) for name in MEASURES):
        return "its launch counters were not collected"
    pairs = [(noun, row[k], best[k]) for noun, k in zip(("query rows", "keys", "warps", "stages"), KNOBS)]
    other = labels.join([f"{units.whole(a)} {noun} instead of {units.whole(b)}" for noun, a, b in pairs
                         if not units.missing(a) and not units.missing(b) and a != b])
    return f"no counter here differs by more than 5%; {other or 'the settings known are the same'}"


def reasons(row: dict[str, Any], best: dict[str, Any]) -> list[tuple[str, str]]:
    """(cause, words) for each counter that differs to the disadvantage of ``row``; one not collected gives none."""
    def both(name: str) -> tuple[float, float] | None:
        a, b = row[name], best[name]
        return None if units.missing(a) or units.missing(b) else (float(a), float(b))

    out = []
    if (pair := both("spills")) and pair[0] > MORE * pair[1]:
        held = "" if units.missing(row["registers"]) else f", at {units.whole(row['registers'])} registers a thread"
        out.append(("spill registers to local memory",
                    f"spills: {units.whole(pair[0])} requests to local memory{held}"))
    for name, cause, what in (("tensor_flops", "compute more on Tensor Cores", "the Tensor Core FLOPs"),
                              ("fp32_flops", "do more fp32 work beside the matmuls", "the fp32 FLOPs")):
        if (pair := both(name)) and pair[1] and pair[0] > MORE * pair[1]:
            out.append((cause, f"{units.times(pair[0] / pair[1])} {what}"))
    if (pair := both("l2_to_sm")) and pair[1] and pair[0] > MORE * pair[1]:
        out.append(("read more from L2", f"{units.times(pair[0] / pair[1])} the L2 → SM bytes"))
    if (pair := both("occupancy")) and MORE * pair[0] < pair[1]:
        limiter = "" if units.missing(row["limiter"]) else f", limited by {row['limiter']}"
        out.append(("hold fewer warps", f"{units.percent(pair[0])} of the warps resident instead of "
                                        f"{units.percent(pair[1])}{limiter}"))
    if (pair := both("waves")) and MORE * _filled(pair[0]) < _filled(pair[1]):
        out.append(("end in an emptier last wave", f"{units.number(pair[0])} waves: blocks fill "
                    f"{units.percent(100 * _filled(pair[0]))} of them instead of "
                    f"{units.percent(100 * _filled(pair[1]))}"))
    return out


def _filled(waves: float) -> float:
    """Share of the rounded-up waves that blocks fill: 1.1 waves take as long as 2, and fill 55%."""
    return waves / math.ceil(waves) if waves else 1.0


def name(row: dict[str, Any]) -> str:
    """A configuration in words: "128 × 64, 4 warps, 3 stages"."""
    blocks = f"{int(row['block_m'])}{units.NBSP}×{units.NBSP}{int(row['block_n'])}"
    return ", ".join([blocks, *settings(row["num_warps"], row["num_stages"])])


def settings(warps: Any, stages: Any) -> list[str]:
    """"4 warps" and "3 stages", as far as they are known."""
    return [f"{units.whole(value)}{units.NBSP}{noun}{'s' if value != 1 else ''}"
            for value, noun in ((warps, "warp"), (stages, "stage")) if not units.missing(value)]


def sentence(data: pd.DataFrame) -> str:
    """Why the rest lose, from the launch counters of each beside those of the fastest; in one sentence."""
    known = data[data["time"].notna()]
    if len(known) < 2:
        return ""
    best, rest = known.iloc[0].to_dict(), known.iloc[1:].to_dict("records")
    if all(units.missing(best[name]) for name in MEASURES):
        return "Why the rest lose is not known: no launch counters were collected."
    counts: dict[str, int] = {}
    for row in rest:
        for cause, _ in reasons(row, best):
            counts[cause] = counts.get(cause, 0) + 1
    alike = sum(not reasons(row, best) for row in rest)
    parts = [f"{units.whole(n)} {_singular(cause) if n == 1 else cause}"
             for cause, n in sorted(counts.items(), key=lambda item: -item[1])]
    if alike:
        parts.append(f"{units.whole(alike)} {'differs' if alike == 1 else 'differ'} in none of these counters")
    slower = "the one slower" if len(rest) == 1 else f"the {labels.count(len(rest), 'slower one')}"
    return f"Beside the fastest, of {slower} {labels.join(parts)}."


def _singular(cause: str) -> str:
    verb, rest = cause.split(" ", 1)
    return f"{verb}s {rest}"


def not_run(data: pd.DataFrame) -> list[tuple[int, int]]:
    """Block pairs between those of ``data`` that no configuration asked for: the blank cells."""
    there = set(zip(data["block_m"].astype(int), data["block_n"].astype(int)))
    sides = [sorted({pair[i] for pair in there}) for i in (0, 1)]
    return [(m, n) for m in sides[0] for n in sides[1] if (m, n) not in there]


def blanks(data: pd.DataFrame) -> str:
    """The blank cells, in a sentence."""
    pairs = [f"{m}{units.NBSP}×{units.NBSP}{n}" for m, n in not_run(data)]
    return f"Blank, because not run: {labels.join(pairs)}." if pairs else ""


def per_shape(bundle: Bundle, implementation: str, direction: str = "forward") -> list[tuple[AttentionShape, Row, Row]]:
    """The fastest and the slowest configuration of each shape on which several were timed."""
    rows = bundle.timings[bundle.timings["implementation"].eq(implementation)
                          & bundle.timings["direction"].eq(direction)]
    out = []
    for _, group in rows.groupby(["batch", "heads", "kv_heads", "nq", "nk", "head_dim", "dtype", "mask"]):
        shape = select.config(group.iloc[0]).shape
        known = frame(bundle, shape, implementation, direction).dropna(subset=["time"])
        if len(known) > 1:
            out.append((shape, known.iloc[0].to_dict(), known.iloc[-1].to_dict()))
    return out


def default(bundle: Bundle, shape: AttentionShape, implementation: str, direction: str = "forward") -> Row | None:
    """What an implementation ran with where nothing was asked for: its settings and unprofiled median.

    That is the configuration that callers get: the table shipped with the kernels chose it when ``bundle`` was
    recorded. None where the bundle has no such run.
    """
    wanted = RunConfig(implementation, shape, direction).config_id
    rows = bundle.timings[bundle.timings["config_id"].eq(wanted) & bundle.timings["median_ns"].gt(0)]
    if rows.empty:
        return None
    knobs = _knobs(list(rows["parameters"]))
    if not all(k in knobs for k in KNOBS):
        return None
    return {**{k: knobs[k] for k in KNOBS}, "time": float(rows["median_ns"].iloc[0]),
            "gpu": (bundle.profile.get("gpu") or {}).get("name"), "created": str(bundle.profile.get("created") or "")}


def beside_default(data: pd.DataFrame, shipped: dict[str, Any], source: str, created: str = "") -> str:
    """The fastest tuning beside the shipped configuration, which ``source`` ran; in a sentence or two."""
    known = data[data["time"].notna()]
    if known.empty:
        return ""
    best = known.iloc[0].to_dict()
    same = known[[all(row[k] == shipped[k] for k in KNOBS) for row in known.to_dict("records")]]
    older = shipped["created"] and created and shipped["created"] < created
    head = f"The kernel ships with {name(shipped)} for this shape"
    head += " (chosen before this suite was recorded)" if older else ""
    if len(same) and same.iloc[0]["config_id"] == best["config_id"]:
        return f"{head}, which is the fastest here."
    ns, where = (float(same.iloc[0]["time"]), "here") if len(same) else (shipped["time"], f"in {source}")
    ratio = ns / best["time"]
    share = f"{units.percent(100 * abs(ratio - 1), 2)} {'more' if ratio >= 1 else 'less'}"
    said = f"{head}: {units.duration(ns)} {where}, {share} than the fastest here"
    return f"{said}." if len(same) else f"{said}; this suite did not run it, so two runs are compared."


def block_pairs(bundle: Bundle, shape: AttentionShape, implementation: str = "flash2",
                direction: str = "forward") -> pd.DataFrame:
    """The four block pairs that an article compares, fastest warps and stages each, beside its A100 values.

    here, published: ns; the ratios are to the fastest of the four in the same column; here_memory, published_memory:
    bytes. The A100 columns are of N 2048, D 64: set the ratios side by side, not the times.
    """
    data = frame(bundle, shape, implementation, direction)
    out = []
    for (m, n), (published, memory) in PUBLISHED.items():
        rows = data[data["block_m"].eq(m) & data["block_n"].eq(n)].dropna(subset=["time"])
        one = rows.iloc[0].to_dict() if len(rows) else {"time": None, "peak_memory": None}
        out.append({"block_m": m, "block_n": n, "here": one["time"], "here_memory": one["peak_memory"],
                    "published": published, "published_memory": memory})
    pairs = pd.DataFrame(out).astype({"here": "Float64", "here_memory": "Float64"})
    return pairs.assign(here_ratio=pairs["here"] / pairs["here"].min(),
                        published_ratio=pairs["published"] / pairs["published"].min())


def pairs_sentence(pairs: pd.DataFrame) -> str:
    """Which pair wins there and here, and whether memory depends on the block here."""
    known = pairs.dropna(subset=["here"])
    if known.empty:
        return ""
    there, here = (frame.loc[frame[c].astype(float).idxmin()] for frame, c in ((pairs, "published"), (known, "here")))
    both = [f"{int(r['block_m'])}{units.NBSP}×{units.NBSP}{int(r['block_n'])}" for r in (there, here)]
    said = (f"{both[0]} is the fastest of the four there and here." if both[0] == both[1] else
            f"The article's fastest is {both[0]}, here it is {both[1]}.")
    memory = known["here_memory"].dropna()
    grows = (f" Its memory grows with the block, {units.nbytes(pairs['published_memory'].min(), 2)} to "
             f"{units.nbytes(pairs['published_memory'].max(), 2)}")
    if memory.empty:
        return f"{said}{grows}; Q, K, V, O and LSE do not, and no peak was recorded here."
    if memory.max() == memory.min():
        return (f"{said}{grows}; here every pair allocates {units.nbytes(memory.iloc[0])}, for Q, K, V, O and LSE do "
                "not depend on the block.")
    return said
