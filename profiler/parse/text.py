"""Text that Nsight Compute printed: finds every table in it, whatever stands before, between and after."""

from __future__ import annotations

import re
from collections.abc import Callable

from profiler.errors import CountersNotPermitted, DamagedFile, NoLaunches, UnsupportedFile
from profiler.parse import page, rows, sniff, tables, unverified
from profiler.parse.numbers import Format
from profiler.parse.raw import RawFile

PERMISSION = "ERR_NVGPUCTRPERM"
PERMISSION_REMEDY = (
    "Allow the counters for all users (Linux: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d, then reboot; Windows: NVIDIA Control Panel, Manage GPU Performance Counters), or run ncu as "
    "administrator. On a rented GPU ask the provider.")
HOW = ("Give it a report (.ncu-rep), or an export: `ncu --import report.ncu-rep --csv --page raw > export.csv`.")
# Words and shapes of keys, password files and tokens: of such a file nothing is repeated, not even to its owner.
SECRET = re.compile(
    r"(?i)pass(?:wd|word|phrase)|secret|private.key|api.?key|credential|authorization|bearer |token|BEGIN [A-Z ]+-----|"
    r"ssh-(?:rsa|ed25519|dss)|^[^:\s]+:[^:\s]*:\d*:\d*:|(?<![\w+=-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])"
    r"[\w+=-]{24,}", re.MULTILINE)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85]")  # never in a table; some of them would pass for blanks
LEAN = 32 << 20  # bytes: of a larger export only the metrics that something uses are kept


def decode(data: bytes) -> tuple[str, list[str]]:
    """Text and what there is to say of its encoding. A control character or a byte that cannot be read stays in
    the text as U+FFFD: what it stood in is no number or unit then."""
    codec = sniff.encoding(data[:4096])
    plain = codec in ("", "utf-8-sig")
    notes = [] if plain else [f"The text was read as {codec[:6].upper()}."]
    try:
        text = data.decode(codec or "utf-8")
    except UnicodeDecodeError:
        if plain:
            notes.append("The text is not UTF-8; names with other than ASCII letters may look wrong.")
        text = data.decode("latin-1" if plain else codec, errors="replace").removeprefix("\xef\xbb\xbf")
    if "\x00" in text or (not plain and ("\ufffd" in text or any(word in data for word in sniff.NCU_WORDS))):
        notes.append("Part of the text is damaged or in another encoding, and was not read.")
    if CONTROL.search(text):
        text = CONTROL.sub("\ufffd", text)
    return text.lstrip("\ufeff"), notes


def read(data: bytes, progress: Callable[[int, int], None] = lambda done, total: None) -> RawFile:
    """The launches of a text export; ``progress(done, total)`` is called now and then with numbers of lines.

    Raises CountersNotPermitted, NoLaunches or UnsupportedFile, each by name.
    """
    progress(0, data.count(b"\n") + 1)
    text, notes = decode(data)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found = list(tables.find(lines, len(data) > LEAN, progress))
    pages = page.find(lines) if not found else []
    if not found and not pages:
        _refuse(text, lines)
    numbers = Format.of(rows.cells(found) if found else page.cells(pages), found[0].delimiter if found else ",")
    out = RawFile(_form(found, pages), decimal=numbers.decimal, notes=[*notes, *numbers.notes], text=True)
    if found:
        rows.collect(found, numbers, out)
        beside = sum(bool(block.rows) for block in page.find(lines)) if len(data) <= LEAN else 0
        if beside:
            out.notes.append(f"The file holds a page in words too, of {beside} launches: only its tables were read.")
        left_out = len(set().union(*(table.left_out for table in found)))
        if left_out:
            out.notes.append(f"A large export: {left_out} metrics that no page uses were not kept.")
    else:
        page.collect(pages, out)
    last = lines[-1].rstrip()
    if found and _torn(last, found[-1].delimiter):
        out.notes.append("The file ends without a line break: its last value may be cut short.")
    if pages and lines[-1] and not last.startswith("=="):
        out.notes.append("The page ends without a line break: it may be cut short.")
    if any(b.ranges for b in pages):
        out.notes.append(unverified.note(unverified.NVTX_PAGE))
    if PERMISSION in text:
        out.notes.append(f"ncu reported {PERMISSION} for part of the run: some launches may be missing.")
    cut = sum(table.cut for table in found)
    if not out.launches and cut:
        raise DamagedFile(f"None of the {cut} rows of the table in this file is whole.", remedy=HOW)
    if not out.launches:
        _refuse(text, lines)
    return out


def _torn(last: str, delimiter: str) -> bool:
    """Whether the last line of tables, without a line break behind it, may be the first part of a row."""
    begins = delimiter in last or last[:1].isdigit() or last[:1] == '"'
    return begins and not last.startswith("==") and (not last.endswith('"') or last.count('"') % 2 == 1)


def _form(found: list[tables.Table], pages: list[page.Block]) -> str:
    kinds = sorted({t.kind for t in found})
    if kinds:
        return "ncu CSV, " + " and ".join(kinds)
    return "ncu text page, summary" if any(b.invocations is not None for b in pages) else "ncu text page"


def _refuse(text: str, lines: list[str]) -> None:
    first = _beginning(lines)
    if PERMISSION in text:
        raise CountersNotPermitted(f"The file holds no measurements: ncu may not read the counters ({PERMISSION}).",
                                   remedy=PERMISSION_REMEDY, detail=first)
    if "No kernels were profiled" in text:
        raise NoLaunches("The file holds no measurements: ncu profiled no kernel.",
                         remedy="Check the filters of the ncu command (--kernel-name, --nvtx-include, --launch-skip).",
                         detail=first)
    if any(map(tables.delimited, lines)) or "==PROF==" in text:
        raise NoLaunches("The file holds no kernel launch, only what surrounds a table.", remedy=HOW, detail=first)
    shown = " / ".join(line.strip()[:60] for line in first.split("\n") if line.strip())[:160]
    begins = f", which begins: {shown}" if shown else "; its first lines are blank, or not shown as they may be secret."
    raise UnsupportedFile(f"No Nsight Compute table found in this file{begins}", remedy=HOW, detail=first)


def _beginning(lines: list[str]) -> str:
    """The first lines, for whoever wonders what file this is; nothing of a file that may hold secrets."""
    text = "\n".join(line[:200] for line in lines[:200])
    return "" if SECRET.search(text) else "\n".join(line[:200] for line in lines[:8])
