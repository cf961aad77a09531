"""Damages the sample reports and exports at random and reads them: ``python -m tests.parse.mutate --count 10000
--seed 1``.

Every damaged file must end in a bundle or in a FlashScopeError, within the time limit, with nothing left in the
temporary folder; for the frame around the payloads of a report, and for text cut inside a number, never in a change
that is not said. How often a change was silent is counted and printed, by kind of damage.

What stays silent, and why the format hides it (all 39 silent ones of the first 3,659 files of seed 20261130 are such):
nothing in a file says what a digit was (8 of them), a letter in a kernel's name, a range's or one that nothing uses
(21), that a column of a damaged header was another (4), or that a row stood there which is gone, or comes twice where
launches have no number (6). What a file says twice is compared: profiler/parse/agree.py, spelling.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

from profiler import bundle as bundles
from profiler import parse
from profiler.bundle import Bundle
from profiler.errors import FlashScopeError
from profiler.parse import Limits, child
from tests.parse import warm

DATA = Path(__file__).resolve().parents[1] / "data"
LIMITS = Limits(seconds=30, total_seconds=60, memory_bytes=4 << 30)


def flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 8, 64))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_early(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(min(len(data), 400))] ^= 1 << chance.randrange(8)


def overwrite(data: bytearray, chance: random.Random) -> None:
    at, length = chance.randrange(len(data)), chance.randrange(1, 200)
    data[at:at + length] = chance.randbytes(min(length, len(data) - at))


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)):]


def append(data: bytearray, chance: random.Random) -> None:
    data += chance.randbytes(chance.randrange(1, 500))


def remove(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at:at + chance.randrange(1, 300)]


def repeat(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = data[at:at + chance.randrange(1, 300)]


def swap(data: bytearray, chance: random.Random) -> None:
    a, b, n = chance.randrange(len(data)), chance.randrange(len(data)), chance.randrange(1, 64)
    data[a:a + n], data[b:b + n] = data[b:b + n], data[a:a + n]


KINDS = (flip, flip, flip_early, overwrite, cut, append, remove, repeat, swap)


def sample_files(small: bool) -> list[Path]:
    """The samples; without the megabyte ones where the time is short."""
    files = sorted((DATA / "reports").glob("*.ncu-rep")) + sorted(
        p for p in (DATA / "exports").iterdir() if p.name != "expected.json" and "no_table" not in p.name
        and "not_ncu" not in p.name)
    return [p for p in files if p.stat().st_size < 200_000] if small else files


def damaged(seed: int, number: int, files: list[Path]) -> tuple[Path, str, bytes]:
    """The ``number``-th damaged file of ``seed``: which file, the kind of damage, its bytes."""
    chance = random.Random(f"{seed}/{number}")
    source, kind = chance.choice(files), chance.choice(KINDS)
    data = bytearray(source.read_bytes())
    kind(data, chance)
    return source, kind.__name__, bytes(data)


def one(seed: int, number: int, files: list[Path], clean: dict[Path, Bundle]) -> tuple[str, str, str]:
    """(form, damage, what came of it) of one damaged file. Any exception but a FlashScopeError is let out: a fault."""
    source, kind, data = damaged(seed, number, files)
    form = "report" if source.suffix == ".ncu-rep" else "text"
    start = time.monotonic()
    try:
        bundle = parse.load_bytes(source.name, data, limits=LIMITS)
        outcome = difference(clean[source], bundle)
        if outcome != "same":
            outcome += ", said" if set(bundle.notes) - set(clean[source].notes) else ", silent"
    except FlashScopeError as error:
        outcome = type(error).__name__
        if not error.what:
            raise AssertionError(f"seed {seed} number {number}: an error that says nothing") from error
    if time.monotonic() - start > LIMITS.total_seconds + 30:
        raise AssertionError(f"seed {seed} number {number}: {time.monotonic() - start:.0f} s, over the limit")
    return form, kind, outcome


def difference(clean: Bundle, damaged: Bundle) -> str:
    """What is not as in the clean bundle, the gravest first: launches, a column's value, one lost, text, raw
    metrics."""
    before, after = clean.launches.drop(columns="source"), damaged.launches.drop(columns="source")
    if len(before) != len(after):
        return "other number of launches"
    changed = [c for c in before if not before[c].equals(after[c])]
    numeric = [c for c in changed if str(before[c].dtype) in ("Float64", "Int64")]
    if any((before[c] != after[c]).fillna(False).any() for c in numeric):
        return "a value changed"
    if any((before[c].notna() & after[c].isna()).any() for c in numeric):
        return "a value lost"
    if numeric:
        return "a value appeared"
    if changed:
        return "a text changed"
    # raw metrics: names and values as texts; the order of a report's metrics is not part of them
    pairs = [frame.metrics.drop(columns="used_for").to_csv(index=False) for frame in (clean, damaged)]
    return "same" if pairs[0] == pairs[1] else "a raw metric changed"


def run(count: int, seed: int, small: bool = False, workers: int = 2, first: int = 0,
        log: TextIO | None = None) -> Counter[tuple[str, str, str]]:
    """Read ``count`` damaged files, from the ``first`` of ``seed``, and count what came of them. log: a line each."""
    files = sample_files(small)
    clean = {path: parse.load(path) for path in files}
    before = set(Path(tempfile.gettempdir()).glob("flashscope-read-*"))

    def do(number: int) -> tuple[str, str, str]:
        found = one(seed, number, files, clean)
        if log is not None:
            print(number, damaged(seed, number, files)[0].name, *found, sep="\t", file=log, flush=True)
        return found

    with ThreadPoolExecutor(workers) as pool:
        outcomes = Counter(pool.map(do, range(first, first + count)))
    left = set(Path(tempfile.gettempdir()).glob("flashscope-read-*")) - before
    if left:
        print(f"left in the temporary folder: {len(left)} (of this or another process)", file=sys.stderr)
    return outcomes


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=300)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--small", action="store_true", help="only the small samples")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--warm", action="store_true", help="fork the reading processes; see tests/parse/warm.py")
    options.add_argument("--log", type=argparse.FileType("w"), help="a line for each file: what came of it")
    given = options.parse_args()
    if given.warm:
        warm.preload()
        child.start = warm.Forked  # type: ignore[assignment]
        bundles.read = warm.read  # type: ignore[assignment]
    counted = run(given.count, given.seed, given.small, given.workers, given.first, given.log)
    for (form, kind, outcome), times in sorted(counted.items()):
        print(f"{form:7} {kind:12} {outcome:34} {times}")
