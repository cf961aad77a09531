"""Reports, exports and bundles → ``Bundle``. Content decides what a file is; each is read in a process of its own.

Read and checked on real files: binary reports (Volta, Ampere, Hopper; ncu 2022 to 2024), and of exports in public a CSV
of the details page (Turing), rows of one on Blackwell, text pages, and summaries as text and CSV. Other shapes of
exports were made by hand; what no real file could be had of is listed in ``unverified``, and said in a bundle's notes.

Neither a report nor an export carries a checksum. What a file says more than once must agree (``agree``, ``spelling``),
and its frame must be whole; all damage that breaks either is refused or noted. What the formats make impossible to
detect: a changed digit inside a value (in a report: a changed bit of a value that stays in order with its least, mean
and largest), a changed letter in a kernel's name, a range's or one that nothing uses, an export cut exactly between
two launches (or, of one launch, between two lines), and a row repeated in a table whose launches have no number.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.errors import BadInput
from profiler.parse import child, scratch, sniff
from profiler.parse.child import Limits, Progress

if TYPE_CHECKING:
    import pandas as pd

    from profiler.bundle import Bundle

__all__ = ["Limits", "load", "load_bytes", "load_many"]


def load(path: Path | str, name: str | None = None, *, limits: Limits | None = None,
         progress: Progress | None = None) -> Bundle:
    """The bundle in ``path``: a bundle's folder, the same zipped, a report, or a CSV or text export of one.

    name: how to call it (default: the file's name). progress(done, total): launches of a report, or lines of
    an export, read so far.
    Raises UnsupportedFile, DamagedFile, NoLaunches, NewerSchema or CountersNotPermitted; nothing is written outside
    temp.
    """
    found = _load(Path(path), name, limits, progress)
    if len(found) > 1:
        raise BadInput(f"{clean(name or Path(path).name)} holds {len(found)} reports: "
                       f"{', '.join(one.name for one in found[:6])}.",
                       remedy="Open them together (load_many, or several files on the command line), or unpack it.")
    return found[0]


def load_many(paths: Iterable[Path | str], *, limits: Limits | None = None) -> list[Bundle]:
    """The bundles of all paths, in order, all members of a zip of reports; names that come twice are numbered apart."""
    return _apart([one for path in paths for one in _load(Path(path), None, limits, None)])


def load_bytes(name: str, data: bytes, *, limits: Limits | None = None, progress: Progress | None = None) -> Bundle:
    """``load`` for a file that is in memory, such as an upload. ``name`` is never used as a path."""
    folder = Path(tempfile.mkdtemp(prefix=scratch.prefix("read")))
    try:
        source = folder / "upload"
        source.write_bytes(data)
        return load(source, name, limits=limits, progress=progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Reread:
    """Every raw metric of one launch of a large report, of which ``load`` read only those that something uses. The file
    must still lie where it was."""

    def __init__(self, path: Path, name: str, limits: Limits):
        self.path, self.name, self.limits = path, name, limits

    def __call__(self, launch: int) -> pd.DataFrame:
        from profiler import bundle as bundles

        if not self.path.is_file():
            raise BadInput(f"{self.name}: the file is no longer there, so its other metrics cannot be read.",
                           remedy="Add it again.")
        with tempfile.TemporaryDirectory(prefix=scratch.prefix("read")) as folder:
            found = child.run(self.path, self.name, Path(folder), self.limits, launch=launch)
            every = bundles.read(found[0]).metrics
        every["launch"] = launch
        return every.astype({"launch": "Int64"})


def clean(name: str) -> str:
    """A name for display: no folders, no control characters, at most 160 characters."""
    kept = "".join(char for char in name.replace("\\", "/").rsplit("/", 1)[-1] if char.isprintable())
    return kept[-160:] or "unnamed"


def _load(path: Path, name: str | None, limits: Limits | None, progress: Progress | None) -> list[Bundle]:
    from profiler import bundle as bundles  # pandas: not in the worker before it has said how far it is

    name = clean(name or path.absolute().name)
    try:
        if path.is_dir():
            return [bundles.read(path).renamed(name)]
        if not path.exists():
            raise BadInput(f"{name}: no such file.", remedy="Give the path of a report, an export or a bundle.")
        if not path.is_file():
            raise BadInput(f"{name}: a pipe, a socket or a device, where a file was expected.",
                           remedy="Write what it gives to a file, and open that.")
        with open(path, "rb") as stream:  # refuse what is plainly something else without a process
            sniff.form(stream.read(4096), path.stat().st_size, name)
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror}).",
                       remedy="Check who may read it, and that it is still there.") from error
    path, limits = path.resolve(), limits or Limits()
    folder = tempfile.TemporaryDirectory(prefix=scratch.prefix("read"), ignore_cleanup_errors=True)
    try:
        found = [bundles.read(one) for one in child.run(path, name, Path(folder.name), limits, progress)]
        large = [one.on_disk for one in found if one.on_disk]
    except BaseException:
        folder.cleanup()
        raise
    for table in large:
        table.folder = folder  # a table that stays on disk keeps its folder as long as the bundle lives
    if not large:
        folder.cleanup()
    if len(found) == 1:
        again = Reread(path, name, limits) if "metrics_left_out" in found[0].profile else None
        return [replace(found[0], reread=again).renamed(name.removesuffix(".zip"))]
    return [one.renamed(f"{name.removesuffix('.zip')}: {one.profile['file']['name']}") for one in found]


def _apart(loaded: list[Bundle]) -> list[Bundle]:
    taken: set[str] = set()
    apart = []
    for one in loaded:
        name, number = one.name, 2
        while name in taken:
            name, number = f"{one.name} ({number})", number + 1
        taken.add(name)
        apart.append(one if name == one.name else one.renamed(name))
    return apart
