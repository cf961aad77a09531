"""Reports, exports and bundles → ``Bundle``. Content decides what a file is; each is read in a process of its own.

Read and checked on real files: binary reports (Volta, Ampere, Hopper; ncu 2022 to 2024). Made by hand in the shape that
ncu documents or public exports show: CSV long, wide and summary, text pages, ``.ncu-repz`` (zstd, which NVIDIA's reader
confirms). Not checked on a real file, and said so in the bundle's notes: ``.nsight-cuprof-report``, NVTX ranges and
summaries in text pages. Neither a report nor an export carries a checksum: a changed digit inside a value reads as
another measurement, and an export cut exactly between two lines as a shorter one. All other damage is refused or noted.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.errors import BadInput
from profiler.parse import child, sniff
from profiler.parse.child import Limits, Progress

if TYPE_CHECKING:
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
    folder = Path(tempfile.mkdtemp(prefix="flashscope-read-"))
    try:
        source = folder / "upload"
        source.write_bytes(data)
        return load(source, name, limits=limits, progress=progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean(name: str) -> str:
    """A name for display: no folders, no control characters, at most 160 characters."""
    kept = "".join(char for char in name.replace("\\", "/").rsplit("/", 1)[-1] if char.isprintable())
    return kept[-160:] or "unnamed"


def _load(path: Path, name: str | None, limits: Limits | None, progress: Progress | None) -> list[Bundle]:
    from profiler import bundle as bundles  # pandas: not in the worker before it has said how far it is

    name = clean(name or path.name)
    if path.is_dir():
        return [bundles.read(path).renamed(name)]
    if not path.is_file():
        raise BadInput(f"{name}: no such file.", remedy="Give the path of a report, an export or a bundle.")
    with open(path, "rb") as stream:
        sniff.form(stream.read(4096), path.stat().st_size,
                   name)  # refuse what is plainly something else without a process
    folder = Path(tempfile.mkdtemp(prefix="flashscope-read-"))
    try:
        found = [bundles.read(one) for one in child.run(path.resolve(), name, folder, limits or Limits(), progress)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(found) == 1:
        return [found[0].renamed(name.removesuffix(".zip"))]
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
