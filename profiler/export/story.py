"""The storyline of a bundle: the screens whose claims hold on it, in order, and those left out with the reason.

``story.json`` in a bundle keeps a person's own order, titles and shapes; ``tell`` follows it and still drops what the
data does not carry.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go

from profiler import evidence
from profiler.bundle import PROFILE, Bundle
from profiler.errors import BadInput, DamagedFile
from profiler.evidence import HOLDS
from profiler.export import look, plates, reveal
from profiler.export.chapters import ATTENTION, REPORT, Chapter
from profiler.export.screens import Scene
from profiler.figures import canvas, heading, labels, units
from profiler.figures.style import THEMES
from profiler.spec import DIRECTIONS, AttentionShape

STORY = "story.json"
STORY_VERSION = 1
FIGURE_BYTES = 200_000  # of one figure in memory, about
MOST_BYTES = 1_000_000  # of a story file that is read
LEFT_OUT, LOOK = "left_out", "look"
ADDRESS = "FLASHSCOPE_ADDRESS"  # environment variable: where the app is served; figures then name the view in it


@dataclass(frozen=True)
class Pick:
    """One screen of a person's own story. title: "" for the generated finding; shape: its label, "" for the story's."""

    id: str
    title: str = ""
    shape: str = ""


@dataclass(frozen=True)
class Plan:
    """A person's own story. picks: the screens in order, () for all as they come; shape: "" for the default."""

    picks: tuple[Pick, ...] = ()
    shape: str = ""

    def to_json(self) -> dict[str, Any]:
        screens = [{"id": p.id, "title": p.title, "shape": p.shape} for p in self.picks]
        return {"story_version": STORY_VERSION, "shape": self.shape, "screens": screens}


class Figures(Mapping[str, go.Figure]):
    """A figure by theme; one that nobody has asked for is not drawn yet."""

    def __init__(self, draw: Callable[[str], go.Figure]) -> None:
        self._draw: Callable[[str], go.Figure] = draw
        self._drawn: dict[str, go.Figure] = {}

    def __getitem__(self, theme: str) -> go.Figure:
        if theme not in self._drawn and theme in THEMES:
            self._drawn[theme] = self._draw(theme)
        return self._drawn[theme]

    def __iter__(self) -> Iterator[str]:
        return iter(THEMES)

    def __len__(self) -> int:
        return len(THEMES)


@dataclass(frozen=True)
class Screen:
    """One screen: its sentence, its figures by theme, what appears step by step, notes, and the claims it rests on."""

    id: str
    topic: str
    title: str
    figures: Mapping[str, go.Figure] = field(repr=False, compare=False)
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    shape: AttentionShape | None = None

    @property
    def figure(self) -> go.Figure:
        """The figure in the light theme; its data is the same in every theme."""
        return self.figures["light"]


@dataclass(frozen=True)
class Dropped:
    """A screen that the data does not carry, and why."""

    id: str
    topic: str
    why: str


