"""Nothing that is published names a user, a host or a private path: bundles are checked, binary reports scrubbed.

A report from Nsight Compute embeds, seen in recorded ones: the profiled program's path with every launch; in the
session the host's name and addresses, the command line and the working folder; source paths of code built with line
information.
"""

from __future__ import annotations

import contextlib
import getpass
import itertools
import json
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from profiler.bundle import Bundle
from profiler.errors import BadInput, DamagedFile, PrivateData

# Names that say nothing about anybody, and words too short to tell from ordinary text.
GENERIC = {
    "root",
    "user",
    "users",
    "admin",
    "administrator",
    "ubuntu",
    "debian",
    "nobody",
    "runner",
    "jovyan",
    "docker",
    "localhost",
    "localhost.localdomain",
    "host",
    "gpu",
    "cuda",
    "nvidia",
    "python",
    "linux",
    "flashscope",
}
PUBLIC_FOLDERS = {"", "/", "/tmp", "/home", "/usr", "/opt", "/var", "/mnt", "/data"}
SHORTEST = 3
# First folders that a program's or library's path may start with without saying whose machine it is. What lies in /opt
# is chosen by whoever set the machine up, save NVIDIA's own packages.
SYSTEM = ("usr", "lib", "lib64", "bin", "sbin", "proc", "sys", "dev", "etc", "run", "dvs", "build")
PACKAGED = "/opt/nvidia/"

HOMES = r"/home/[^/\s\"':;,]+|/Users/[^/\s\"':;,]+|[A-Za-z]:\\+Users\\+[^\\\s\"':;,]+|/root(?=/|\b)"
# A path that ends at NUL bytes, as compilers write their folders, or follows a word, as in a command line.
BARE_PATH = re.compile(
    rb"(?:(?<=\x00)|(?<=[\x21-\x7e][ =\"']))/[A-Za-z0-9_.+@~%=-]+(?:/[A-Za-z0-9_.+@~%=-]+)+(?=[\x00 \"'])"
)
PATH_BYTES = re.compile(rb"/[A-Za-z0-9_.+@~%=-]+(?:/[A-Za-z0-9_.+@~%=-]+)+")
HOME_BYTES = re.compile(rb"(?:/home/|/Users/|/root/|[A-Za-z]:\\Users\\)[\x21-\x7e]{2,200}")
# The session's system description: machine architecture, then the host's name as a field of its own.
HOST_FIELD = re.compile(rb"\x22.(?:x86_64|aarch64|arm64|AMD64|ppc64le)\x2a([\x01-\x7f])", re.DOTALL)
# The session's network addresses: a message of one text field and one number, 1 or 2.
ADDRESS = re.compile(rb"\x3a.\x0a([\x02-\x40])([0-9a-f.:%a-z]{2,64})\x10[\x01\x02]", re.DOTALL)
SETTING = re.compile(
    rb"\b(?:USER|LOGNAME|USERNAME|HOSTNAME|HOST|HOME|PWD|OLDPWD|MAIL|SSH_[A-Z]+|SUDO_[A-Z]+)=([\x21-\x7e]{1,200})"
)


def private_strings() -> dict[str, str]:
    """What must not leave this machine, with what it is: user and host name, home, working and repository folder."""
    found: dict[str, str] = {}

    def name(text: str, what: str) -> None:
        if len(text) >= SHORTEST and text.lower() not in GENERIC:
            found.setdefault(text, what)

    def folder(path: Path, what: str) -> None:
        if str(path) not in PUBLIC_FOLDERS:
            found.setdefault(str(path), what)

    with contextlib.suppress(OSError, KeyError):
        name(getpass.getuser(), "user name")
    host = socket.gethostname()
    for text in (host, host.split(".")[0]):
        name(text, "host name")
    with contextlib.suppress(RuntimeError):
        folder(Path.home(), "home folder")
    folder(Path.cwd(), "working folder")
    folder(Path(__file__).resolve().parents[1], "repository folder")
    for text in (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)):
        if not is_public(text):
            folder(Path(text), "folder of this Python")
    return found


def is_public(path: str) -> bool:
    """Whether an absolute path starts as every installation's does."""
    return path.lstrip("/").split("/", 1)[0] in SYSTEM or path.startswith(PACKAGED)


def _pattern(strings: Iterable[str]) -> re.Pattern[str]:
    """Any of the strings as whole words, or a home folder of anybody."""
    words = [rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])" for text in strings]
    return re.compile("|".join([*words, HOMES]))


