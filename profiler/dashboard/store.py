"""What is loaded, and the app's only cache.

Sources are the bundles found in the data folders (shared by all visitors) and the files this visitor added. Added
files belong to a shelf, named by a random 128-bit token in the link: a reload or a page change keeps them, and nobody
without the link sees them. Shelves are forgotten after a day without use. Everything is bounded in bytes: added files,
recorded tables and what was derived from either; when room is short, the least recently used goes first.

The data folders are `data/` beside `app.py`, or those named in the environment variable FLASHSCOPE_DATA (separated
as in PATH). Every folder with a profile.json in them is a source; `reports/` in them holds sample reports to try.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import streamlit as st

from profiler.bundle import PROFILE, Bundle
from profiler.dashboard import state, text
from profiler.dashboard.kept import Kept
from profiler.errors import BadInput, FlashScopeError
from profiler.roles import assigned
from profiler.roles import call as parse_call

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Progress = Callable[[int, int], Any]  # launches read, of how many
ROOT = Path(__file__).resolve().parents[2]
IDLE_SECONDS = 24 * 3600
MOST_BYTES = 2_000_000_000         # of added tables in memory, all visitors together
MOST_BYTES_A_SHELF = 1_000_000_000
MOST_DISK_BYTES = 8_000_000_000    # of added files that are read launch by launch, all visitors together
MOST_RECORDED_BYTES = 1_000_000_000
MOST_DERIVED_BYTES = 500_000_000   # of figures and numbers made from any source
ROW_BYTES = 7_000                  # of what evidence gathers of a launch or timing, kept with its bundle
MOST_FILES_A_SHELF = 50
TOKEN = re.compile(r"[A-Za-z0-9_-]{22}")  # 128 bits in base64
TOKEN_PARAMETER = "uploads"
SOURCE_PARAMETER = "source"
ROLES_PARAMETER, CALL_PARAMETER = "roles", "call"  # each followed by "-" and the source's key
SUITES = ("evidence", "quick", "scaling", "ladder", "backward", "decode", "tuning", "peers", "shapes", "ablation",
          "options", "memory")  # the order in which sources stand; any other after them
LOCAL = ("localhost", "127.0.0.1", "::1")
SAMPLES = (".ncu-rep", ".ncu-repz", ".csv", ".zip")
_parsing = threading.BoundedSemaphore(2)


@dataclass(frozen=True)
class Source:
    """One thing to look at. key: its name in the link. version: changes when the content does."""

    key: str
    label: str
    version: str
    origin: str  # "recorded" or "added"
    path: Path | None = None
    bundle: Bundle | None = field(default=None, repr=False, compare=False)
    bytes: int = 0
    disk_bytes: int = 0
    seconds: float = 0.0  # that reading an added file took
    suite: str = ""  # what was run, where it says so
    roles: tuple[str, str, str] | None = None  # what its launches do and in which call, as the link says; own version


@dataclass
class Shelf:
    """The files added under one token. `used`: monotonic seconds of the last look."""

    used: float
    items: dict[str, Source] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items.values())

    @property
    def disk_bytes(self) -> int:
        return sum(item.disk_bytes for item in self.items.values())


class Shelves:
    """All shelves of this server. Every access takes the lock, drops what expired and keeps within the memory bound."""

    def __init__(self, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic):
        self._lock, self._most, self._clock = threading.Lock(), most_bytes, clock
        self._shelves: dict[str, Shelf] = {}

    def items(self, token: str | None) -> dict[str, Source]:
        """What lies on the shelf `token`; looking keeps it alive. An unknown or expired token has nothing."""
        with self._lock:
            shelf = self._alive(token)
            return dict(shelf.items) if shelf else {}

    def knows(self, token: str | None) -> bool:
        with self._lock:
            return self._alive(token) is not None

    def add(self, token: str | None, source: Source) -> str:
        """Put `source` on the shelf `token`, or on a new one if that is unknown; the token that holds it now."""
        with self._lock:
            shelf = self._alive(token)
            if token is None or shelf is None:
                token, shelf = secrets.token_urlsafe(16), Shelf(self._clock())
            others = shelf.bytes - (shelf.items[source.key].bytes if source.key in shelf.items else 0)
            if source.bytes + others > min(MOST_BYTES_A_SHELF, self._most) or len(shelf.items) >= MOST_FILES_A_SHELF:
                raise BadInput(text.SHELF_FULL.format(name=source.label), remedy=text.SHELF_FULL_REMEDY)
            self._shelves[token] = shelf
            shelf.items[source.key] = source
            for old in sorted(self._shelves, key=lambda name: self._shelves[name].used):
                full = sum(s.bytes for s in self._shelves.values()) > self._most
                if old != token and (full or sum(s.disk_bytes for s in self._shelves.values()) > MOST_DISK_BYTES):
                    self._drop(old)
            return token

    def remove(self, token: str | None, key: str) -> None:
        with self._lock:
            shelf = self._alive(token)
            if shelf and shelf.items.pop(key, None):
                gc.collect()

    def _drop(self, token: str) -> None:
        del self._shelves[token]
        gc.collect()  # a bundle and what evidence gathered of it hold each other

    def _alive(self, token: str | None) -> Shelf | None:
        now = self._clock()
        for name in [name for name, shelf in self._shelves.items() if now - shelf.used > IDLE_SECONDS]:
            self._drop(name)
        shelf = self._shelves.get(token) if token and TOKEN.fullmatch(token) else None
        if shelf:
            shelf.used = now
        return shelf


@st.cache_resource(show_spinner=False)
def shelves() -> Shelves:
    return Shelves()


def data_folders() -> list[Path]:
    named = os.environ.get("FLASHSCOPE_DATA")
    return [Path(part) for part in named.split(os.pathsep) if part] if named else [ROOT / "data"]


def recorded() -> dict[str, Source]:
    """The bundles of the data folders, the suites that most pages are about first; listing reads no table."""
    found: dict[str, Source] = {}
    for folder in data_folders():
        for here, profile, version in sorted(_bundles(folder), key=lambda one: Path(one[1])):
            name = os.path.basename(here)
            key = name if name not in found else f"{name}-{len(found)}"
            found[key] = Source(key, name, version, "recorded", Path(here), suite=_suite(profile, version))
    return dict(sorted(found.items(), key=lambda item: SUITES.index(item[1].suite) if item[1].suite in SUITES
                       else len(SUITES)))


def _bundles(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Path, profile and version of each bundle in ``folder``. Every click asks: a walk takes a tenth of globbing."""
    for here, _, names in os.walk(folder):
        if PROFILE in names:
            files = [PROFILE, *sorted(name for name in names if name.endswith(".parquet"))]
            stats = [os.stat(os.path.join(here, name)) for name in files]
            yield (here, os.path.join(here, PROFILE),
                   "-".join(f"{one.st_mtime_ns:x}.{one.st_size:x}" for one in stats))


