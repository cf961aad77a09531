"""How long a run takes: seconds a configuration of both passes, as they go and as an earlier run on this GPU took."""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

from profiler.collect import lock

COUNTERS, TIMING = "counters", "timing"
START, LAUNCHES = "start", "launches"
# Where this GPU has no earlier run: what an evidence suite took on an H200, 40 s to count 33 configurations of 82
# launches in 8 passes and 37 s to time 132, both with the start of a process. Of other metric sets nothing is known,
# since their replay passes differ.
TYPICAL_TIMING = {TIMING: 0.2, START: 7.0}
TYPICAL = {"evidence": {COUNTERS: 1.0, LAUNCHES: 2.5, "passes": 8.0, **TYPICAL_TIMING}}
TYPICAL_SOURCE = "a recorded run on an H200"


def counters_of(implementation: str) -> str:
    """The kind of its counters: a function that is not ours may have many launches, so it has a pace of its own."""
    return f"{COUNTERS} of {implementation}" if ":" in implementation else COUNTERS


def pass_of(kind: str) -> str:
    return kind.partition(" ")[0]


@dataclass
class Pace:
    """Counts what was done in this process: by kind (TIMING, or as ``counters_of`` says), configurations and seconds.

    known: what an earlier run took a configuration by kind, START: seconds before the first one of a pass, LAUNCHES: of
    a configuration on average."""

    left: dict[str, int]
    known: dict[str, float] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)  # seconds, by pass
    _mark: float = field(default_factory=time.monotonic)

    def started(self, kind: str) -> None:
        """The first configuration of a pass begins: what came before it is no configuration's time."""
        if pass_of(kind) not in self.starts:
            now = time.monotonic()
            self.starts[pass_of(kind)], self._mark = now - self._mark, now

    def took(self, kind: str, count: int, *, measured: bool = True) -> None:
        """``count`` configurations of a kind have ended; not measured: taken from an unfinished run."""
        now = time.monotonic()
        self.left[kind] = self.left.get(kind, 0) - count
        if measured:
            self.starts.setdefault(pass_of(kind), 0.0)
            self.done[kind] = self.done.get(kind, 0) + count
            self.seconds[kind] = self.seconds.get(kind, 0.0) + now - self._mark
        self._mark = now

    def each(self, kind: str) -> float | None:
        """Seconds a configuration: this run's, else an earlier one's; None where neither is known."""
        if self.done.get(kind):
            return self.seconds[kind] / self.done[kind]
        return self.known.get(kind, self.known.get(pass_of(kind)))

    def _open(self) -> list[tuple[str, int, float | None]]:
        """(kind, configurations left, seconds each) where some are left."""
        return [(kind, count, self.each(kind)) for kind, count in self.left.items() if count > 0]

    def _to_start(self) -> int:
        """Passes that have not begun."""
        return len({pass_of(kind) for kind, _, each in self._open() if each is not None} - set(self.starts))

    def remaining_s(self) -> float | None:
        """Seconds left; a kind of which nothing is known is left out, and None if that is all of them."""
        parts = [count * each for _, count, each in self._open() if each is not None]
        if not parts:
            return None if self._open() else 0.0
        return sum(parts) + self._to_start() * self.known.get(START, 0.0)

    def estimate(self) -> str:
        """" (33 × 1.0 s of counters, 132 × 0.2 s of timing, 2 × 7 s to start)", as far as known."""
        parts = [f"{count} × {each:.1f} s of {kind}{self._up_to(kind)}" for kind, count, each in self._open()
                 if each is not None]
        if parts and self._to_start() and START in self.known:
            parts.append(f"{self._to_start()} × {self.known[START]:.0f} s to start")
        unknown = [f"{kind} not known" for kind, _, each in self._open() if each is None]
        return f" ({', '.join([*parts, *unknown])})" if parts else ""

    def _up_to(self, kind: str) -> str:
        """How many launches the estimate of a function that never ran here is for."""
        if kind in self.known or self.done.get(kind) or LAUNCHES not in self.known or kind == TIMING:
            return ""
        return f" for up to {math.ceil(self.known[LAUNCHES])} launches each"

    def took_words(self) -> str:
        """"timing: 132 in 46 s (0.3 s each)" for each kind that was measured here, a pass's start in the whole only."""
        starts = dict(self.starts)
        return ", ".join(
            f"{kind}: {count} in {self.seconds[kind] + starts.pop(pass_of(kind), 0.0):.0f} s "
            f"({self.seconds[kind] / count:.1f} s each)"
            for kind, count in self.done.items() if count
        )

    def words(self, kind: str) -> str:
        """", 2.1 s each, about 3 min left", as far as known."""
        each, remaining = self.each(kind), self.remaining_s()
        unknown = dict.fromkeys(pass_of(name) for name, _, seconds in self._open() if seconds is None)
        beside = f" and the {' and '.join(unknown)} pass" if unknown else ""
        return (f", {each:.1f} s each" if each is not None else "") + (
            f", about {duration(remaining)}{beside} left" if remaining else ""
        )


def duration(seconds: float) -> str:
    """As people say it: 40 s, 3 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _file() -> Any:
    return lock.cache_folder() / "pace.json"


def recall(gpu: str, metric_set: str) -> dict[str, float]:
    """What an earlier run on this GPU took: Pace's ``known``, and "passes" of replay; {} if there was none."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(_file().read_text(encoding="utf-8")).get(gpu, {})
        ending = f" [{metric_set}]"
        kept = {key: key.removesuffix(ending) for key in found if key.endswith(ending) or key in (TIMING, START)}
        return {name: float(found[key]) for key, name in kept.items()}
    return {}


def expected(gpu: str, metric_set: str, gpus: int = 1) -> tuple[dict[str, float], str]:
    """(Pace's ``known``, whose it is): an earlier run's on this GPU, else the recorded one's. gpus: how many share the
    configurations; each of them starts its own processes."""
    known, source = recall(gpu, metric_set), "an earlier run on this GPU"
    if not known:
        known, source = dict(TYPICAL.get(metric_set, TYPICAL_TIMING)), TYPICAL_SOURCE
    if gpus > 1:
        shared = {kind for kind in known if pass_of(kind) in (COUNTERS, TIMING)}
        known = {name: value / gpus if name in shared else value for name, value in known.items()}
        source += f", for {gpus} GPUs at once"
    return known, source


def remember(gpu: str, metric_set: str, pace: Pace, passes: int, launches: float | None = None) -> None:
    """Keep this run's pace for the next estimate; not being able to is no failure. launches: of a configuration of
    ours, on average."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        path = _file()
        everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        mine = everything.setdefault(gpu, {})
        for kind, count in pace.done.items():
            if count:
                mine[kind if kind == TIMING else f"{kind} [{metric_set}]"] = pace.seconds[kind] / count
        if any(pace.starts.values()):
            mine[START] = max(pace.starts.values())
        if passes:
            mine[f"passes [{metric_set}]"] = passes
        if launches:
            mine[f"{LAUNCHES} [{metric_set}]"] = launches
        beside = path.with_suffix(".writing")
        beside.write_text(json.dumps(everything), encoding="utf-8")
        beside.replace(path)
