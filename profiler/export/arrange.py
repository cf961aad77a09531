"""A told story in another order, with fewer screens and other titles: what a person changes without a new drawing."""

from __future__ import annotations

from dataclasses import replace

import plotly.graph_objects as go

from profiler.export import reveal
from profiler.export.story import LEFT_OUT, LOOK, Plan, Screen, Story
from profiler.figures import canvas


def arranged(told: Story, plan: Plan) -> Story | None:
    """``told`` in the order, with the screens and the titles of ``plan``, nothing drawn anew; None where the plan asks
    for what is not drawn: another shape, or the generated title of a screen that was told with one of its own."""
    titled = {(p.id, p.shape) for p in told.plan.picks if p.title}
    if plan.shape != told.plan.shape or any((p.id, p.shape) in titled and not p.title for p in plan.picks):
        return None
    known = {s.id: s for s in told.screens}
    if len(known) < len(told.screens) or {(p.id, p.shape) for p in plan.picks if p.shape} - {
            (p.id, p.shape) for p in told.plan.picks}:
        return None
    ends = [s for s in told.screens if s.id in (LEFT_OUT, LOOK)]
    screens = [_titled(known[p.id], p.title) for p in plan.picks if p.id in known]
    return replace(told, screens=(*screens, *ends), plan=plan) if screens else None


def _titled(screen: Screen, title: str) -> Screen:
    if not title or title == screen.title:
        return screen
    figures = {theme: go.Figure(figure) for theme, figure in screen.figures.items()}
    for figure in figures.values():
        reveal.retitle(figure, title)
    return replace(screen, title=canvas.title(figures["light"]), figures=figures)
