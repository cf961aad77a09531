"""The command line: ``python -m profiler VERB``, the same verbs as the pages.

Results go to standard output, the rest to standard error. Exit code 2: input that cannot
be used, 1: a run that failed, 0 otherwise.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from profiler.errors import BadInput, FlashScopeError
from profiler.export.cli import export

if TYPE_CHECKING:
    from profiler.bundle import Bundle
    from profiler.spec import RunConfig

app = typer.Typer(
    name="profiler",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="FlashScope: see why FlashAttention is fast.",
)

# Typer reads annotations while it runs, so they keep typing's spelling, which Python 3.10 to 3.13 all have.
Implementations = Annotated[list[str] | None, typer.Option("--implementation", "-i", help="Name; repeat for several.")]
Callables = Annotated[
    list[str] | None, typer.Option("--callable", help="MODULE:FUNCTION of q, k, v (and causal); repeat for several.")
]
Direction = Annotated[str, typer.Option(help="forward or backward.")]
Lengths = Annotated[Optional[list[int]], typer.Option("--n", help="Sequence length; repeat for several.")]  # noqa: UP045
Heads = Annotated[int, typer.Option(help="Query heads.")]
KvHeads = Annotated[int, typer.Option(help="Key/value heads; 0: as many as query heads.")]
Batch = Annotated[int, typer.Option(help="Batch size.")]
HeadDims = Annotated[Optional[list[int]], typer.Option("--head-dim", "-d", help="Head size; repeat for several.")]  # noqa: UP045
Masks = Annotated[Optional[list[str]], typer.Option("--mask", help="full or causal; repeat for several.")]  # noqa: UP045
Dtypes = Annotated[Optional[list[str]], typer.Option("--dtype", help="bf16, fp16 or fp32; repeat for several.")]  # noqa: UP045
Suite = Annotated[str | None, typer.Option(help="quick, evidence, scaling, tuning, backward or decode.")]
NcuPath = Annotated[Optional[str], typer.Option("--ncu", help="Path of ncu, where it is not on PATH.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Source = Annotated[Path, typer.Argument(help="A bundle, a .ncu-rep or an ncu export as CSV.", show_default=False)]


def _version(value: bool) -> None:
    if value:
        from profiler import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Exit 0 only when profiling can work too.")] = False,
    ncu: NcuPath = None,
    as_json: Json = False,
) -> None:
    """Say what this machine has and lacks for the viewer and for profiling, with remedies.

    Example: python -m profiler doctor --strict
    """
    from profiler.collect import doctor as rooms

    checks = rooms.diagnose(ncu)
    if as_json:
        print(json.dumps([{name: getattr(c, name) for name in c.__dataclass_fields__} for c in checks], indent=1))
    else:
        for c in checks:
            print(
                f"{c.state:<8} {c.name}: {c.text}" + (f"\n{'':9}{c.remedy}" if c.remedy and c.state != rooms.OK else "")
            )
    if not rooms.ready(checks, rooms.PROFILING if strict else rooms.VIEWER):
        raise typer.Exit(1)


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="The bundle to write: a new folder.", show_default=False)],
    suite: Suite = None,
    implementation: Implementations = None,
    callable_: Callables = None,
    n: Lengths = None,
    head_dim: HeadDims = None,
    mask: Masks = None,
    dtype: Dtypes = None,
    batch: Batch = 1,
    heads: Heads = 16,
    kv_heads: KvHeads = 0,
    direction: Direction = "forward",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    no_counters: Annotated[
        bool, typer.Option("--no-counters", help="Time, memory and error only; labelled so.")
    ] = False,
    keep_reports: Annotated[
        bool, typer.Option("--keep-reports", help="Keep scrubbed .ncu-rep files in the bundle.")
    ] = False,
    ncu: NcuPath = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which the run is ended.")] = 180.0,
) -> None:
    """Profile attention on this machine's GPU and write a bundle.

    Example: python -m profiler run --suite quick --out out/quick
    Example: python -m profiler run --callable mine:attention -i flash2 --n 4096 --out out/mine
    Example: python -m profiler run -i naive -i flash2 --n 4096 -d 64 --mask causal --out out/mine
    """
    from profiler.collect.run import run as profile

    names = _names(callable_, implementation)
    configs = _configs(suite, names, n, head_dim, mask, dtype, batch, heads, kv_heads, direction, default="quick")
    made = profile(
        configs,
        out,
        counters=not no_counters,
        keep_reports=keep_reports,
        resume=resume,
        ncu_path=ncu,
        quiet_s=timeout,
        suite=suite or (None if n or implementation or callable_ else "quick"),
        progress=_progress,
        command=_command_line(),
    )
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    print(out)


@app.command()
def bench(
    suite: Suite = None,
    implementation: Implementations = None,
    callable_: Callables = None,
    n: Lengths = None,
    head_dim: HeadDims = None,
    mask: Masks = None,
    dtype: Dtypes = None,
    batch: Batch = 1,
    heads: Heads = 16,
    kv_heads: KvHeads = 0,
    direction: Direction = "forward",
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which it is ended.")] = 180.0,
    as_json: Json = False,
) -> None:
    """Time our kernels and the peers side by side in one run, without a profiler; no bundle is written.

    Example: python -m profiler bench -i flash2 -i sdpa_flash --n 4096 -d 64 -d 128
    """
    from profiler.collect import bench as benches

    names = _names(callable_, implementation)
    configs = _configs(suite, names, n, head_dim, mask, dtype, batch, heads, kv_heads, direction, default="bench")
    result = benches.bench(configs, quiet_s=timeout, progress=_progress)
    print(json.dumps(result, indent=1) if as_json else benches.text(result))


@app.command("import")
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


@app.command()
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


@app.command()
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


@app.command()
def evidence(source: Source, as_json: Json = False) -> None:
    """Check each claim of IO-awareness on measured data: holds, fails, or cannot tell.

    Example: python -m profiler evidence data/h200
    """
    from profiler.evidence import evaluate

    claims = evaluate(_load(source))
    if as_json:
        print(json.dumps([claim.to_json() for claim in claims], indent=1, ensure_ascii=False))
        return
    for claim in claims:
        print(f"{claim.verdict:<12} {claim.statement}\n{'':13}{claim.sentence}")


app.command()(export)


@app.command()
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


def _names(callables: list[str] | None, implementations: list[str] | None) -> list[str] | None:
    """What was named, functions first; a name without a module is told apart at once."""
    for name in callables or ():
        if ":" not in name:
            raise BadInput(f"--callable: expected MODULE:FUNCTION, got {name!r}.", remedy="As in mine:attention.")
    return [*(callables or ()), *(implementations or ())] or None


def _configs(
    suite: str | None,
    implementation: list[str] | None,
    n: list[int] | None,
    head_dim: list[int] | None,
    mask: list[str] | None,
    dtype: list[str] | None,
    batch: int,
    heads: int,
    kv_heads: int,
    direction: str,
    default: str,
) -> list[RunConfig]:
    from profiler.collect import suites

    if suite and (implementation or n or head_dim or mask or dtype):
        raise BadInput("--suite: expected no shape options beside it, got both.", remedy="Leave out one of the two.")
    if suite:
        return suites.suite(suite)
    if not (implementation or n or head_dim or mask or dtype) and direction == "forward":
        return suites.quick() if default == "quick" else suites.bench()
    return suites.sweep(
        implementation or suites.EVERYTHING,
        n or (4096,),
        head_dims=head_dim or (64, 128),
        masks=mask or ("full",),
        dtypes=dtype or ("bf16",),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        directions=(direction,),
    )


def _load(path: Path) -> Bundle:
    from profiler.parse import load

    return load(path)


def _progress(text: str, done: int, total: int) -> None:
    print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)


def _command_line() -> str:
    """This command as provenance records it, paths reduced to file names."""
    from profiler.collect.ncu import public_command

    return public_command(["python", "-m", "profiler", *(shlex.quote(a) for a in sys.argv[1:])])


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


def main(call: Callable[[], Any] = app) -> None:
    """Run the command line; errors of ours are one sentence and a remedy, never a traceback."""
    try:
        call()
    except FlashScopeError as error:
        print(error, file=sys.stderr)
        if error.detail and error.exit_code == 1:
            print("\n".join(f"  | {line}" for line in error.detail.splitlines()[-20:]), file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print(
            "Interrupted; no process was left behind. Finished work is kept: --resume goes on from it.", file=sys.stderr
        )
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
