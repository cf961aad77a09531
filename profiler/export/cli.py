"""``python -m profiler export``: the talk deck, slides, pictures, data and tables of a bundle or a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer


def export(
    source: Annotated[Path, typer.Argument(help="A bundle, a .ncu-rep or an ncu export as CSV.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder to write: new, empty, or of an earlier export.", show_default=False)
    ],
    story: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A story file; default: the bundle's own story.json, else the ready story."),
    ] = None,
    theme: Annotated[str, typer.Option(help="light or dark.")] = "light",
    keep_story: Annotated[bool, typer.Option("--keep-story", help="Save the story told in the bundle.")] = False,
) -> None:
    """Make a talk of a bundle: HTML deck, PowerPoint, PDF, figures, their data, tables, and a zip of all. Offline.

    DIR/story.json lists the screens: reorder, drop or retitle them, and give the file to --story.

    Example: python -m profiler export data/h200-evidence --out out/talk
    """
    from profiler import parse
    from profiler.errors import BadInput
    from profiler.export import files
    from profiler.export import story as stories

    folder = source if source.is_dir() else None
    if keep_story and folder is None:
        raise BadInput("--keep-story: expected a bundle's folder, got a file.")
    plan = stories.load(story) if story else None
    made = files.export(parse.load(source), out, plan, folder=folder, theme=theme, progress=_progress)
    if keep_story and folder and made.story:
        print(f"kept {stories.save(stories.plan_of(made.story), folder)}", file=sys.stderr)
    for why, topics in stories.reasons(made.story.left_out if made.story else ()).items():
        print(f"left out: {'; '.join(topics)}: {why}", file=sys.stderr)
    for lack in made.missing:
        print(f"missing: {lack['what']}: {lack['why']}. {lack['remedy']}", file=sys.stderr)
    print(out)


def _progress(text: str, done: int, total: int) -> None:
    print(f"[{done + 1}/{total}] {text}", file=sys.stderr, flush=True)
