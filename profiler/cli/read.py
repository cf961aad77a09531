"""Verbs on what was recorded: import, table, evidence, scrub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiler.cli.options import Json, Source
from profiler.errors import BadInput

if TYPE_CHECKING:
    from profiler.bundle import Bundle


def import_(
    files: Annotated[list[Path], typer.Argument(help="Reports and exports.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The bundle to write: a new folder.", show_default=False)],
) -> None:
    """Turn Nsight Compute reports and exports into one bundle.

    Example: python -m profiler import report.ncu-rep details.csv --out out/imported
    """
    from profiler.collect.join import merge
    from profiler.collect.run import publish

    if out.exists():
        raise BadInput(f"--out: expected a new folder, got {out.name}, which is there already.")
    made = merge(out.name, [_load(file) for file in files])
    publish(made, out, [])
    print(_contents(made), file=sys.stderr)
    print(out)


def _contents(made: Bundle) -> str:
    """One line of what was read: launches, ranges, GPUs, and which columns no launch has."""
    from profiler.metrics import ask

    launches = made.launches
    ranges = launches["range_path"].dropna().nunique()
    lacking = [name for name in ask.EVIDENCE if name in launches and launches[name].isna().all()]
    devices = ", ".join(launches["device"].dropna().unique()) or "a GPU that is not named"
    more = f" and {len(lacking) - 6} more" if len(lacking) > 6 else ""
    missing = f"; no launch has {', '.join(lacking[:6])}{more}" if lacking else "; no quantity is missing"
    return f"{len(launches)} launches in {ranges} NVTX ranges on {devices}{missing}."


def table(source: Source, form: Annotated[str, typer.Option("--format", help="csv, json or parquet.")] = "csv") -> None:
    """Print the tidy launches table, and nothing else, on standard output. What a file lacks goes to standard error.

    Example: python -m profiler table report.ncu-rep --format json
    """
    from profiler.table import records

    if form not in ("csv", "json", "parquet"):
        raise BadInput(f"--format: expected csv, json or parquet, got {form!r}.")
    bundle = _load(source)
    _say(bundle)
    launches = bundle.launches
    if form == "json":
        print(json.dumps(records(launches), indent=1, ensure_ascii=False))
    elif form == "csv":
        launches.to_csv(sys.stdout, index=False)
    else:
        sys.stdout.buffer.write(launches.to_parquet(None, index=False))


def evidence(source: Source, as_json: Json = False) -> None:
    """Check each claim of IO-awareness on measured data: holds, fails, or cannot tell.

    Example: python -m profiler evidence data/h200-evidence
    """
    from profiler.evidence import evaluate, shared_cause

    bundle = _load(source)
    _say(bundle)
    claims = evaluate(bundle)
    if as_json:
        print(json.dumps([claim.to_json() for claim in claims], indent=1, ensure_ascii=False))
        return
    if cause := shared_cause(bundle):
        print(f"{cause}\n")
    for claim in claims:
        print(f"{claim.verdict:<12} {claim.statement}\n{'':13}{claim.sentence}")


def scrub(
    file: Annotated[Path, typer.Argument(help="A .ncu-rep report.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Where to; default: NAME-scrubbed.ncu-rep beside it.")] = None,
) -> None:
    """Copy a report without the user, host and private paths that Nsight Compute embeds; its values stay the same.

    Example: python -m profiler scrub report.ncu-rep
    """
    from profiler.privacy import scrub_file

    target = out or file.with_name(f"{file.stem}-scrubbed{file.suffix}")
    if target.exists():
        raise BadInput(f"--out: expected a new file, got {target.name}, which is there already.")
    changed = scrub_file(file, target)
    print(f"{target} ({changed} bytes replaced)")


def _say(bundle: Bundle) -> None:
    """On standard error what reading had to say: what is missing, damaged or kept apart. Notes that a recording made
    stay in it."""
    from profiler.apart import PREFIX

    for note in bundle.notes:
        if bundle.profile.get("kind") == "report" or note.startswith(PREFIX):
            print(f"note: {note}", file=sys.stderr)


def _load(path: Path) -> Bundle:
    from profiler.parse import load

    return load(path)
