"""The last screen of a talk whose app has an address: that address in words and as a QR code."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from profiler.bundle import Bundle
from profiler.export import plates
from profiler.figures import canvas, labels
from profiler.figures.place import wrap

QUIET = 4  # modules of white around the code, as ISO/IEC 18004 asks for
DARK, LIGHT = "#000000", "#FFFFFF"  # in every theme: scanners want dark on light
REMEDY = "Run `pip install segno`."


def modules(address: str) -> list[list[bool]]:
    """The QR code of ``address``, row by row, True for dark; 15% of it may be lost. ImportError without segno."""
    import segno

    return [[bool(cell) for cell in row] for row in segno.make_qr(address, error="m").matrix]


def figure(bundle: Bundle, address: str, code: list[list[bool]], theme: str) -> go.Figure:
    """The code as one drawn path, its address beside it in lines that break where its parts end."""
    foot = canvas.foot(bundle.profile, "nothing here is measured", bundle.launches)
    c, width, height = plates.board("The same figures with every number behind them are in the app",
                                    "Scan the code, or type the address.", foot, theme)
    side = min(height, 0.45 * width)
    step = side / (len(code) + 2 * QUIET)
    c.figure.add_shape(type="rect", x0=0, y0=0, x1=side, y1=side, fillcolor=LIGHT, line={"width": 0}, name="code")
    c.figure.add_shape(type="path", path=_path(code, step), fillcolor=DARK, line={"width": 0}, name="code")
    base, _, query = address.partition("?")
    lines = [base, *(("?" if i == 0 else "&") + part for i, part in enumerate(query.split("&")) if part)]
    text = "<br>".join(wrap(labels.escape(line), 30, width - side - 80) for line in lines)
    plates.say(c, side + 60, 0, f"<b>{text}</b>", "address", size=30)
    return canvas.finish(c, pd.DataFrame([{"what": address}]))


def _path(code: list[list[bool]], step: float) -> str:
    """Every run of dark modules in a row as a closed rectangle, in pixels of the board."""
    out = []
    for y, row in enumerate(code):
        start = None
        for x, dark in enumerate([*row, False]):
            if dark and start is None:
                start = x
            elif not dark and start is not None:
                x0, x1, y0, y1 = (round((v + QUIET) * step, 2) for v in (start, x, y, y + 1))
                out.append(f"M {x0} {y0} L {x1} {y0} L {x1} {y1} L {x0} {y1} Z")
                start = None
    return " ".join(out)
