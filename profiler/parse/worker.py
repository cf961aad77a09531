"""The process that reads one file: ``python -m profiler.parse.worker OUT``, where OUT/job.json says which.

Writes bundles to OUT/result, or OUT/error.json; prints ``progress DONE TOTAL`` lines. Whatever NVIDIA's library or a
hostile file does, it is done to this process and not to the app.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from profiler import errors


def main(source: Path, name: str, out: Path, limit: int, launch: int | None = None) -> int:
    try:
        _limit_memory(limit)
        _work(source, name, out, launch)
        return 0
    except errors.FlashScopeError as error:
        found = error
    except MemoryError:
        found = errors.DamagedFile(f"{name} needs more than {limit / 1e9:.1f} GB of memory to read, and was given up.",
                                   remedy="Collect fewer launches or metrics, or read it on a larger machine.")
    except ImportError as error:
        found = errors.BadInput(f"{name} cannot be read: a package is missing ({error}).",
                                remedy="Install the viewer's packages: pip install -r requirements-viewer.txt")
    except Exception as error:
        found = errors.DamagedFile(f"{name} cannot be read to its end ({type(error).__name__}: {str(error)[:200]}).",
                                   remedy="Copy the file again; if it opens elsewhere, it is a fault of this reader.")
    said = {key: _named(getattr(found, key), source, out, name) for key in ("what", "remedy", "detail")}
    (out / "error.json").write_text(json.dumps({"class": type(found).__name__, **said}), encoding="utf-8")
    return 3


def _named(text: str, source: Path, out: Path, name: str) -> str:
    """``text`` with the user's file in place of temporary ones."""
    inside = rf"{re.escape(str(out))}(?:[/\\](?:members|unpacked|result)(?:[/\\]\d\d\d)?)?"
    return re.sub(inside, lambda _: name, text.replace(str(source), name))


def _limit_memory(limit: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit; macOS may refuse it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _work(source: Path, name: str, out: Path, launch: int | None) -> None:
    """Read ``source`` into OUT/result: one folder for each bundle, named 000, 001, ... in order; launch: of a report
    only that one."""
    from profiler.parse import archive, compressed, sniff

    result = out / "result"
    result.mkdir()
    form, inner = _form(source, name), name
    file = {"name": name, **_digest(source)}
    if form == sniff.COMPRESSED:
        source, inner = compressed.unpack(source, out / "unpacked", name), f"the content of {name}"
        form = _form(source, inner)
    if form == sniff.COMPRESSED:
        raise errors.UnsupportedFile(f"{name} is packed twice.", remedy="Unpack it first, then open what is inside.")
    if form != sniff.ARCHIVE:
        _read(source, inner, form, file, result / "000", out, launch)
        return
    inside = out / "members" / (re.sub(r"[^\w.+ -]", "_", name.removesuffix(".zip"))[:60].strip(". ") or "bundle")
    inside.mkdir(parents=True)
    members = archive.unpack(source, inside, name)
    if members == [inside]:
        from profiler import bundle

        try:
            bundle.read(inside)  # what can be read here can be read by the app
        except errors.FlashScopeError as error:
            error.what = error.what if inside.name in error.what else f"{name}: {error.what}"
            raise
        inside.rename(result / "000")
        return
    for number, member in enumerate(members):
        form, file = _form(member, member.name), {"name": member.name, **_digest(member)}
        if form in (sniff.ARCHIVE, sniff.COMPRESSED) and not member.name.endswith(".ncu-repz"):
            raise errors.UnsupportedFile(f"{name} holds another archive, {member.name}.", remedy="Unpack it first.")
        if form == sniff.COMPRESSED:
            member = compressed.unpack(member, member.with_suffix(".unpacked"), member.name)
            form = _form(member, f"the content of {file['name']}")
        _read(member, str(file["name"]), form, file, result / f"{number:03d}", out, launch)


def _read(source: Path, name: str, form: str, file: dict[str, Any], target: Path, out: Path,
          launch: int | None) -> None:
    """One report or export, called ``name`` in errors → the bundle ``target``; file: {name, sha256, bytes}."""
    from profiler.parse import report, sniff, text

    if form == sniff.REPORT:
        if source.suffix == ".ncu-repz":  # by this ending NVIDIA's reader expects a compressed one
            source = Path(shutil.copyfile(source, out / f"{target.name}.ncu-rep"))
        raw = report.read(source, name, _progress, launch)
    elif form == sniff.TEXT:
        raw = text.read(source.read_bytes(), _progress)
    else:
        raise errors.UnsupportedFile(f"{name} holds another archive.",
                                     remedy="Unpack it first, then open what is inside.")
    from profiler import bundle
    from profiler.parse import build

    bundle.write(build.bundle(raw, file["name"], file), target)


def _form(source: Path, name: str) -> str:
    from profiler.parse import sniff

    with open(source, "rb") as stream:
        return sniff.form(stream.read(4096), source.stat().st_size, name)


def _progress(done: int, total: int) -> None:
    print("progress", done, total, flush=True)


def _digest(source: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with open(source, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return {"sha256": digest.hexdigest(), "bytes": source.stat().st_size}


def _end_with(parent: int) -> None:
    """End this process, whatever it does, as soon as the one that started it is gone: nobody waits for the result."""
    while parent and os.getppid() == parent:
        time.sleep(1.0)
    os._exit(4)


def do(folder: Path) -> int:
    """The job that FOLDER/job.json describes; the exit code."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    return main(Path(job["source"]), job["name"], folder, job["memory_bytes"], job.get("launch"))


if __name__ == "__main__":
    if os.name == "posix":
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.exit(do(Path(sys.argv[1])))
