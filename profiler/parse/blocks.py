"""The frame of a binary report: whether it is whole, and what it says of the session that NVIDIA's reader does not
hand out.

A report is ``NVR\\0``, the length of a header and the header, then blocks: the length of a block header, that header
(protobuf:
2 = number of results in the block, 3 = session details, 5 = bytes of payload), the payload. There are no checksums,
so a changed byte inside a payload cannot be told from a measurement.
"""

from __future__ import annotations

import datetime
import shlex
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from profiler.errors import DamagedFile

MAGIC = b"NVR\x00"
LONGEST_HEADER = 64 << 20  # bytes: block headers hold string tables of some 100 kB
REMEDY = "Copy the file again from where it was written; a report must be whole."
# Options of ncu that say how was measured; all others, paths above all, stay out of what is kept.
KEPT = frozenset((
    "--set", "--section", "--metrics", "--cache-control", "--clock-control", "--replay-mode", "--nvtx",
    "--nvtx-include", "--nvtx-exclude",
    "--kernel-name", "-k", "--kernel-id", "--launch-skip", "-s", "--launch-count", "-c", "--target-processes",
    "--apply-rules",
    "--pm-sampling-interval", "--warmup", "--range-filter", "--graph-profiling"))
FLAGS = frozenset(("--nvtx", "-f", "--force-overwrite", "--csv", "--verbose"))


@dataclass(slots=True)
class Frame:
    """results: launches that the blocks promise; session: keys of profile.json."""

    results: int = 0
    session: dict[str, Any] = field(default_factory=dict)


def read(path: Path, name: str) -> Frame:
    """Walk the blocks of a report without reading its payloads. Raises DamagedFile where they do not add up to the
    file."""
    frame, size = Frame(), path.stat().st_size
    with open(path, "rb") as stream:
        stream.read(len(MAGIC))
        _chunk(stream, size, name, "file header")
        while stream.tell() < size:
            start = stream.tell()
            try:
                header = list(_fields(_chunk(stream, size, name, "block")))
            except (IndexError, ValueError) as error:
                raise DamagedFile(f"{name} is damaged {start} bytes from its start, where a block header should be.",
                                  remedy=REMEDY) from error
            if not header:  # else a file of zeros would be millions of empty blocks
                raise DamagedFile(f"{name} is damaged {start} bytes from its start: a block there says nothing.",
                                  remedy=REMEDY)
            payload = 0
            for number, value in header:
                if number == 2 and isinstance(value, int):
                    frame.results += value
                elif number == 3 and isinstance(value, bytes):
                    _session(value, frame.session)
                elif number == 5 and isinstance(value, int):
                    payload = value
            if stream.tell() + payload > size:
                missing = stream.tell() + payload - size
                raise DamagedFile(f"{name} is cut short: it ends {missing:,} bytes before its last block does.",
                                  remedy=REMEDY)
            stream.seek(payload, 1)
    return frame


def _chunk(stream: IO[bytes], size: int, name: str, what: str) -> bytes:
    """A part that is preceded by its length."""
    start = stream.tell()
    raw = stream.read(4)
    length = struct.unpack("<I", raw)[0] if len(raw) == 4 else -1
    if not 0 <= length <= min(LONGEST_HEADER, size - stream.tell()):
        raise DamagedFile(f"{name} is cut short or damaged: its {what} at byte {start:,} does not fit in the file.",
                          remedy=REMEDY)
    return stream.read(length)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a protobuf message; raises IndexError or ValueError where it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise IndexError("field past the end")
        yield key >> 3, data[at:at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _session(data: bytes, session: dict[str, Any]) -> None:
    """Session details: 2 = time of creation, 8 = {1: name, 2: value} of a version, 11 = the command line."""
    names = {"CUDA Version": "cuda", "Display Driver Version": "driver", "Nsight Compute Target": "ncu"}
    try:
        for number, value in _fields(data):
            if number == 2 and isinstance(value, int) and 1_400_000_000 < value < 4_000_000_000:
                moment = datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
                session.setdefault("created", moment.isoformat())
            elif number == 8 and isinstance(value, bytes):
                pair = {n: v.decode("utf-8", "replace") for n, v in _fields(value) if isinstance(v, bytes)}
                key = names.get(pair.get(1, ""))
                if key:
                    session[key] = pair.get(2, "")[:80].split(" (")[0]
            elif number == 11 and isinstance(value, bytes):
                _command(value.decode("utf-8", "replace"), session)
    except (IndexError, ValueError):
        return


def _command(text: str, session: dict[str, Any]) -> None:
    """How was measured, from ncu's command line: its own options, without the program and its arguments.

    Where an option is not given, ncu's default stands: caches flushed, clocks locked to base, kernel replay.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    kept, options = ["ncu"], {}
    at = 1
    while at < len(words) and words[at].startswith("-"):
        option, given, value = words[at].partition("=")
        at += 1
        if not given and option not in FLAGS and at < len(words):
            value, at = words[at], at + 1
        options[option] = value
        if option in KEPT:
            kept += [option, value[:2000]] if value else [option]
    session["commands"] = {"ncu": shlex.join(kept)}
    session["cache_control"] = options.get("--cache-control", "all")
    session["clock_control"] = options.get("--clock-control", "base")
    session["replay_mode"] = options.get("--replay-mode", "kernel")
