"""The process that reads one file: ``python -m profiler.parse.worker INPUT NAME OUT LIMIT_BYTES``.

Writes a bundle to OUT/bundle, or OUT/error.json; prints ``progress DONE TOTAL`` lines. Whatever NVIDIA's library or a hostile
file does, it is done to this process and not to the app.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path

from profiler import errors


def main(source: Path, name: str, out: Path, limit: int) -> int:
    try:
        _limit_memory(limit)
        _work(source, name, out)
        return 0
    except errors.FlashScopeError as error:
        found = error
    except MemoryError:
        found = errors.DamagedFile(f"{name} needs more than {limit / 1e9:.1f} GB of memory to read, and was given up.",
                                   remedy="Collect fewer launches or metrics, or import it from the command line on a larger machine.")
    except ImportError as error:
        found = errors.BadInput(f"{name} cannot be read: a package is missing ({error}).",
                                remedy="Install the viewer's packages: pip install -r requirements-viewer.txt")
    except Exception as error:
        found = errors.DamagedFile(f"{name} cannot be read to its end ({type(error).__name__}: {str(error)[:200]}).",
                                   remedy="Copy the file again; if it opens elsewhere, please report it as a fault of the reader.")
    (out / "error.json").write_text(json.dumps({
        "class": type(found).__name__, "what": found.what, "remedy": found.remedy, "detail": found.detail}), encoding="utf-8")
    return 3


def _limit_memory(limit: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit; macOS may refuse it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _work(source: Path, name: str, out: Path) -> None:
    from profiler import bundle
    from profiler.parse import build, report, sniff, text

    data_hash, size = _digest(source)
    with open(source, "rb") as stream:
        head = stream.read(4096)
    form = sniff.form(head, size, name)
    if form == sniff.REPORT:
        raw = report.read(source, lambda done, total: print("progress", done, total, flush=True))
    else:
        raw = text.read(source.read_bytes())
    bundle.write(build.bundle(raw, name, {"name": name, "sha256": data_hash, "bytes": size}), out / "bundle")


def _digest(source: Path) -> tuple[str, int]:
    with open(source, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(stream.read()).hexdigest()
    return digest, source.stat().st_size


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