def _texts(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """(where, text) of everything in a bundle that holds text."""

    def walk(where: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, str):
            yield where, value
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(f"{where}.{key}", inner)
        elif isinstance(value, (list, tuple)):
            for i, inner in enumerate(value):
                yield from walk(f"{where}[{i}]", inner)

    yield "name", bundle.name
    yield from walk("profile.json", bundle.profile)
    yield from walk("notes", list(bundle.notes))
    tables = [("launches", bundle.launches), ("metrics", bundle.metrics), ("timings", bundle.timings)]
    on_disk = (("metrics", part) for part in (bundle.on_disk.parts() if bundle.on_disk else ()))
    for table, frame in itertools.chain(tables, on_disk):
        for column in frame.columns:
            if str(frame[column].dtype) in ("string", "object", "str"):
                for text in frame[column].dropna().unique():
                    yield f"{table}.{column}", str(text)


def redact(text: str) -> str:
    """The text with everything private in it replaced: for error messages, which quote paths."""
    return _pattern(private_strings()).sub("[private]", text)


def check(bundle: Bundle) -> None:
    """Raise PrivateData naming the field, if anything in ``bundle`` names this user, this host or a private path."""
    known = private_strings()
    pattern = _pattern(known)
    for where, text in _texts(bundle):
        if match := pattern.search(text):
            what = known.get(match[0], "home folder")
            raise PrivateData(
                f"{where}: expected nothing private, got the {what} in {json.dumps(text[:120])}.",
                remedy="Rename it, or run under another name, before the bundle is shared; nothing was written.",
            )


def scrub(data: bytes) -> bytes:
    """A binary report in which private text is replaced byte for byte, so that every length and offset stays right.

    Replaced: paths outside the system's folders (their file name stays), this machine's private strings, values of
      environment settings that name a user, a host or a folder.
    """
    out = bytearray(data)

    def mask(start: int, end: int, keep: bytes = b"/\\:") -> None:
        for i in range(start, end):
            if out[i] not in keep:
                out[i] = ord("x")

    for match in PATH_BYTES.finditer(data):
        # A text field carries its length in front of it: that tells a path from machine code that looks like one.
        start, end = match.span()
        if not is_public(match[0].decode("ascii")) and (stop := _field_end(data, start, end)):
            mask(start, data.rfind(b"/", start, stop))
    for match in BARE_PATH.finditer(data):
        if not is_public(match[0].decode("ascii")):
            mask(match.start(), match.start() + match[0].rfind(b"/"))
    for match in HOME_BYTES.finditer(data):
        cut = max(match[0].rfind(b"/"), match[0].rfind(b"\\"))
        mask(match.start(), match.start() + cut)
    for match in HOST_FIELD.finditer(data):
        mask(match.end(), match.end() + match[1][0], keep=b"")
    for match in ADDRESS.finditer(data):
        if match[1][0] == len(match[2]):
            mask(*match.span(2), keep=b".:")
    for match in SETTING.finditer(data):
        mask(*match.span(1))
    for text in sorted(private_strings(), key=len, reverse=True):
        for match in re.finditer(rb"(?<![A-Za-z0-9])" + re.escape(text.encode()) + rb"(?![A-Za-z0-9])", data):
            mask(*match.span())
    return bytes(out)


def _field_end(data: bytes, start: int, end: int) -> int:
    """Where the length-prefixed text that starts at ``start`` ends, or 0 if no fitting length precedes it."""
    if start < 2 or data[start - 2 : start] == b":/":  # a web address
        return 0
    last, before = data[start - 1], data[start - 2]
    lengths = (last,) if last < 128 and before < 128 else (before & 127 | last << 7, last)
    return next((start + length for length in lengths if 3 < length <= end - start), 0)


def scrub_file(path: Path, out: Path) -> int:
    """Write a scrubbed copy of the report ``path`` to ``out``; the number of bytes changed.

    Both are parsed: unless all values are the same in both, nothing is written and DamagedFile is raised.
    """
    from profiler.parse import load

    path, out = Path(path), Path(out)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be read ({error.strerror}).") from error
    if data[:4] != b"NVR\0":
        raise BadInput(f"{path.name}: expected a binary report (.ncu-rep), got another kind of file.",
                       remedy="Import it into a bundle instead: bundles are checked for private data when written.")
    scrubbed = scrub(data)
    partial = out.with_name(f".scrub-{out.name}")
    try:
        partial.write_bytes(scrubbed)
        before, after = load(path), load(partial, path.name)
        if not before.metrics.equals(after.metrics) or len(before.launches) != len(after.launches):
            raise DamagedFile(
                f"{path.name}: its values changed while private text was replaced; no copy was written.",
                remedy="Please report it with the Nsight Compute version that wrote the file.",
            )
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return sum(a != b for a, b in zip(data, scrubbed))
