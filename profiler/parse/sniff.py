"""What a file is, from its content. The name is only used to call a refused file by what it is."""

from __future__ import annotations

from profiler.errors import UnsupportedFile
from profiler.parse import compressed

REPORT, ARCHIVE, COMPRESSED, TEXT = "report", "archive", "compressed", "text"
NCU_WORDS = (b"==PROF==", b"Metric Name", b'"Kernel Name"')
NCU = "ncu --set full --nvtx -o report YOUR_PROGRAM"
NSYS_REMEDY = ("A timeline has no counters. Profile the kernels of interest with Nsight Compute: "
               f"`{NCU}` and open report.ncu-rep.")

_REFUSED: tuple[tuple[bytes, str, str], ...] = (
    (b"SQLite format 3\x00", "an SQLite database (as `nsys export` writes)", NSYS_REMEDY),
    (b"\xfd7zXZ\x00", "an xz archive", "Unpack it first (unxz), then open what is inside."),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "Unpack it first, then open what is inside."),
    (b"BZh", "a bzip2 archive", "Unpack it first (bunzip2), then open what is inside."),
    (b"Rar!", "a RAR archive", "Unpack it first, then open what is inside."),
    (b"PAR1", "a parquet table", "Open the bundle it belongs to: the folder, or the folder zipped."),
    (b"\x7fELF", "a program or cubin (ELF)", f"Profile it: `{NCU}`."),
    (b"MZ", "a Windows program", f"Profile it: `{NCU}`."),
    (b"%PDF", "a PDF document", ""), (b"\x89PNG", "a PNG image", ""), (b"\xff\xd8\xff", "a JPEG image", ""),
    (b"GIF8", "a GIF image", ""),
)
_SUFFIXES = {
    ".nsys-rep": ("an Nsight Systems report", NSYS_REMEDY), ".qdrep": ("an Nsight Systems report", NSYS_REMEDY),
    ".qdstrm": ("an Nsight Systems stream", NSYS_REMEDY), ".pftrace": ("a Perfetto trace", NSYS_REMEDY),
    ".perfetto-trace": ("a Perfetto trace", NSYS_REMEDY), ".nvvp": ("a Visual Profiler session", NSYS_REMEDY),
    ".nvprof": ("an nvprof profile", NSYS_REMEDY),
    ".pickle": ("a Python pickle", "Pickles are never opened: they can run code."),
    ".pkl": ("a Python pickle", "Pickles are never opened: they can run code."),
}
# Marks at the start of a text, longest first; and, without one, where the zeros of ASCII letters lie in two bytes.
MARKS = ((b"\xff\xfe\x00\x00", "utf-32"), (b"\x00\x00\xfe\xff", "utf-32"), (b"\xef\xbb\xbf", "utf-8-sig"),
         (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
GENERAL = "FlashScope opens Nsight Compute reports (.ncu-rep, .ncu-repz), their CSV and text exports, and bundles."


def form(head: bytes, size: int, name: str) -> str:
    """REPORT, ARCHIVE, COMPRESSED or TEXT of a file with the first bytes ``head``; raises UnsupportedFile naming what
    else it is."""
    if size == 0:
        raise UnsupportedFile(f"{name} is empty.", remedy="Copy the file again from where it was written.")
    suffix = next((s for s in _SUFFIXES if name.lower().endswith(s)), "")
    if head.startswith(b"NVR\x00"):
        if suffix:
            _refuse(name, *_SUFFIXES[suffix])
        return REPORT
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return ARCHIVE
    if compressed.is_compressed(head):
        return COMPRESSED
    for magic, what, remedy in _REFUSED:
        if head.startswith(magic):
            _refuse(name, *_SUFFIXES.get(suffix, (what, remedy)))
    if head[257:262] == b"ustar":
        _refuse(name, "a tar archive", "Unpack it first, or make a zip of the bundle's folder or the reports.")
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        _refuse(name, *_SUFFIXES[".pickle"])
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"{", b"[")) and (b'"traceEvents"' in head or b'"ph"' in head or b'"schemaVersion"' in head):
        _refuse(name, "a Chrome or Perfetto trace", NSYS_REMEDY)
    if start[:15].lower().startswith((b"<!doctype", b"<html")):
        _refuse(name, "a web page", "Was the file saved from a browser instead of downloaded? Fetch the file itself.")
    if suffix:
        _refuse(name, *_SUFFIXES[suffix])
    if _is_text(head):
        return TEXT
    if name.lower().endswith((".ncu-rep", ".ncu-repz", ".nsight-cuprof-report")):
        raise UnsupportedFile(f"{name} is no Nsight Compute report: its first bytes are {head[:8].hex(' ')}.",
                              remedy="Copy the file again from where it was written, in binary mode.")
    _refuse(name, "a binary file of an unknown kind", "")
    raise AssertionError("not reached")


def _refuse(name: str, what: str, remedy: str) -> None:
    raise UnsupportedFile(f"{name} is {what}, not something Nsight Compute writes.", remedy=remedy or GENERAL)


def encoding(head: bytes) -> str:
    """The encoding that the first bytes of a text give away, "" when they do not. UTF-16 is what PowerShell's ``>``
    writes, with a mark; other tools leave the mark out."""
    for mark, codec in MARKS:
        if head.startswith(mark):
            return codec
    even, odd = head[0:4096:2], head[1:4096:2]
    for zeros, letters, codec in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(zeros) > 1 and zeros.count(0) > 0.9 * len(zeros) and letters.count(0) < 0.02 * len(letters):
            return codec
    return ""


def _is_text(head: bytes) -> bool:
    if encoding(head) or any(word in head for word in NCU_WORDS):
        return True  # whatever bytes a program printed among it
    control = sum(1 for byte in head if byte < 9 or (13 < byte < 32 and byte != 27))
    return control <= len(head) // 200