@dataclass(frozen=True)
class Story:
    """The screens of a bundle, what was left out, and the plan it follows."""

    bundle: Bundle
    screens: tuple[Screen, ...]
    left_out: tuple[Dropped, ...]
    plan: Plan
    shape: AttentionShape | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about: its figures'; the bundle is another's."""
        return FIGURE_BYTES * sum(len(screen.figures) for screen in self.screens)


def tell(bundle: Bundle, plan: Plan | None = None, *, folder: Path | None = None) -> Story:
    """The story of ``bundle``. plan: a person's own; None: the one saved in ``folder``, else the ready one.

    folder: where the bundle lies; its hash then stands on every figure.
    """
    if plan is None:
        plan = load(folder / STORY) if folder and (folder / STORY).is_file() else Plan()
    bundle = marked(bundle, folder)
    shapes = {s.label(): s for way in DIRECTIONS for s in evidence.shapes(bundle, way)}
    shape = _shape(plan.shape, shapes) if plan.shape else evidence.default_shape(bundle)
    chapters = {c.id: c for c in (*ATTENTION, *REPORT)}
    if unknown := [p.id for p in plan.picks if p.id not in (*chapters, LEFT_OUT, LOOK)]:
        raise BadInput(f"story: no screen is called {unknown[0]!r}.", remedy=f"The screens are {', '.join(chapters)}.")
    scenes: dict[AttentionShape | None, Scene] = {}
    kept: list[Screen] = []
    gone = [] if shape else [Dropped(c.id, c.topic, NO_SHAPE) for c in ATTENTION]

    forward = set(evidence.shapes(bundle))

    def way(own: AttentionShape | None) -> str:
        return "forward" if own is None or own in forward else "backward"

    def tell_of(picks: Sequence[Pick]) -> None:
        for pick in picks:
            own = _shape(pick.shape, shapes) if pick.shape else shape
            made = _screen(chapters[pick.id], scenes.setdefault(own, Scene(bundle, own, way(own))), pick)
            (kept if isinstance(made, Screen) else gone).append(made)  # type: ignore[arg-type]

    lone = {LEFT_OUT, LOOK, *(c.id for c in ATTENTION if shape is None)}
    tell_of([p for p in plan.picks if p.id not in lone] or ([Pick(c.id) for c in ATTENTION] if shape else []))
    if not kept:  # a report, or a bundle of which no claim holds: its launches speak
        tell_of([Pick(c.id) for c in REPORT])
    base = os.environ.get(ADDRESS)
    last = _look(bundle, Scene(bundle, shape, way(shape)), base) if base else None
    gone += [last] if isinstance(last, Dropped) else []
    if gone:
        kept.append(_left_out(bundle, gone))
    kept += [last] if isinstance(last, Screen) else []
    return Story(bundle, tuple(kept), tuple(gone), plan, shape)


NO_SHAPE = "this source does not say which attention call its launches belong to; `python -m profiler run` marks them"


def _screen(chapter: Chapter, scene: Scene, pick: Pick) -> Screen | Dropped:
    """The chapter on this data; Dropped where a claim does not hold or the figure has nothing to draw."""
    if chapter.forward and scene.direction != "forward":
        return Dropped(
            chapter.id, chapter.topic, "it tells of the forward pass, and this shape was recorded backward only"
        )
    needed = [scene.claims[name] for name in chapter.claims]
    for claim in needed:
        if claim.verdict != HOLDS:
            return Dropped(
                chapter.id, chapter.topic, f"“{claim.statement}” {VERDICT[claim.verdict]} here. {claim.sentence}"
            )
    head = heading.of(lambda: chapter.draw(scene, "light"))
    if head.empty:
        return Dropped(chapter.id, chapter.topic, f"{head.title}. {head.subtitle}")
    title = pick.title or (chapter.title(scene) if chapter.title else "")
    base = os.environ.get(ADDRESS)

    def draw(theme: str) -> go.Figure:
        figure = chapter.draw(scene, theme)
        if title:
            reveal.retitle(figure, title)
        if base:
            reveal.link(figure, view(base, scene, chapter))
        return figure

    notes = (chapter.note, *(claim.sentence for claim in needed))
    return Screen(
        chapter.id,
        chapter.topic,
        title or head.title,
        Figures(draw),
        chapter.steps(scene),
        tuple(note for note in notes if note),
        chapter.claims,
        scene.shape,
    )


VERDICT = {evidence.FAILS: "fails", evidence.CANNOT_TELL: "cannot be told"}


def view(base: str, scene: Scene, chapter: Chapter) -> str:
    """Where the app at ``base`` shows what the chapter shows."""
    query = {"source": scene.bundle.name}
    if s := scene.shape:
        n, heads = dict.fromkeys((s.nq, s.nk)), dict.fromkeys((s.heads, s.kv_heads))
        query["shape"] = "-".join(
            [f"B{s.batch}", f"H{'.'.join(map(str, heads))}", f"N{'.'.join(map(str, n))}", f"D{s.head_dim}", s.dtype]
        )
        query["mask"] = s.mask
    return f"{base.rstrip('/')}/{chapter.page}?{urlencode(query, safe=':,')}"


def reasons(gone: Sequence[Dropped]) -> dict[str, list[str]]:
    """Why -> the topics of the screens left out for it."""
    found: dict[str, list[str]] = {}
    for drop in gone:
        found.setdefault(drop.why, []).append(drop.topic)
    return found


def _left_out(bundle: Bundle, gone: Sequence[Dropped]) -> Screen:
    """The last screen: what this data does not carry."""
    by_reason = reasons(gone)
    rows = [
        plates.Line(labels.sentence("; ".join(topics)),
                    labels.escape(labels.sentence(labels.shorten(why.replace("`", ""), 320))))
        for why, topics in by_reason.items()
    ]
    rest = rows[6:]
    if rest:
        rows = [*rows[:6], plates.Line(f"And {len(rest)} more", "The manifest lists them all.")]
    foot = canvas.foot(bundle.profile, "nothing here is measured", bundle.launches)
    title = f"This data does not carry {units.whole(len(gone))} of the screens"
    about = "Left out, and why. Nothing else was made up in their place."
    figures = Figures(lambda theme: plates.sentences(title, about, rows, foot, theme))
    return Screen(LEFT_OUT, "what is left out", title, figures, (), tuple(f"{d.topic}: {d.why}" for d in gone))


def _look(bundle: Bundle, scene: Scene, base: str) -> Screen | Dropped:
    """The screen after all others: where the app shows this, as a QR code."""
    address, topic = view(base, scene, next(c for c in ATTENTION if not c.page)), "where to look further"
    try:
        code = look.modules(address)
    except ImportError:
        return Dropped(LOOK, topic, f"the code is drawn by the package segno, which is not installed. {look.REMEDY}")
    figures = Figures(lambda theme: look.figure(bundle, address, code, theme))
    return Screen(LOOK, topic, heading.of(lambda: figures["light"]).title, figures, (), (address,))


def _shape(label: str, shapes: dict[str, AttentionShape]) -> AttentionShape:
    if label not in shapes:
        raise BadInput(
            f"story: the bundle holds no shape {label!r}.",
            remedy=f"It holds {', '.join(list(shapes)[:6]) or 'none'}{' and more' if len(shapes) > 6 else ''}.",
        )
    return shapes[label]


def load(path: Path) -> Plan:
    """The plan in a story file. Raises BadInput or DamagedFile with what is wrong with it."""
    if not path.is_file():
        raise BadInput(f"story: {path.name} is not there.")
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"story: {path.name} is larger than {units.nbytes(MOST_BYTES)}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if int(data["story_version"]) > STORY_VERSION:
            raise BadInput(
                f"story: {path.name} was written by a later FlashScope.", remedy="Update FlashScope to use it."
            )
        picks = tuple(Pick(*(str(s.get(k, "")) for k in ("id", "title", "shape"))) for s in data.get("screens", ()))
        return Plan(picks, str(data.get("shape") or ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(
            f"story: {path.name} is not a story file ({type(error).__name__}: {str(error)[:80]})."
        ) from error


def save(plan: Plan, folder: Path) -> Path:
    """Write ``plan`` as the story of the bundle in ``folder``."""
    path = Path(folder) / STORY
    path.write_text(written(plan), encoding="utf-8")
    return path


def written(plan: Plan) -> str:
    """``plan`` as the file that keeps it."""
    return json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n"


def plan_of(story: Story) -> Plan:
    """The plan that tells ``story`` again, to be changed and saved."""
    picks = story.plan.picks or tuple(Pick(s.id) for s in story.screens if s.id not in (LEFT_OUT, LOOK))
    return Plan(picks, story.plan.shape or (story.shape.label() if story.shape else ""))


def marked(bundle: Bundle, folder: Path | None) -> Bundle:
    """``bundle`` with what its figures must say of it: the hash of its files and the SM clock under the profiler."""
    profile = dict(bundle.profile)
    if folder and (Path(folder) / PROFILE).is_file():
        profile["file"] = {"name": bundle.name, "sha256": digest(Path(folder))}
    clocks = bundle.launches["sm_clock_hz"].dropna()
    if len(clocks):
        clock = f"SM clock {units.clock(clocks.astype(float).median())} (median)"
        profile["clock_control"] = f"{profile['clock_control']}, {clock}" if profile.get("clock_control") else clock
    return bundle.described(profile)


@lru_cache(maxsize=32)
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for name, _, _ in files:
        total.update(hashlib.sha256(Path(name).read_bytes()).digest())
    return total.hexdigest()


def digest(folder: Path) -> str:
    """SHA-256 over the SHA-256 of profile.json and of each table, in the order of their names."""
    files = sorted([folder / PROFILE, *folder.glob("*.parquet")])
    return _digest(tuple((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in files))
