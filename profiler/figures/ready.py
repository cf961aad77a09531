"""A figure ready to be sent to a browser: checked, resolved and copied once, however often it is shown."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure


class Ready(BaseFigure):
    """The figure as plain values: all that is asked of it is its dict, and that needs neither copy nor check."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec, self._json = spec, ""

    def to_dict(self) -> dict[str, Any]:
        """The figure's data and layout, shared: read them, never change them."""
        return self._spec

    def json(self) -> str:
        """The same as JSON, written once."""
        if not self._json:
            self._json = str(self.to_json(validate=False))
        return self._json


def ready(figure: go.Figure) -> Ready:
    """``figure`` as it is drawn on a page, where a click selects a mark.

    Streamlit hands Plotly each figure twice, and Plotly draws again what it cannot tell to be the same: a template,
    ``meta``, packed arrays, and data without a revision. So the template is resolved into the layout, ``meta`` (the
    data of the download) stays here, arrays are lists, and the revision is a checksum.
    """
    layout = _values(figure.layout.to_plotly_json())
    data = [_values(trace.to_plotly_json()) for trace in figure.data]
    layout.pop("meta", None)
    template = layout.pop("template", {})
    data = [_merged((template.get("data", {}).get(trace["type"]) or [{}])[0], trace) for trace in data]
    for trace in data:
        if trace["type"] == "bar" or (trace["type"] == "scatter" and "markers" in (trace.get("mode") or "")):
            trace["unselected"] = {"marker": {"opacity": 1}}  # the others stay as they are when one is clicked
    layout = _resolved(template.get("layout", {}), layout, data)
    # what Streamlit would set itself, and draw again
    layout = {"hovermode": "closest", **layout, "clickmode": "event+select", "dragmode": "pan"}
    layout["datarevision"] = zlib.crc32(repr((data, layout)).encode())
    return Ready({"data": data, "layout": layout})


def _resolved(base: dict[str, Any], layout: dict[str, Any], data: list[dict[str, Any]]) -> dict[str, Any]:
    """``layout`` over the template's; each axis that the figure has, over the template's axis of that direction."""
    out = _merged({k: v for k, v in base.items() if k not in ("xaxis", "yaxis")}, layout)
    for way in "xy":
        drawn = {f"{way}axis{trace.get(f'{way}axis', way)[1:]}" for trace in data} | {f"{way}axis"}
        for name in {name for name in layout if re.fullmatch(f"{way}axis[0-9]*", name)} | drawn:
            out[name] = _merged(base.get(f"{way}axis", {}), layout.get(name, {}))
    return out


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``, level by level."""
    out = {**base, **over}
    for name, value in base.items():
        if isinstance(value, dict) and isinstance(over.get(name), dict):
            out[name] = _merged(value, over[name])
    return out


def _values(value: Any) -> Any:
    """A copy in which arrays and tuples are lists."""
    if isinstance(value, dict):
        return {name: _values(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_values(one) for one in value] if isinstance(value, (list, tuple)) else value
