"""Verbs that measure on this machine: doctor, run, bench."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from profiler.cli.options import (
    Batch,
    Callables,
    Direction,
    Dtypes,
    HeadDims,
    Heads,
    Implementations,
    Json,
    KvHeads,
    Lengths,
    Masks,
    Metrics,
    NcuPath,
    Settings,
    Suite,
    Sweep,
)
from profiler.errors import BadInput

if TYPE_CHECKING:
    from profiler.spec import RunConfig


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


def run(
    out: Annotated[Path, typer.Option(help="The bundle to write: a new folder.", show_default=False)],
    suite: Suite = None,
    sweep: Sweep = None,
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
    set_: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    no_counters: Annotated[
        bool, typer.Option("--no-counters", help="Time, memory and error only; labelled so.")
    ] = False,
    keep_reports: Annotated[
        bool, typer.Option("--keep-reports", help="Keep scrubbed .ncu-rep files in the bundle.")
    ] = False,
    metrics: Metrics = None,
    ncu: NcuPath = None,
    timeout: Annotated[float, typer.Option(help="Seconds without progress after which the run is ended.")] = 180.0,
    workers: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="dask: this machine's GPUs at once; dask=SCHEDULER: those of a Dask cluster."),
    ] = None,
) -> None:
    """Profile attention on this machine's GPU and write a bundle.

    Example: python -m profiler run --suite quick --out out/quick

    Example: python -m profiler run --sweep sweep.toml --out out/sweep

    Example: python -m profiler run --callable mine:attention -i flash2 --n 4096 --out out/mine

    Example: python -m profiler run -i naive -i flash2 --n 4096 -d 64 --mask causal --out out/mine

    Example: python -m profiler run -i flash2 --n 4096 -d 64 --set block_m=64,128 --set num_warps=4,8 --out out/warps

    Example: python -m profiler run --suite scaling --workers dask --out out/scaling
    """
    from profiler.collect import names as known
    from profiler.collect import suites, sweepfile
    from profiler.collect.run import run as profile

    names = _names(callable_, implementation)
    tuning = sweepfile.settings(set_ or ())
    shaped = bool(names or n or head_dim or mask or dtype or tuning) or (batch, heads, kv_heads) != (1, 16, 0)
    if sweep:
        if suite or shaped:
            raise BadInput("--sweep: expected no suite or shape options beside it, got both.", remedy="Leave out one.")
        configs = sweepfile.read(sweep)
    else:
        if suite and tuning:
            raise BadInput("--set: expected no suite beside it, got both.", remedy="Name implementations and shapes.")
        configs = _configs(suite, names, n, head_dim, mask, dtype, batch, heads, kv_heads, direction, default="quick")
        if tuning and not any(config.implementation in sweepfile.TUNABLE for config in configs):
            raise BadInput(f"--set: expected one of {', '.join(sweepfile.TUNABLE)} with -i: nothing else is tuned.")
        configs = sweepfile.tuned(configs, tuning)
    known.check(configs, f"{sweep.name}: " if sweep else "")
    with _ending_cleanly(out.with_name(out.name + ".partial")):
        made = profile(
            configs,
            out,
            counters=not no_counters,
            keep_reports=keep_reports,
            resume=resume,
            ncu_path=ncu,
            quiet_s=timeout,
            metric_set=metrics or suites.METRICS.get(suite or "", "evidence"),
            suite=suite or (None if shaped or sweep or direction != "forward" else "quick"),
            progress=_progress,
            command=_command_line(),
            timed_only=suites.timed_only(suite),
            workers=workers,
        )
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    print(out)


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
    out: Annotated[Optional[Path], typer.Option(help="Keep it as a bundle too: a new folder.")] = None,  # noqa: UP045
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished --out.")] = False,
    as_json: Json = False,
) -> None:
    """Time our kernels and the peers side by side in one run, without a profiler.

    Example: python -m profiler bench -i flash2 -i sdpa_flash --n 4096 -d 64 -d 128

    Example: python -m profiler bench --suite peers --dtype bf16 --out out/peers

    Example: python -m profiler bench --suite peers --direction backward
    """
    from profiler.collect import bench as benches
    from profiler.collect import names as known

    if resume and not out:
        raise BadInput("--resume: expected --out beside it: without a bundle nothing is kept to go on from.")
    names = _names(callable_, implementation)
    configs = _configs(suite, names, n, head_dim, mask, dtype, batch, heads, kv_heads, direction, default="bench")
    known.check(configs)
    with _ending_cleanly(out and out.with_name(out.name + ".partial")):
        if out:
            from profiler.collect.run import run as profile

            made = profile(configs, out, counters=False, resume=resume, quiet_s=timeout, suite=suite,
                           progress=_progress, command=_command_line())
            result = benches.of_bundle(made)
        else:
            result = benches.bench(configs, quiet_s=timeout, progress=_progress)
    print(json.dumps(result, indent=1) if as_json else benches.text(result))


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

    if suite:
        if batch != 1 or heads != 16 or kv_heads:
            raise BadInput("--suite: it has its own batch and heads.", remedy="Leave out --batch, --heads, --kv-heads.")
        found = suites.suite(suite, direction)
        return suites.narrowed(found, implementations=implementation or (), lengths=n or (), head_dims=head_dim or (),
                               masks=mask or (), dtypes=dtype or ())
    shaped = bool(implementation or n or head_dim or mask or dtype) or (batch, heads, kv_heads) != (1, 16, 0)
    if not shaped and direction == "forward":
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


@contextlib.contextmanager
def _ending_cleanly(partial: Path | None) -> Iterator[None]:
    """Ctrl-C and a request to end (SIGTERM) end what runs, say whether finished work lies in ``partial``, and give exit
    code 130."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        kept = partial is not None and partial.is_dir()
        said = "Finished work is kept: --resume goes on from it." if kept else "Nothing was written."
        print(f"Interrupted; no process was left behind. {said}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(text: str, done: int, total: int) -> None:
    print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)


def _command_line() -> str:
    """This command as provenance records it, paths reduced to file names."""
    from profiler.collect.ncu import public_command

    return public_command(["python", "-m", "profiler", *(shlex.quote(a) for a in sys.argv[1:])])
