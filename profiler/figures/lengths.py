"""The lengths that an implementation ran at, the rest of the shape fixed: its batch, or the tokens of its batch."""

from __future__ import annotations

import json
from dataclasses import replace

from profiler.bundle import Bundle
from profiler.figures import labels, select, units
from profiler.spec import AttentionShape


def at(shape: AttentionShape, n: int) -> AttentionShape:
    """``shape`` at length ``n``: of queries and keys, or of keys alone where it has fewer queries."""
    return replace(shape, nq=n if shape.nq == shape.nk else shape.nq, nk=n)


def tokens(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> int | None:
    """The tokens of a batch where the source keeps these at every length, so that the batch shrinks as N grows.

    None where the batch of ``shape`` was run at several lengths, or no other batch has as many tokens.
    """
    def find() -> int | None:
        if shape.nq != shape.nk:
            return None
        ran = {(row["batch"], row["nq"]) for frame in (bundle.timings, bundle.launches)
               for row in select.matching_records(frame, shape, None, direction, ("batch", "nq", "nk"))
               if row["nq"] == row["nk"]}
        same = [n for batch, n in ran if batch * n == shape.batch * shape.nq]
        return shape.batch * shape.nq if sum(batch == shape.batch for batch, _ in ran) < 2 <= len(same) else None

    return select.held(bundle, ("tokens", shape, direction), find)


def configurations(bundle: Bundle, shape: AttentionShape, name: str, direction: str,
                   counted: bool) -> list[list[select.Row]]:
    """The rows of each length, of the fastest tuning: of the launches if ``counted``, else of the timings."""
    def find() -> list[list[select.Row]]:
        fixed = tokens(bundle, shape, direction)
        free = ("nk",) if shape.nq != shape.nk else ("nq", "nk", "batch") if fixed else ("nq", "nk")
        lengths: dict[int, list[select.Row]] = {}
        frame = bundle.launches if counted else bundle.timings
        for row in select.matching_records(frame, shape, name, direction, free):
            if shape.nq != shape.nk or (row["nq"] == row["nk"] and fixed in (None, row["batch"] * row["nq"])):
                lengths.setdefault(row["nk"], []).append(row)
        return [select.best_records(bundle, lengths[n]) for n in sorted(lengths)]

    return select.held(bundle, ("lengths", shape, name, direction, counted), find)


def packed(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> str:
    """"packed sequences of 117 to 8,192 tokens" where all that was timed on the shape are of several lengths."""
    rows = select.matching_records(bundle.timings, shape, None, direction)
    some = [{nq for nq, _ in select.config(row).lengths} for row in rows]
    if not some or any(len(one) < 2 for one in some):
        return ""
    every = set().union(*some)
    return f"packed sequences of {units.whole(min(every))} to {units.whole(max(every))} tokens"


def words(bundle: Bundle, shape: AttentionShape, direction: str = "forward") -> str:
    """What is the same at every length, in words: the batch, or the tokens of a batch. A training step is called so,
    and of packed sequences the lengths are said."""
    said = labels.call(shape, direction, lengths=False)
    rows = select.matching_records(bundle.timings, shape, None, direction)
    if rows and all(json.loads(row["parameters"] or "{}").get("training") for row in rows):
        said = said.replace("backward pass", "training step, forward and backward", 1)
    if lengths := packed(bundle, shape, direction):
        said += f", {lengths}"
    fixed = tokens(bundle, shape, direction)
    return said.replace(f"batch {shape.batch}", f"batch of {units.whole(fixed)} tokens", 1) if fixed else said
