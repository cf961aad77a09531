"""The command line: ``python -m profiler VERB``, the same verbs as the pages.

Results go to standard output, the rest to standard error. Exit code 2: input that cannot
be used, 1: a run that failed, 0 otherwise.
"""

from __future__ import annotations

import codecs
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
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
    """Run the command line; every error is one sentence and a remedy, never a traceback."""
    _streams()
    try:
        try:
            call()
        finally:
            sys.stdout.flush()  # here, and not when Python ends: a full disk is an error like any other
    except FlashScopeError as error:
        _end(str(error), error.exit_code, error.detail if error.exit_code == 1 else "")
    except BrokenPipeError:  # the reader of a pipe has seen enough
        _silence()
        sys.exit(0)
    except KeyboardInterrupt:
        _end("Ended by Ctrl-C.", 130)
    except OSError as error:
        name = f" {error.filename}" if error.filename else ""
        _end(f"Cannot read or write{name}: {error.strerror or error}.\n"
             "Check that the folder is there, that you may write into it and that the disk has room.", 1)
    except MemoryError:
        _end("Not enough memory.\nGive it less at a time, or use a machine with more.", 1)
    except Exception as error:
        if os.environ.get("FLASHSCOPE_TRACEBACK"):
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        _end(f"Unexpected {type(error).__name__}: {str(error)[:200]} ({Path(at.filename).name}, line {at.lineno}).\n"
             "This is a fault of FlashScope. Report it with what it prints under FLASHSCOPE_TRACEBACK=1.", 1)


def _end(words: str, code: int, detail: str = "") -> None:
    print("\n".join([words, *(f"  | {line}" for line in detail.splitlines()[-20:])]), file=sys.stderr)
    _silence()
    sys.exit(code)


def _silence() -> None:
    """What was not written by now goes nowhere: Python would try again when it ends, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _streams() -> None:
    """Streams that take every character: one that the terminal's encoding lacks is written as \\u00d7, which JSON
    reads back; what goes to a stream that is closed goes nowhere."""
    codecs.register_error("flashscope", _escaped)
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="flashscope")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start:error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i:i + 4]}" for i in range(0, len(units), 4)), error.end


if __name__ == "__main__":
    main()
