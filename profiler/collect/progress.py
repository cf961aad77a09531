"""What a run says while it goes: each configuration as it ends, the time that took, and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.collect import pace, watch, worker
from profiler.spec import RunConfig


class Reporter:
    """Turns what the passes do into progress(text, done, total), with the time each took and what is left."""

    def __init__(
        self,
        progress: Callable[[str, int, int], None],
        configs: int,
        *,
        counters: bool,
        counted: Sequence[RunConfig] | None = None,
        known: Mapping[str, float] | None = None,
        source: str = "an earlier run on this GPU",
    ):
        """configs: how many. counted: those that go under ncu, where not all do or a function is not ours; source:
        whose pace ``known`` is."""
        self._progress, self._known, self._source = progress, dict(known or {}), source
        under_ncu: Mapping[str, int] = {pace.COUNTERS: configs}
        if counted is not None:
            under_ncu = Counter(pace.counters_of(config.implementation) for config in counted)
        left = {**(under_ncu if counters else {}), pace.TIMING: configs}
        self._total, self._done = sum(left.values()), 0
        self.pace = pace.Pace(left, self._known)
        self.beyond: Callable[[], int] = lambda: 0  # those that have ended elsewhere and are not kept yet

    def begin(self) -> None:
        """Say what is known of a run's length before it starts; nothing where no earlier run was measured."""
        remaining = self.pace.remaining_s()
        if remaining is not None and self._total:
            passes = int(self._known.get("passes", 0)) if set(self.pace.left) - {pace.TIMING} else 0
            replays = f", {passes} replay passes a launch" if passes else ""
            each = self.pace.estimate()
            text = f"about {pace.duration(remaining)} by {self._source}{each}{replays}"
            self._progress(text, self._done, self._total)

    def end(self, passes: int | None) -> None:
        """What it took in all, for whoever waited."""
        took = self.pace.took_words()
        if took:
            self.say(took + (f", {passes} replay passes a launch" if passes else ""))

    def say(self, text: str) -> None:
        """Something that ends no configuration."""
        self._progress(text, self._done + self.beyond(), self._total)

    def done(self, kind: str, count: int, text: str, *, measured: bool = True) -> None:
        """``count`` configurations of ``kind`` have ended."""
        self._done += count
        self.pace.took(kind, count, measured=measured)
        self.say(f"{pace.pass_of(kind)}: {text}{self.pace.words(kind)}")

    def elsewhere(self, passes: int, text: str) -> None:
        """``passes`` of configurations have ended in other processes: how long they took says nothing of those left."""
        self._done += passes
        self.say(text)

    def counted(self, configs: Iterable[RunConfig], text: str, *, measured: bool = True) -> None:
        """The counters of ``configs`` are there, or will never be."""
        for kind, count in Counter(pace.counters_of(config.implementation) for config in configs).items():
            self.done(kind, count, text, measured=measured)


def culprit(records: Sequence[Mapping[str, Any]], done: str) -> str | None:
    """The configuration that was started last and has no result: the one a process died in."""
    started = [r["config_id"] for r in records if r.get("record") == "start"]
    ended = {r.get("config_id") or r.get("row", {}).get("config_id") for r in records if r.get("record") == done}
    return started[-1] if started and started[-1] not in ended else None


class Follower:
    """Watches a record file grow and reports each of ``configs`` as it ends, except those that are in ``told``."""

    def __init__(self, path: Path, kind: str, reporter: Reporter, told: set[str], configs: Sequence[RunConfig]):
        self._path, self._kind, self._reporter, self._told = path, kind, reporter, told
        self._configs = {config.config_id: config for config in configs}
        self._size, self._kernel = -1, ""
        self._launches = self._before = 0
        self._starts = len(worker.of(worker.read_records(path), "start"))  # what an unfinished run left there
        self._began = False

    def kernel(self, seen: watch.Seen) -> None:
        """The kernel profiled last, and the replay passes that one launch took so far."""
        self._kernel = seen.kernel + (f", {seen.passes} replay passes a launch" if seen.passes else "")
        self._launches = seen.launches

    def moved(self) -> int:
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size != self._size:
            self._size = size
            records = worker.read_records(self._path)
            current = culprit(records, self._kind)
            ended = [record.get("config_id") or record["row"]["config_id"] for record in worker.of(records, self._kind)]
            if not self._began and len(worker.of(records, "start")) > self._starts:
                self._began = True
                self._reporter.pace.started(self._kind)
            new = [config_id for config_id in ended if config_id not in self._told]
            if new:
                launches, self._before = self._launches - self._before, self._launches
                text = new[-1] + (f", {launches} launches" if launches else "")
                text += f", kernel {self._kernel}" if self._kernel else ""
                text += f"; now {current}" if current else ""
                self._tell([self._configs[name] for name in new if name in self._configs], text)
                self._told.update(new)
        return size

    def _tell(self, configs: Sequence[RunConfig], text: str) -> None:
        if self._kind == pace.TIMING:
            self._reporter.done(pace.TIMING, len(configs), text)
        else:
            self._reporter.counted(configs, text)
