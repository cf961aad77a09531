"""Everything of a story as files: deck, slides, PDF, pictures, data, tables, a manifest, and a zip of all."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from profiler import __version__
from profiler.bundle import Bundle
from profiler.errors import BadInput, FlashScopeError
from profiler.export import browser, deck, reveal, slides, tables
from profiler.export.story import LEFT_OUT, LOOK, STORY, Plan, Story, plan_of, tell
from profiler.figures import canvas, labels, spreadsheet
from profiler.figures.style import FONT, theme_of

MANIFEST = "manifest.json"
Progress = Callable[[str, int, int], None]
STEPS = ("storyline", "deck", "data and tables", "pictures", "slides", "PDF", "manifest and zip")
PROVENANCE = (
    "kind",
    "created",
    "gpu",
    "driver",
    "cuda",
    "torch",
    "triton",
    "cudnn",
    "ncu",
    "cache_control",
    "clock_control",
    "replay_mode",
    "git_commit",
    "suite",
    "file",
)


@dataclass
class Manifest:
    """What an export made (path in the folder -> SHA-256), what is missing and how to get it, and what it tells."""

    folder: Path
    name: str
    made: dict[str, str] = field(default_factory=dict)
    missing: list[dict[str, str]] = field(default_factory=list)
    story: Story | None = None

    @property
    def zip(self) -> Path:
        return self.folder / f"{self.name}.zip"

    def to_json(self) -> dict[str, Any]:
        story = self.story
        assert story is not None
        profile = story.bundle.profile
        return {
            "flashscope": __version__,
            "made_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "source": {"name": story.bundle.name, **{k: profile[k] for k in PROVENANCE if profile.get(k) is not None}},
            "shape": story.shape.label() if story.shape else None,
            "screens": [
                {"id": s.id, "title": s.title, "claims": list(s.claims), "shape": s.shape.label() if s.shape else None}
                for s in story.screens
            ],
            "left_out": [{"id": d.id, "topic": d.topic, "why": d.why} for d in story.left_out],
            "fonts": f"The system's own, in this order: {FONT}. The deck's help (?) says which one is in use.",
            "files": [{"path": path, "sha256": digest} for path, digest in self.made.items()],
            "missing": self.missing,
        }


def export(
    bundle: Bundle,
    out: Path,
    plan: Plan | None = None,
    *,
    folder: Path | None = None,
    theme: str = "light",
    progress: Progress | None = None,
    story: Story | None = None,
) -> Manifest:
    """Write everything about ``bundle`` into ``out``: a new or empty folder, or one that an earlier export made.

    plan: a person's own story; folder: where the bundle lies (its saved story and hash). theme: of the pictures, and
    the one the deck opens in. story: ``bundle`` already told by ``plan``, so that it is not told twice. Without a
    browser pictures and PDF are missing and the manifest says how to get them.
    """
    theme_of(theme)
    out = Path(out)
    _clear(out)
    say = _steps(progress)
    say()
    story = story or tell(bundle, plan, folder=folder)
    if all(s.id in (LEFT_OUT, LOOK) for s in story.screens):
        raise BadInput(
            f"export: {bundle.name} carries none of the screens.",
            remedy="\n".join(f"{d.topic}: {d.why}" for d in story.left_out[:3]),
        )
    manifest = Manifest(out, f"{_safe(story.bundle.name)}-talk", story=story)
    say()
    html = _write(manifest, "deck.html", deck.html(story, theme).encode("utf-8"))
    plan_text = json.dumps(plan_of(story).to_json(), indent=1, ensure_ascii=False) + "\n"
    _write(manifest, STORY, plan_text.encode("utf-8"))
    say()
    headline, foot = _data(manifest, story)
    say()
    chrome = browser.find()
    if chrome is None:
        _lack(
            manifest,
            "pictures (figures/*.svg, *.png, and those in slides.pptx)",
            "no Chrome or Chromium was found",
            browser.REMEDY,
        )
    drawn = _pictures(manifest, story, chrome, theme) if chrome else {}
    say()
    try:
        _write(manifest, "slides.pptx", slides.deck(story, headline, foot, drawn, theme))
    except ImportError:
        _lack(manifest, "slides.pptx", "python-pptx is not installed", "Run `pip install python-pptx`.")
    say()
    if chrome is None:
        _lack(manifest, "deck.pdf", "no Chrome or Chromium was found", browser.REMEDY)
    else:
        _try(manifest, "deck.pdf", lambda: _write(manifest, "deck.pdf", browser.pdf(chrome, html)))
    say()
    (out / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with zipfile.ZipFile(manifest.zip, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (MANIFEST, *manifest.made):
            archive.write(out / path, path)
    return manifest


def _data(manifest: Manifest, story: Story) -> tuple[pd.DataFrame | None, str]:
    """Each figure's CSV and the tables of headline numbers; the headline table and the provenance line."""
    for screen in story.screens:
        if screen.id not in (LEFT_OUT, LOOK):
            _write(manifest, f"figures/{screen.id}.csv", spreadsheet.csv(canvas.to_frame(screen.figure)))
    kinds = "the kind of each value stands beside it"
    foot = canvas.plain(canvas.foot(story.bundle.profile, kinds, story.bundle.launches))
    if story.shape is None:
        _lack(
            manifest,
            "headline.md, headline.tex",
            "this source does not say which attention call its launches are",
            "Profile with `python -m profiler run`, which marks them.",
        )
        return None, foot
    headline = tables.headline(story.bundle, story.shape)
    both = [
        (labels.sentence(labels.shape(story.shape)), headline),
        ("Every recorded shape, forward; bytes and times measured, ratios derived", tables.every_shape(story.bundle)),
    ]
    title = f"{story.bundle.name}: naive attention beside FlashAttention"
    _write(manifest, "headline.md", tables.markdown(title, both, foot).encode("utf-8"))
    _write(manifest, "headline.tex", tables.latex(both, foot).encode("utf-8"))
    return headline, foot


