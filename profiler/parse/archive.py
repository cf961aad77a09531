"""Zipped bundles and reports: unpacked into a folder of ours, within limits, and only what belongs there."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from profiler.bundle import PROFILE
from profiler.errors import DamagedFile, UnsupportedFile

MOST_BYTES = 4 << 30  # unpacked, all files together
MOST_RATIO = 500  # unpacked over packed, for files above FREE_BYTES
FREE_BYTES = 16 << 20
MOST_FILES = 200
SUFFIXES = (".ncu-rep", ".ncu-repz", ".nsight-cuprof-report", ".csv", ".txt", ".log")


def unpack(path: Path, folder: Path, name: str) -> list[Path]:
    """Unpack the zip ``path`` into ``folder``: [the bundle's folder], or the reports and exports in it.

    Raises UnsupportedFile for a member that points outside, a link, an encrypted or oversized one, or nothing of ours
    in it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
            _check(members, name)
            profile = next((m for m in members if PurePosixPath(m.filename).name == PROFILE), None)
            if profile is not None:
                base = PurePosixPath(profile.filename).parent
                wanted = {m: folder / PurePosixPath(m.filename).name for m in members
                          if PurePosixPath(m.filename).parent == base and m.filename.endswith((".json", ".parquet"))}
            else:
                wanted = {m: folder / f"{i:03d}" / PurePosixPath(m.filename).name for i, m in enumerate(members)
                          if m.filename.lower().endswith(SUFFIXES)}
            if not wanted:
                held = ", ".join(m.filename[:100] for m in members[:5]) or "nothing"
                raise _refused(f"{name} is a zip without a bundle or a report in it; it holds {held}.")
            _extract(archive, wanted, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)[:120]
        raise DamagedFile(f"{name}: the zip cannot be unpacked ({reason}).", remedy="Copy the file again.") from error
    return [folder] if profile is not None else sorted(wanted.values())


def _check(members: list[zipfile.ZipInfo], name: str) -> None:
    if len(members) > MOST_FILES:
        raise _refused(f"{name} holds {len(members)} files, where a bundle has four and its reports.")
    total = 0
    names: set[str] = set()
    for m in members:
        if m.filename in names:
            raise DamagedFile(f"{name} holds the member {m.filename[:100]!r} twice; nothing was unpacked.",
                              remedy="Make a new zip, of the bundle's folder or the reports alone.")
        names.add(m.filename)
        what = f"{name}: the member {m.filename[:100]!r}"
        parts = PurePosixPath(m.orig_filename.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in m.orig_filename or "\x00" in m.orig_filename:
            raise _refused(f"{what} points outside the archive; nothing was unpacked.")
        kind = stat.S_IFMT(m.external_attr >> 16)
        if kind and kind != stat.S_IFREG:
            raise _refused(f"{what} is a link or a device; nothing was unpacked.")
        if m.flag_bits & 1:
            raise _refused(f"{what} is encrypted.")
        total += m.file_size
        if total > MOST_BYTES or (m.file_size > FREE_BYTES and m.file_size > MOST_RATIO * max(m.compress_size, 1)):
            raise _refused(f"{name} would unpack to far more than a bundle holds ({total / 1e6:,.0f} MB so far).")


def _refused(what: str) -> UnsupportedFile:
    return UnsupportedFile(what,
                           remedy="Make a new zip, without a password, of the bundle's folder or the reports alone.")


def _extract(archive: zipfile.ZipFile, wanted: dict[zipfile.ZipInfo, Path], name: str) -> None:
    """Write the members, believing the bytes and not the sizes the archive promises."""
    left = MOST_BYTES
    for member, target in wanted.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, open(target, "xb") as out:
            while chunk := source.read(1 << 20):
                left -= len(chunk)
                if left < 0 or out.tell() + len(chunk) > member.file_size:
                    raise _refused(f"{name} unpacks to more than it says.")
                out.write(chunk)
