"""Where labels go: deterministic placement in pixels, so that no label covers a mark, a line, an edge or another label.

A page's figure stretches with its container, so a position must be free on every canvas width the figure may get: a
``Placer`` holds one ``Frame`` per width and accepts a position only where it is free in all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product

# Advance widths of Inter in thousandths of an em, by group of characters; others count as a wide letter.
_WIDTHS = {
    250: "'ijlI", 300: "!,.:; ·\u00a0", 350: "frt()/[]{|}", 400: '"²³', 450: "1-^_", 500: "s*?`–", 560: "7ackvxyzJL",
    620: "025689bdeghnopquEFZµ", 660: "34BKPRSTXY#$&+<=>~×≤Σ−αΔ", 710: "ADV", 760: "CGHNOQU", 820: "w%", 860: "m",
    900: "M", 960: "W@→←⇄",
}
_WIDTH = {character: width for width, characters in _WIDTHS.items() for character in characters}
SLACK = 1.03  # the system's sans may be wider than Inter
LINE_HEIGHT = 1.3  # Plotly's distance of baselines
FAR = 1.8  # text sizes from which on a leader line joins label and point
Segment = tuple[float, float, float, float]


@lru_cache(maxsize=20_000)  # wrapping and placing ask for the same words over and over
def text_width(text: str, size: float) -> float:
    """Pixels that the widest line of ``text`` needs at ``size`` px; tags do not count."""
    text = re.sub(r"<(su[bp])>(.*?)</\1>", lambda m: m[2][: -(-len(m[2]) * 7 // 10)], text)  # set at 70%
    lines = re.sub(r"</?(b|i|sub|sup|span|a)\b[^>]*>", "", text).split("<br>")
    plain = (line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for line in lines)
    return max(sum(_WIDTH.get(c, 760 if c < "\u2e80" else 1000) for c in line) for line in plain) * size / 1000 * SLACK


def text_height(text: str, size: float) -> float:
    """Pixels that ``text`` needs in height at ``size`` px."""
    return (text.count("<br>") * LINE_HEIGHT + 1.2) * size


def wrap(text: str, size: float, width: float) -> str:
    """``text`` with ``<br>``: no line wider than ``width`` pixels, lines of even length; unbreakable spaces hold."""
    lines = _fill(text, size, width)
    while len(lines) > 1 and width > size and len(narrower := _fill(text, size, width - size)) == len(lines):
        lines, width = narrower, width - size
    return "<br>".join(lines)


def _fill(text: str, size: float, width: float) -> list[str]:
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in canvas pixels, y downwards."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlaps(self, other: Box, gap: float = 0) -> bool:
        return (self.x0 < other.x1 + gap and other.x0 < self.x1 + gap
                and self.y0 < other.y1 + gap and other.y0 < self.y1 + gap)

    def inside(self, other: Box) -> bool:
        return self.x0 >= other.x0 and self.x1 <= other.x1 and self.y0 >= other.y0 and self.y1 <= other.y1

    def hit_by(self, x0: float, y0: float, x1: float, y1: float) -> bool:
        """Whether the segment (x0, y0)–(x1, y1) passes through the box (Liang and Barsky's clipping)."""
        low, high = 0.0, 1.0
        for start, step, least, most in ((x0, x1 - x0, self.x0, self.x1), (y0, y1 - y0, self.y0, self.y1)):
            if step == 0:
                if not least <= start <= most:
                    return False
                continue
            a, b = sorted(((least - start) / step, (most - start) / step))
            low, high = max(low, a), min(high, b)
            if low > high:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot on a canvas: where data coordinates fall in pixels. Ranges are Plotly's (log10 on a log axis)."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_log: bool = False
    y_log: bool = False

    def xy(self, x: float, y: float) -> tuple[float, float]:
        u = (_scaled(x, self.x_log) - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        v = (_scaled(y, self.y_log) - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return (self.left + u * (self.width - self.left - self.right),
                self.height - self.bottom - v * (self.height - self.top - self.bottom))

    @property
    def area(self) -> Box:
        return Box(self.left, self.top, self.width - self.right, self.height - self.bottom)


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else value


@dataclass(frozen=True, slots=True)
class Placement:
    """A free position of a label: pixel offset from its point (x right, y up), anchors, its box on each canvas."""

    text: str
    x: float
    y: float
    dx: float
    dy: float
    xanchor: str
    yanchor: str
    boxes: tuple[Box, ...]
    far: bool  # so far from its point that a leader line must join them


def _cross(a: Segment, b: Segment) -> bool:
    """Whether two segments cross."""
    def side(s: Segment, x: float, y: float) -> float:
        return (s[2] - s[0]) * (y - s[1]) - (s[3] - s[1]) * (x - s[0])

    return side(a, b[0], b[1]) * side(a, b[2], b[3]) < 0 and side(b, a[0], a[1]) * side(b, a[2], a[3]) < 0


def apart(middles: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Middles of boxes that do not overlap, in the same order and as near to ``middles`` as that allows.

    Boxes that would overlap form a block around the mean of what they ask for (isotonic regression by pooling); what
    would leave [low, high] is pushed back.
    """
    order = sorted(range(len(middles)), key=lambda i: middles[i])
    blocks: list[tuple[float, list[int]]] = []  # top, members from above
    for i in order:
        blocks.append((middles[i] - heights[i] / 2, [i]))
        while len(blocks) > 1 and blocks[-2][0] + sum(heights[j] for j in blocks[-2][1]) > blocks[-1][0]:
            members = blocks[-2][1] + blocks[-1][1]
            wished = [middles[j] - heights[j] / 2 - sum(heights[m] for m in members[:k])
                      for k, j in enumerate(members)]
            blocks[-2:] = [(sum(wished) / len(wished), members)]
    tops, floor = {}, low
    for top, members in blocks:
        for j in members:
            tops[j] = max(top, floor)
            top = floor = tops[j] + heights[j]
    ceiling = high
    for j in reversed(order):
        tops[j] = min(tops[j], ceiling - heights[j])
        ceiling = tops[j]
    return [tops[i] + heights[i] / 2 for i in range(len(middles))]


_SIDES = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
RIGHT, LEFT, ABOVE, BELOW = (1, 0), (-1, 0), (0, 1), (0, -1)
UPPER_LEFT, LOWER_RIGHT, UPPER_RIGHT, LOWER_LEFT = (-1, 1), (1, -1), (1, 1), (-1, -1)


def _leader(point: tuple[float, float], dx: float, dy: float) -> Segment:
    """The leader line, from just outside the marker to the label."""
    start = 16 / math.hypot(dx, dy)
    return point[0] + dx * start, point[1] - dy * start, point[0] + dx, point[1] - dy


@dataclass
class Placer:
    """Puts labels one after the other, most important first; what is put is in the way of what follows."""

    frames: Sequence[Frame]
    gap: float = 3
    _taken: list[list[Box]] = field(default_factory=list)
    _lines: list[list[Segment]] = field(default_factory=list)
    placed: list[Placement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._taken = [[] for _ in self.frames]
        self._lines = [[] for _ in self.frames]

    def avoid_point(self, x: float, y: float, radius: float) -> None:
        """Keep labels off the marker at data (x, y)."""
        for frame, taken in zip(self.frames, self._taken):
            px, py = frame.xy(x, y)
            taken.append(Box(px - radius, py - radius, px + radius, py + radius))

    def avoid_line(self, xs: Iterable[float], ys: Iterable[float]) -> None:
        """Keep labels off the polyline through the data points."""
        points = list(zip(xs, ys))
        for frame, lines in zip(self.frames, self._lines):
            pixels = [frame.xy(x, y) for x, y in points]
            lines += [(*a, *b) for a, b in pairwise(pixels)]

    def avoid_box(self, boxes: Sequence[Box]) -> None:
        """Keep labels off a rectangle, given for each frame."""
        for box, taken in zip(boxes, self._taken):
            taken.append(box)

    def put(self, text: str, x: float, y: float, size: float, *, distance: float = 8, reach: float | None = None,
            sides: Sequence[tuple[int, int]] = _SIDES, outside: float = 0) -> Placement | None:
        """The nearest free position for ``text`` at data (x, y), sides in order of preference; None where none is free.

        distance, reach: pixels between point and text, at first and at most (six lines unless given). outside: pixels
        by which the label may leave the plot area to the right (labels at line ends).
        """
        step = max(6.0, size / 2)
        rings = [distance + step * i for i in range(int(((reach or 6 * size) - distance) / step) + 1)]
        # a leader line may cross a line of the figure only where there is no other way
        for crossing, ring, side in product((False, True), rings, sides):
            diagonal = 0.75 if all(side) else 1.0
            dx, dy = (way * ring * diagonal for way in side)
            spot = self._spot(text, x, y, dx, dy, side, size, outside, crossing)
            if spot:
                self._take(spot)
                return spot
        return None

    def column(self, items: Sequence[tuple[str, float, float]], size: float, *, distance: float = 8,
               outside: float = 0) -> list[Placement | None]:
        """Labels of points that lie close together, one below the other in the order of the points.

        items: (text, x, y) in data units. The column stands right of the rightmost point, or left of the leftmost one;
        lower where a line is in the way; where nothing is free each label finds a place of its own. Results in the
        order of ``items``.
        """
        tries = ((side, far, lower) for lower in (0, 1, 2, 4, 6) for side in (RIGHT, LEFT) for far in (0, 1, 2, 4))
        for side, far, lower in tries:
            spots = self._column(items, size, distance + far * size, side, outside, lower * size)
            if spots:
                for spot in spots:
                    self._take(spot)
                return list(spots)
        return [self.put(text, x, y, size, distance=distance, outside=outside) for text, x, y in items]

    def _column(self, items: Sequence[tuple[str, float, float]], size: float, distance: float,
                side: tuple[int, int], outside: float, lower: float) -> list[Placement] | None:
        frame = self.frames[0]
        points = [frame.xy(x, y) for _, x, y in items]
        edge = max(px for px, _ in points) + distance if side == RIGHT else min(px for px, _ in points) - distance
        heights = [text_height(text, size) + self.gap for text, _, _ in items]
        middles = apart([py + lower for _, py in points], heights, frame.area.y0, frame.area.y1)
        spots = []
        for (text, x, y), (px, py), middle in zip(items, points, middles):
            dx, dy = edge - px, py - middle
            spot = self._spot(text, x, y, dx, dy, side, size, outside, True, own=items)
            if spot is None:
                return None
            bent = abs(dy) > 0.6 * size or abs(dx) > FAR * size
            spots.append(replace(spot, far=bent))
        return spots

    def _take(self, spot: Placement) -> None:
        self.placed.append(spot)
        for frame, box, taken, lines in zip(self.frames, spot.boxes, self._taken, self._lines):
            taken.append(box)
            if spot.far:
                lines.append(_leader(frame.xy(spot.x, spot.y), spot.dx, spot.dy))

    def _spot(self, text: str, x: float, y: float, dx: float, dy: float, side: tuple[int, int], size: float,
              outside: float, crossing: bool, own: Sequence[tuple[str, float, float]] = ()) -> Placement | None:
        """The position at (dx, dy) from the point where it is free on every canvas; leaders may pass ``own`` points."""
        width, height = text_width(text, size), text_height(text, size)
        far = math.hypot(dx, dy) > FAR * size
        boxes = []
        for frame, taken, lines in zip(self.frames, self._taken, self._lines):
            px, py = frame.xy(x, y)
            left = px + dx - width * (1 - side[0]) / 2
            top = py - dy - height * (1 + side[1]) / 2
            box = Box(left, top, left + width, top + height)
            area = frame.area
            if not box.inside(Box(area.x0, area.y0, area.x1 + outside, area.y1)):
                return None
            wide = Box(box.x0 - self.gap, box.y0 - 1, box.x1 + self.gap, box.y1 + 1)
            if any(box.overlaps(other, self.gap) for other in taken) or any(wide.hit_by(*line) for line in lines):
                return None
            if far:
                leader = _leader((px, py), dx, dy)
                ends = [Box(*at, *at) for at in ((px, py), *(frame.xy(a, b) for _, a, b in own))]
                if any(other.hit_by(*leader) and not any(e.inside(other) for e in ends) for other in taken):
                    return None
                if not crossing and any(_cross(leader, line) for line in lines):
                    return None
            boxes.append(box)
        xanchor = {1: "left", -1: "right", 0: "center"}[side[0]]
        yanchor = {1: "bottom", -1: "top", 0: "middle"}[side[1]]
        return Placement(text, x, y, dx, dy, xanchor, yanchor, tuple(boxes), far)
