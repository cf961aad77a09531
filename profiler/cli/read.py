"""Verbs on what was recorded: import, table, predict, evidence, scrub."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from profiler.cli.options import Batch, Heads, Json, KvHeads, Source
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
    publish(merge(out.name, [_load(file) for file in files]), out, [])
    print(out)


def table(source: Source, form: Annotated[str, typer.Option("--format", help="csv, json or parquet.")] = "csv") -> None:
    """Print the tidy launches table, and nothing else, on standard output.

    Example: python -m profiler table report.ncu-rep --format json
    """
    from profiler.table import records

    if form not in ("csv", "json", "parquet"):
        raise BadInput(f"--format: expected csv, json or parquet, got {form!r}.")
    launches = _load(source).launches
    if form == "json":
        print(json.dumps(records(launches), indent=1, ensure_ascii=False))
    elif form == "csv":
        launches.to_csv(sys.stdout, index=False)
    else:
        sys.stdout.buffer.write(launches.to_parquet(None, index=False))


def predict(
    implementation: Annotated[
        str, typer.Option("--implementation", "-i", help="naive, naive_folded, flash2, ...")
    ] = "flash2",
    n: Annotated[int, typer.Option(help="Queries, and keys unless --nk says otherwise.")] = 4096,
    nk: Annotated[int, typer.Option(help="Keys; 0: as many as queries.")] = 0,
    head_dim: Annotated[int, typer.Option("--head-dim", "-d", help="Head size.")] = 64,
    mask: str = "full",
    dtype: str = "bf16",
    batch: Batch = 1,
    heads: Heads = 16,
    kv_heads: KvHeads = 0,
    block_m: int = 128,
    block_n: int = 64,
    like: Annotated[Optional[Path], typer.Option(help="A bundle whose GPU the roofs are of.")] = None,  # noqa: UP045
    as_json: Json = False,
) -> None:
    """Predict bytes by level and tensor, FLOPs and exponentials of one shape from the algorithm; nothing is measured.

    Example: python -m profiler predict -i naive --n 4096 -d 64 --mask causal
    """
    from profiler.model import predict as model
    from profiler.spec import AttentionShape, RunConfig

    shape = AttentionShape(batch, heads, n, nk or n, head_dim, kv_heads, dtype, mask)
    blocks = (
        {}
        if implementation.startswith("naive") or implementation == "sdpa_math"
        else {"block_m": block_m, "block_n": block_n}
    )
    size = _load(like).profile.get("gpu", {}).get("l2_size_bytes") if like else None
    found = model(RunConfig(implementation, shape, parameters=blocks), l2_size_bytes=size).to_json()
    print(json.dumps(found, indent=1) if as_json else _prediction_text(shape.label(), found))


def evidence(source: Source, as_json: Json = False) -> None:
    """Check each claim of IO-awareness on measured data: holds, fails, or cannot tell.

    Example: python -m profiler evidence data/h200-evidence
    """
    from profiler.evidence import evaluate, shared_cause

    bundle = _load(source)
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


def _load(path: Path) -> Bundle:
    from profiler.parse import load

    return load(path)


def _prediction_text(label: str, found: dict[str, Any]) -> str:
    def number(value: Any) -> str:
        return "not predicted" if value is None else f"{value:,}"

    lines = [
        f"{found['config']['implementation']} on {label}: predicted, not measured",
        f"compulsory bytes      {number(found['compulsory_total_bytes'])}",
        f"DRAM bytes            {number(found['dram_bytes'])}",
        f"L2 to SM bytes        {number(found['l2_to_sm_bytes'])}",
        f"matmul FLOP (visible) {number(found['flops_visible'])}",
        f"special functions     {number(found['special_ops'])}",
        f"largest buffer        {number(found['largest_buffer']['bytes'])} ({found['largest_buffer']['name']})",
    ]
    for stage in found["stages"]:
        moved = ", ".join(
            f"{verb} {name} {value:,}" for verb in ("reads", "writes") for name, value in stage[verb].items()
        )
        lines.append(f"  {stage['stage']}: {moved}")
    return "\n".join(lines + [f"note: {note}" for note in found["notes"]])