def _pictures(manifest: Manifest, story: Story, chrome: str, theme: str) -> dict[str, bytes]:
    """SVG and PNG of every figure into the folder; the pictures for slides by screen id."""
    jobs: dict[str, browser.Job] = {}
    for screen in story.screens:
        figure = screen.figures[theme]
        jobs |= {
            f"{screen.id}.svg": browser.Job(figure, "svg"),
            f"{screen.id}.png": browser.Job(figure, "png", 2),
            f"slide-{screen.id}": browser.Job(reveal.bare(figure), "png", 1.5),
        }
    drawn = (
        _try(
            manifest,
            "pictures (figures/*.svg, *.png, and those in slides.pptx)",
            lambda: browser.pictures(chrome, jobs),
        )
        or {}
    )
    for key, content in drawn.items():
        if not key.startswith("slide-"):
            _write(manifest, f"figures/{key}", content)
    return {screen.id: drawn[f"slide-{screen.id}"] for screen in story.screens if f"slide-{screen.id}" in drawn}


def _try(manifest: Manifest, what: str, make: Callable[[], Any]) -> Any:
    """``make()``; where the browser fails, None, and the manifest says so."""
    try:
        return make()
    except FlashScopeError as error:
        _lack(manifest, what, error.what, error.remedy)
        return None


def _lack(manifest: Manifest, what: str, why: str, remedy: str) -> None:
    manifest.missing.append({"what": what, "why": why, "remedy": remedy})


def _write(manifest: Manifest, path: str, content: bytes) -> Path:
    target = manifest.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    manifest.made[path] = hashlib.sha256(content).hexdigest()
    return target


def _clear(out: Path) -> None:
    """Make ``out`` ready: files of an earlier export go, anything else in it is refused."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out: expected a folder, got the file {out.name}.")
    out.mkdir(parents=True, exist_ok=True)
    if not any(out.iterdir()):
        return
    try:
        listed = [entry["path"] for entry in json.loads((out / MANIFEST).read_text(encoding="utf-8"))["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"--out: expected a new or empty folder, got {out.name}, which holds other things.",
            remedy="Name another folder; one that an earlier export made is fine too.",
        ) from error
    for path in [*listed, MANIFEST]:
        target = (out / str(path)).resolve()
        if out.resolve() in target.parents and target.is_file():
            target.unlink()


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "flashscope"


def _steps(progress: Progress | None) -> Callable[[], None]:
    """A function that reports the next step each time it is called."""
    done = iter(range(len(STEPS)))

    def say() -> None:
        i = next(done)
        if progress:
            progress(STEPS[i], i, len(STEPS))

    return say
