"""How long a run takes: seconds a configuration of both passes, as they go and as an earlier run on this GPU took."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from profiler.collect import lock

COUNTERS, TIMING = "counters", "timing"
# Where this GPU has no earlier run: seconds a configuration on an H200, from the 297 s of an evidence suite that
# profiled all of its configurations. Of other metric sets nothing is known, since their replay passes differ.
TYPICAL = {"evidence": {COUNTERS: 1.7, TIMING: 0.4, "passes": 8.0}}
TYPICAL_TIMING = {TIMING: 0.4}
TYPICAL_SOURCE = "a recorded run on an H200"


@dataclass
class Pace:
    """Counts what was done in this process: per pass, configurations and seconds. ``known``: an earlier run's pace."""

    left: dict[str, int]
    known: dict[str, float] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _mark: float = field(default_factory=time.monotonic)

    def took(self, kind: str, count: int, *, measured: bool = True) -> None:
        """``count`` configurations of a pass have ended; not measured: taken from an unfinished run."""
        now = time.monotonic()
        self.left[kind] = self.left.get(kind, 0) - count
        if measured:
            self.done[kind] = self.done.get(kind, 0) + count
            self.seconds[kind] = self.seconds.get(kind, 0.0) + now - self._mark
        self._mark = now

    def each(self, kind: str) -> float | None:
        """Seconds a configuration: this run's, else an earlier one's; None where neither is known."""
        if self.done.get(kind):
            return self.seconds[kind] / self.done[kind]
        return self.known.get(kind)

    def remaining_s(self) -> float | None:
        """Seconds left; a pass of which nothing is known is left out, and None if that is all of them."""
        parts = [count * each for kind, count in self.left.items() if count and (each := self.each(kind)) is not None]
        return sum(parts) if parts or not any(self.left.values()) else None

    def estimate(self) -> str:
        """": 33 counters of 1.5 s, 132 timings of 0.4 s", as far as known."""
        parts = [f"{count} × {each:.1f} s of {kind}" for kind, count in self.left.items()
                 if count and (each := self.each(kind)) is not None]
        unknown = [kind for kind, count in self.left.items() if count and self.each(kind) is None]
        return f" ({', '.join([*parts, *(f'{kind} not known' for kind in unknown)])})" if parts else ""

    def took_words(self) -> str:
        """"132 timings in 46 s (0.3 s each)" for each pass that was measured here."""
        return ", ".join(
            f"{kind}: {count} in {self.seconds[kind]:.0f} s ({self.seconds[kind] / count:.1f} s each)"
            for kind, count in self.done.items() if count
        )

    def words(self, kind: str) -> str:
        """", 2.1 s each, about 3 min left", as far as known."""
        each, remaining = self.each(kind), self.remaining_s()
        unknown = [name for name, count in self.left.items() if count > 0 and self.each(name) is None]
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
    """What an earlier run on this GPU took: seconds a configuration by pass, and "passes" of replay; {} if none."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        found = json.loads(_file().read_text(encoding="utf-8")).get(gpu, {})
        kept = {COUNTERS: f"{COUNTERS} {metric_set}", TIMING: TIMING, "passes": f"passes {metric_set}"}
        return {name: float(found[key]) for name, key in kept.items() if key in found}
    return {}


def remember(gpu: str, metric_set: str, pace: Pace, passes: int) -> None:
    """Keep this run's pace for the next estimate; not being able to is no failure."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        path = _file()
        everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        mine = everything.setdefault(gpu, {})
        for kind, key in ((COUNTERS, f"{COUNTERS} {metric_set}"), (TIMING, TIMING)):
            if pace.done.get(kind):
                mine[key] = pace.seconds[kind] / pace.done[kind]
        if passes:
            mine[f"passes {metric_set}"] = passes
        beside = path.with_suffix(".writing")
        beside.write_text(json.dumps(everything), encoding="utf-8")
        beside.replace(path)
