"""The story as PowerPoint: editable titles and notes, native tables, and pictures where a browser could draw them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from profiler.export.story import Screen, Story
from profiler.figures import canvas, labels, units
from profiler.figures.place import text_width
from profiler.figures.style import THEMES, Theme
from profiler.model.roofs import ROOF_NAMES

WIDTH, HEIGHT, EDGE = 13.333, 7.5, 0.44  # inches, 16:9; the edge of the figures at this width
FONT = "Inter"  # PowerPoint takes its own sans where Inter is not installed
MOST_ROWS = 16
LEFT = ("What", "Why", "Kernel", "Scores", "Quantity", "Stage", "Tensor", "Way")


def deck(
    story: Story, headline: pd.DataFrame | None, foot: str, pictures: Mapping[str, bytes], theme: str = "light"
) -> bytes:
    """The .pptx of ``story``. headline: its table, or None. pictures: PNG by screen id, may be empty."""
    from pptx import Presentation
    from pptx.util import Inches

    look = THEMES[theme]
    show = Presentation()
    show.slide_width, show.slide_height = Inches(WIDTH), Inches(HEIGHT)
    show.core_properties.title = f"{story.bundle.name}: why FlashAttention is fast"
    show.core_properties.author = "FlashScope"
    for screen in story.screens:
        slide = _slide(show, screen.title, _line(screen, "subtitle"), look)
        picture = pictures.get(screen.id)
        if picture:
            _picture(slide, picture, screen)
        else:
            _table(slide, _short(canvas.to_frame(screen.figure)), 1.5, look)
            cut = f" · at most {MOST_ROWS} rows here, all in figures/{screen.id}.csv"
            _text(slide, _line(screen, "foot") + cut, HEIGHT - 0.62, 0.5, 9, look.muted)
        slide.notes_slide.notes_text_frame.text = "\n".join(screen.notes)
    if headline is not None:
        slide = _slide(show, "The headline numbers", _line(story.screens[0], "subtitle").split(". ")[0] + ".", look)
        _table(slide, headline, 1.4, look)
        _text(slide, foot, HEIGHT - 0.62, 0.5, 9, look.muted)
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def _slide(show: Any, title: str, subtitle: str, look: Theme) -> Any:
    from pptx.dml.color import RGBColor

    slide = show.slides.add_slide(show.slide_layouts[5])  # the layout with a title alone: outlines and readers find it
    slide.background.fill.solid()
    slide.background.fill.fore_color.rgb = RGBColor.from_string(look.ground[1:])
    _fill(slide.shapes.title, title, _points(title), look.ink, True, 0.3, 0.6)
    _text(slide, subtitle, 0.84, 0.56, 12, look.muted)
    return slide


def _points(title: str) -> int:
    """The largest type, in points, that sets ``title`` in one line; 14 where none does, which takes two."""
    room = 72 * (WIDTH - 2 * EDGE) * 0.94  # bold letters are wider
    return next((size for size in range(26, 13, -1) if text_width(title, size) <= room), 14)


def _text(slide: Any, text: str, top: float, height: float, points: int, colour: str) -> None:
    from pptx.util import Inches

    _fill(slide.shapes.add_textbox(0, 0, Inches(1), Inches(1)), text, points, colour, False, top, height)


def _fill(box: Any, text: str, points: int, colour: str, bold: bool, top: float, height: float) -> None:
    from pptx.dml.color import RGBColor
    from pptx.enum.text import MSO_ANCHOR, PP_ALIGN
    from pptx.util import Inches, Pt

    box.left, box.top, box.width, box.height = (Inches(v) for v in (EDGE, top, WIDTH - 2 * EDGE, height))
    frame = box.text_frame
    frame.word_wrap, frame.vertical_anchor = True, MSO_ANCHOR.TOP
    frame.margin_left = frame.margin_right = frame.margin_top = frame.margin_bottom = 0
    frame.text = text
    for paragraph in frame.paragraphs:
        paragraph.alignment = PP_ALIGN.LEFT
        font = paragraph.font
        font.name, font.size, font.bold, font.color.rgb = FONT, Pt(points), bold, RGBColor.from_string(colour[1:])


def _picture(slide: Any, picture: bytes, screen: Screen) -> None:
    """The figure below the title, as large as fits; its finding is its description for readers who hear it."""
    from pptx.util import Inches

    added = slide.shapes.add_picture(io.BytesIO(picture), 0, 0)
    room = HEIGHT - 1.36
    ratio = added.width / added.height
    width = min(WIDTH, room * ratio)
    added.width, added.height = Inches(width), Inches(width / ratio)
    added.left, added.top = Inches((WIDTH - width) / 2), Inches(HEIGHT - width / ratio)
    added._element.nvPicPr.cNvPr.set("descr", f"{screen.topic}: {screen.title}")


def _table(slide: Any, frame: pd.DataFrame, top: float, look: Theme) -> None:
    from pptx.dml.color import RGBColor
    from pptx.enum.text import PP_ALIGN
    from pptx.util import Inches, Pt

    if frame.empty:
        return
    rows, columns = len(frame) + 1, len(frame.columns)
    high = min(0.42, (HEIGHT - top - 0.8) / rows)
    table = slide.shapes.add_table(
        rows, columns, Inches(EDGE), Inches(top), Inches(WIDTH - 2 * EDGE), Inches(high * rows)
    ).table
    cells = [list(map(str, frame.columns)), *frame.astype(object).values.tolist()]
    widest = [max(8, min(60, max(len(str(row[c])) for row in cells))) for c in range(columns)]
    for c in range(columns):
        table.columns[c].width = Inches((WIDTH - 2 * EDGE) * widest[c] / sum(widest))
        for r in range(rows):
            table.rows[r].height = Inches(high)
            cell = table.cell(r, c)
            cell.text = str(cells[r][c])
            cell.margin_top = cell.margin_bottom = Inches(0.03)
            cell.fill.solid()
            cell.fill.fore_color.rgb = RGBColor.from_string((look.grid if r == 0 else look.ground)[1:])
            paragraph = cell.text_frame.paragraphs[0]
            paragraph.alignment = PP_ALIGN.LEFT if c == 0 or cells[0][c] in LEFT else PP_ALIGN.RIGHT
            font = paragraph.font
            font.name, font.size, font.bold = FONT, Pt(12 if rows < 14 else 10), r == 0
            font.color.rgb = RGBColor.from_string(look.ink[1:])


ROOFS = {**ROOF_NAMES, "measured": "taken"}
QUANTITIES = {"l2_to_sm": "L2 → SM", "hbm": "HBM"}
WORDS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (  # text of a figure's table: column, heading, form
    ("sentence", "What", str),
    ("why", "Why", str),
    ("label", "What", str),
    ("what", "What", str),
    ("implementation", "Implementation", labels.implementation),
    ("stage", "Stage", lambda v: labels.stage(v, short=True)),
    ("tensor", "Tensor", str),
    ("kernel", "Kernel", labels.kernel),
    ("row", "Roof", lambda v: ROOFS.get(v, v)),
    ("direction", "Way", str),
    ("quantity", "Quantity", lambda v: QUANTITIES.get(v, str(v))),
    ("scores", "Scores", str),
)
NUMBERS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("block_m", "Query rows", units.whole),
    ("n", "N", units.whole),
    ("m", "m", units.number),
    ("alpha", "α", units.number),
    ("l", "l", lambda v: units.number(v, 5)),
    ("flops", "Work", units.flop),
    ("bytes", "Bytes", units.nbytes),
    ("predicted_bytes", "Predicted", units.nbytes),
    ("ns", "Time", units.duration),
    ("intensity", "Intensity", units.intensity),
    ("flops_per_s", "Throughput", units.flops),
    ("achieved_occupancy_pct", "Occupancy", units.percent),
    ("tensor_pipe_pct", "Tensor Cores", units.percent),
    ("duration_ns", "Time, profiled", units.duration),
    ("value", "Value", units.number),
    ("kind", "Kind", str),
)


def _short(frame: pd.DataFrame) -> pd.DataFrame:
    """What fits a slide: the first rows, the known columns that differ from row to row, written as people read them."""
    for column, keep in (("why_not_drawn", pd.isna), ("roof_value", pd.isna), ("tensor", pd.notna)):
        if column in frame:
            frame = frame[keep(frame[column])]
    frame = frame.drop(
        columns=[
            c
            for c in ("implementation", "kernel")
            if c in frame and {"label", "stage"} & {*frame} and (c == "kernel" or "label" in frame)
        ]
    )
    shown, unit = frame.head(MOST_ROWS), frame.get("unit", {})

    def cells(name: str, write: Callable[[Any], str]) -> list[str]:
        return [
            "" if units.missing(v) else units.quantity(v, unit.get(i)) if name == "value" and unit.get(i) else write(v)
            for i, v in shown[name].items()
        ]

    return pd.DataFrame(
        {
            heading: cells(name, write)
            for name, heading, write in (*WORDS, *NUMBERS)
            if name in frame and (len(frame) < 2 or frame[name].nunique(dropna=False) > 1)
        }
    )


def _line(screen: Screen, name: str) -> str:
    """A line of the screen's figure ("subtitle", "foot") as plain text."""
    return next((canvas.plain(a.text) for a in screen.figure.layout.annotations if a.name == name), "")
