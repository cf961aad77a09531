"""Results kept within a bound of bytes: each computed once though several visitors ask, the least recently used go."""

from __future__ import annotations

import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
OBJECTS = 4           # bytes that Python's objects take for one byte of their pickle, about
UNKNOWN = 10_000_000  # bytes reckoned for what cannot be pickled


@dataclass
class _Entry:
    """One result. `lock` is held while it is computed."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    done: bool = False
    value: Any = None
    bytes: int = 0
    used: float = 0.0


class Kept:
    """most_bytes: of all results together; idle_seconds: how long one is kept without being asked for."""

    def __init__(self, most_bytes: int, idle_seconds: float, size: Callable[[Any], int] | None = None,
                 clock: Callable[[], float] = time.monotonic):
        self._lock, self._most, self._idle, self._clock = threading.Lock(), most_bytes, idle_seconds, clock
        self._size = size or weight
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result under `key`; what `compute` raises is raised and not kept. One that is larger than the bound is
        given out and not kept."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.used = self._clock()
            self._entries.move_to_end(key)
        with entry.lock:
            if not entry.done:
                try:
                    entry.value = compute()
                    entry.bytes, entry.done = self._size(entry.value), True
                finally:
                    if not entry.done:
                        self._forget(key, entry)
            value = entry.value
        self._bound()
        return value

    def _forget(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _bound(self) -> None:
        with self._lock:
            total, oldest = sum(entry.bytes for entry in self._entries.values()), self._clock() - self._idle
            for key, entry in list(self._entries.items()):
                if entry.done and (total > self._most or entry.used < oldest):
                    total -= entry.bytes
                    del self._entries[key]


def weight(value: Any) -> int:
    """Bytes that a result takes in memory: what it says of itself, else reckoned from its pickle."""
    if isinstance(said := getattr(value, "nbytes", None), int):
        return said
    try:
        return OBJECTS * len(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # whatever an object may raise that does not like to be pickled
        return UNKNOWN