@lru_cache(maxsize=200)
def _suite(path: str, version: str) -> str:
    try:
        return str(json.loads(Path(path).read_text(encoding="utf-8")).get("suite") or "")
    except (OSError, ValueError, AttributeError):
        return ""  # opening it will say what is wrong


def local() -> bool:
    """Whether this visitor sits at this machine: only then may they write into its data folders or start a run.

    The server must listen on this machine alone, and the request must not have come by way of another one.
    """
    headers = st.context.headers
    host = urlsplit(f"//{headers.get('Host') or 'localhost'}").hostname
    forwarded = any(headers.get(name) for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"))
    return st.get_option("server.address") in LOCAL and host in LOCAL and not forwarded


def samples() -> list[Path]:
    """Reports in the data folders that a visitor may try."""
    found = [path for folder in data_folders() for path in sorted((folder / "reports").glob("*"))]
    return [path for path in found if path.suffix in SAMPLES]


def token() -> str | None:
    """The token of this visitor's shelf; said when a link names one that is gone."""
    return state.wish(TOKEN_PARAMETER)


def added() -> dict[str, Source]:
    return shelves().items(token())


def sources() -> dict[str, Source]:
    """Everything this visitor can look at: what they added first, then what is recorded."""
    return {key: _with_roles(source) for key, source in {**added(), **recorded()}.items()}


def _with_roles(source: Source) -> Source:
    """The source with the roles that the visitor gave its launches, which are part of the link."""
    roles, call = (state.wish(f"{name}-{source.key}") for name in (ROLES_PARAMETER, CALL_PARAMETER))
    if roles is None:
        return source
    state.use(f"{ROLES_PARAMETER}-{source.key}", roles)
    if call:
        try:
            parse_call(call)
            state.use(f"{CALL_PARAMETER}-{source.key}", call)
        except BadInput as problem:
            state.note(str(problem))
            call = None
    return replace(source, version=f"{source.version} {roles} {call}", roles=(roles, call or "", source.version))


def load(source: Source) -> Bundle:
    """The tables of a source. They are shared: read them, never change them."""
    if source.roles:
        roles, call, version = source.roles
        plain = replace(source, version=version, roles=None)
        return _kept()[0].get((source.key, source.version), lambda: assigned(load(plain), roles, call))
    if source.bundle is not None:
        return source.bundle

    def read() -> Bundle:
        from profiler import bundle

        return bundle.read(Path(str(source.path)))

    return _kept()[0].get((str(source.path), source.version), read)


@st.cache_resource(show_spinner=False)
def _kept() -> tuple[Kept, Kept]:
    """Recorded bundles, and what was derived from any."""
    return Kept(MOST_RECORDED_BYTES, IDLE_SECONDS, memory), Kept(MOST_DERIVED_BYTES, IDLE_SECONDS)


def derive(source: Source | tuple[Source, ...], function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """`function(bundle, ...)`, computed once for one source and arguments. Read the result, never change it.

    Of several sources, `function` gets the list of their bundles.
    """
    what = f"{function.__module__}.{function.__qualname__}"
    several = source if isinstance(source, tuple) else (source,)
    key = (*(f"{s.key} {s.label} {s.version}" for s in several), what, repr(arguments), repr(sorted(named.items())))
    return _kept()[1].get(key, lambda: function(
        [load(s) for s in several] if isinstance(source, tuple) else load(source), *arguments, **named))


def raw(source: Source, launch: int) -> pd.DataFrame:
    """Every raw metric of one launch, also of those that were left in the file."""
    return derive(source, _raw, launch)


def _raw(bundle: Bundle, launch: int) -> pd.DataFrame:
    return bundle.reread(launch) if bundle.reread else bundle.raw(launch)


def add_file(name: str, content: bytes, progress: Progress | None = None) -> Source:
    """Read an added file and put it on this visitor's shelf; raises FlashScopeError with what is wrong with it."""
    from profiler.parse import scratch

    suffix = re.sub(r"[^A-Za-z0-9.-]", "", Path(name).suffix)[:20]
    handle, path = tempfile.mkstemp(prefix=scratch.prefix("file"), suffix=suffix)
    again = None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        source = _add(name, Path(path), hashlib.sha256(content).hexdigest(), progress)
        again = source.bundle.reread if source.bundle else None
        return source
    finally:
        if again:  # the file is needed for as long as somebody may open one of its launches
            weakref.finalize(again, os.unlink, path)
        else:
            os.unlink(path)


def add_sample(path: Path, progress: Progress | None = None) -> Source:
    """Read a sample report of the data folders as if the visitor had added it."""
    return _add(path.name, path, hashlib.sha256(path.read_bytes()).hexdigest(), progress)


def _add(name: str, path: Path, digest: str, progress: Progress | None) -> Source:
    from profiler import parse

    began = time.monotonic()
    with _parsing:
        try:
            bundle = parse.load(path, name=name, progress=progress)
        except FlashScopeError:
            raise
        except OSError as error:
            raise BadInput(text.UNREADABLE.format(name=name, why=error.strerror or error)) from error
    key = f"added-{digest[:12]}"
    labels = {source.label for k, source in added().items() if k != key}
    label = next(n for n in (name, *(f"{name} ({i})" for i in range(2, 1000))) if n not in labels)
    source = Source(key, label, digest, "added", bundle=bundle.renamed(label), bytes=memory(bundle),
                    disk_bytes=on_disk(bundle, path), seconds=time.monotonic() - began)
    state.put(TOKEN_PARAMETER, shelves().add(token(), source))
    state.put(SOURCE_PARAMETER, key)
    return source


def remove(source: Source) -> None:
    """Forget an added file."""
    shelves().remove(token(), source.key)


def memory(bundle: Bundle) -> int:
    """Bytes that a bundle keeps in memory: its tables, and what evidence gathers of their rows."""
    tables = (bundle.launches, bundle.metrics, bundle.timings)
    gathered = ROW_BYTES * (len(bundle.launches) + len(bundle.timings))
    return gathered + int(sum(frame.memory_usage(deep=True).sum() for frame in tables))


def on_disk(bundle: Bundle, file: Path) -> int:
    """Bytes of files that stay with an added bundle, because they are too large for memory."""
    return sum(path.stat().st_size for path in ([bundle.on_disk.path] if bundle.on_disk else [])
               + ([file] if bundle.reread else []))
