"""Reports, exports and bundles → ``Bundle``. Content decides what a file is; each is read in a process of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from profiler import bundle as bundles
from profiler.bundle import Bundle
from profiler.errors import BadInput
from profiler.parse import archive, child, sniff
from profiler.parse.child import Limits, Progress

__all__ = ["Limits", "load", "load_bytes", "load_many"]


def load(path: Path | str, name: str | None = None, *, limits: Limits | None = None, progress: Progress | None = None) -> Bundle:
    """The bundle in ``path``: a bundle's folder, the same zipped, a report, or a CSV or text export of one.

    name: how to call it (default: the file's name). progress(done, total): launches read so far, for large reports.
    Raises UnsupportedFile, DamagedFile, NoLaunches, NewerSchema or CountersNotPermitted; nothing is written outside temp.
    """
    path = Path(path)
    name = name or path.name
    if path.is_dir():
        return bundles.read(path).renamed(name)
    if not path.is_file():
        raise BadInput(f"{path.name}: no such file.", remedy="Give the path of a report, an export or a bundle.")
    with open(path, "rb") as stream:
        head = stream.read(4096)
    form = sniff.form(head, path.stat().st_size, name)
    folder = Path(tempfile.mkdtemp(prefix="flashscope-"))
    try:
        if form == sniff.ARCHIVE:
            return _archive(path, name, folder, limits or Limits(), progress)
        return _read(path, name, folder, limits or Limits(), progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_many(paths: Iterable[Path | str], *, limits: Limits | None = None) -> list[Bundle]:
    """One bundle for each path, in order; names that come twice are numbered apart."""
    loaded: list[Bundle] = []
    for path in paths:
        one = load(path, limits=limits)
        taken = {other.name for other in loaded}
        number = 2
        name = one.name
        while name in taken:
            name, number = f"{one.name} ({number})", number + 1
        loaded.append(one if name == one.name else one.renamed(name))
    return loaded


def load_bytes(name: str, data: bytes, *, limits: Limits | None = None, progress: Progress | None = None) -> Bundle:
    """``load`` for a file that is in memory, such as an upload. ``name`` is never used as a path."""
    folder = Path(tempfile.mkdtemp(prefix="flashscope-"))
    try:
        source = folder / "upload"
        source.write_bytes(data)
        return load(source, name, limits=limits, progress=progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path, name: str, folder: Path, limits: Limits, progress: Progress | None) -> Bundle:
    return replace(bundles.read(child.run(path.resolve(), name, folder, limits, progress)), name=name)


def _archive(path: Path, name: str, folder: Path, limits: Limits, progress: Progress | None) -> Bundle:
    """A zipped bundle, or a zip with one report or export in it."""
    inside = folder / "unpacked"
    inside.mkdir()
    found = archive.unpack(path, inside, name)
    if found == [inside]:
        return bundles.read(inside).renamed(name.removesuffix(".zip"))
    if len(found) > 1:
        raise BadInput(f"{name} holds {len(found)} reports: {', '.join(p.name for p in found[:6])}.",
                       remedy="Unpack it and open the reports one by one, or all together.")
    inner = found[0]
    with open(inner, "rb") as stream:
        sniff.form(stream.read(4096), inner.stat().st_size, inner.name)
    return _read(inner, name, folder, limits, progress).renamed(name)
