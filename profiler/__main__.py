"""The command line: ``python -m profiler VERB``, the same verbs as the pages.

Results go to standard output, the rest to standard error. Exit code 2: input that cannot
be used, 1: a run that failed, 0 otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from profiler.cli import measure, read
from profiler.cli.predict import predict
from profiler.errors import FlashScopeError
from profiler.export.cli import export

app = typer.Typer(
    name="profiler",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="FlashScope: see why FlashAttention is fast.",
)

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


VERBS: dict[str, Callable[..., None]] = {
    "doctor": measure.doctor, "run": measure.run, "bench": measure.bench, "import": read.import_, "table": read.table,
    "predict": predict, "evidence": read.evidence, "export": export, "scrub": read.scrub,
}
for name, verb in VERBS.items():
    app.command(name)(verb)


def main(call: Callable[[], Any] = app) -> None:
    """Run the command line; errors of ours are one sentence and a remedy, never a traceback."""
    try:
        call()
    except FlashScopeError as error:
        print(error, file=sys.stderr)
        if error.detail and error.exit_code == 1:
            print("\n".join(f"  | {line}" for line in error.detail.splitlines()[-20:]), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
