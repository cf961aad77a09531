"""A single compressed file, unpacked within limits: ``.ncu-repz`` is a report compressed with zstd, and people gzip
reports."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, Any

from profiler.errors import DamagedFile, UnsupportedFile

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MOST_BYTES = 4 << 30
MOST_RATIO = 500  # unpacked over packed, above FREE_BYTES: a report packs to a tenth, an export to a hundredth
FREE_BYTES = 64 << 20


def is_compressed(head: bytes) -> bool:
    return head.startswith((GZIP, ZSTD))


def unpack(source: Path, target: Path, name: str) -> Path:
    """Write what is inside ``source`` to ``target``. Raises DamagedFile when it ends early, UnsupportedFile when it
    has no end."""
    with open(source, "rb") as stream:
        head = stream.read(4)
    most = min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * source.stat().st_size))
    left = most
    try:
        with _open(source, head) as packed, open(target, "xb") as out:
            while chunk := packed.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    raise UnsupportedFile(f"{name} unpacks to more than {most >> 20:,} MiB, beyond what a report does.",
                                          remedy="Unpack it yourself if you trust it, then open what is inside.")
                out.write(chunk)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DamagedFile(f"{name} cannot be unpacked: it is cut short or damaged.",
                          remedy="Copy the file again from where it was written.") from error
    return target


def _open(source: Path, head: bytes) -> IO[bytes] | Any:
    if head.startswith(GZIP):
        return gzip.open(source, "rb")
    import pyarrow

    return pyarrow.CompressedInputStream(str(source), "zstd")
