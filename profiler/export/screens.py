"""What the screens are drawn from and how: each figure of the stage, its reveals where they depend on the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import plotly.graph_objects as go

from profiler import evidence
from profiler.bundle import Bundle
from profiler.evidence import Claim, Facts, Headline
from profiler.export import advice, plates, sketches
from profiler.figures import labels, units
from profiler.figures.bounds import time_bounds
from profiler.figures.ceilings import device_roofs
from profiler.figures.ledger import ledger
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.quadrant import quadrant
from profiler.figures.roofline import roofline
from profiler.figures.scaling import scaling
from profiler.figures.theorem import theorem
from profiler.spec import AttentionShape


@dataclass(frozen=True)
class Scene:
    """What a chapter draws from: a bundle and, where it names attention calls, one shape and its claims by id."""

    bundle: Bundle
    shape: AttentionShape | None = None
    direction: str = "forward"

    @cached_property
    def facts(self) -> Facts:
        return Facts(self.bundle)

    @cached_property
    def claims(self) -> Mapping[str, Claim]:
        return {claim.id: claim for claim in evidence.evaluate(self.bundle, self.shape)}

    @cached_property
    def headline(self) -> Headline:
        return evidence.headline(self.bundle, self._shape, self.direction)

    @cached_property
    def names(self) -> tuple[str, str]:
        """The naive and the fused implementation that the screens compare."""
        naive, flash = (find(self._shape, self.direction) for find in (self.facts.naive, self.facts.flash))
        return (naive.config.implementation if naive else "naive", flash.config.implementation if flash else "flash2")

    @cached_property
    def everyone(self) -> tuple[str, ...]:
        """Every implementation recorded on the shape, naive first; repetitions of naive left out."""
        runs = [
            r.config.implementation
            for r in self.facts.runs
            if r.shape == self.shape
            and r.config.direction == self.direction
            and r.config.implementation not in ("naive_folded", "sdpa_math")
        ]
        return tuple(dict.fromkeys([name for name in self.names if name in runs] + runs))

    @property
    def _shape(self) -> AttentionShape:
        if self.shape is None:
            raise ValueError("this scene has no shape")
        return self.shape


def draw_problem(scene: Scene, theme: str) -> go.Figure:
    return time_bounds(scene.bundle, scene._shape, scene.names[:1], direction=scene.direction, theme=theme, size="talk")


def draw_tensors(scene: Scene, theme: str) -> go.Figure:
    return plates.tensors(scene.bundle, scene._shape, scene.facts.l2_size_bytes, theme)


def draw_ledger(names: slice) -> Callable[[Scene, str], go.Figure]:
    return lambda scene, theme: ledger(
        scene.bundle, scene._shape, scene.names[names], direction=scene.direction, theme=theme, size="talk"
    )


def naive_steps(scene: Scene) -> tuple[str, ...]:
    """Predicted bytes of every stage, then what was measured, stage by stage."""
    name = scene.names[0]
    run = scene.facts.run(name, scene._shape, scene.direction)
    return (rf"{name}/\w+/predicted|compulsory", *(f"{name}/{stage}" for stage in (run.launches if run else ())))


def flash_steps(scene: Scene) -> tuple[str, ...]:
    return (rf"{scene.names[1]}/\w+/predicted|{scene.names[1]}/header", rf"{scene.names[1]}/\w+")


def again_title(scene: Scene) -> str:
    h = scene.headline
    base = h.naive or h.naive_folded
    words = labels.implementation(scene.names[1])
    return (
        f"{words} moves {units.nbytes(h.flash and h.flash.dram_bytes)} through HBM, naive "
        f"{units.nbytes(base and base.dram_bytes)}: {units.times(h.ratio_by_floor)} the compulsory "
        f"{units.nbytes(h.compulsory_bytes)}"
    )


def special_title(scene: Scene) -> str:
    ratio = scene.claims["special_functions_bind_small_d"].value
    return f"At D = {scene._shape.head_dim} the exponentials ask for {units.times(ratio)} the time of the matmuls"


def block(scene: Scene) -> tuple[int, int] | None:
    """Rows and columns of the fused implementation's blocks, where they were recorded."""
    run = scene.facts.run(scene.names[1], scene._shape, scene.direction)
    rows, columns = (run.config.parameters.get(key) if run else None for key in ("block_m", "block_n"))
    return (int(rows), int(columns)) if rows and columns else None


def draw_tiles(scene: Scene, theme: str) -> go.Figure:
    return sketches.tiles(scene.bundle, scene._shape, block(scene), scene.names[1], theme)


def draw_online(scene: Scene, theme: str) -> go.Figure:
    h = scene.headline
    return sketches.online(
        scene.bundle,
        scene._shape,
        scene.names[1],
        h.flash.error_relative if h.flash else None,
        h.error_eager_relative,
        theme,
    )


def draw_roofline(scene: Scene, theme: str) -> go.Figure:
    points = attention_points(
        scene.bundle, scene._shape, scene.names, stages=scene.names[:1], direction=scene.direction
    )
    return roofline(
        points,
        attention_roofs(scene.bundle, scene._shape, scene.names, scene.direction),
        scene.bundle.profile,
        about=labels.shape(scene._shape),
        arrow=scene.names,
        theme=theme,
        size="talk",
    )


def draw_theorem(scene: Scene, theme: str) -> go.Figure:
    return theorem(scene.bundle, scene._shape, scene.names[1], theme=theme, size="talk")


def draw_special(scene: Scene, theme: str) -> go.Figure:
    return time_bounds(scene.bundle, scene._shape, scene.names[1:], direction=scene.direction, theme=theme, size="talk")


def draw_occupancy(scene: Scene, theme: str) -> go.Figure:
    return quadrant(scene.bundle, scene._shape, scene.names, direction=scene.direction, theme=theme, size="talk")


def draw_generations(scene: Scene, theme: str) -> go.Figure:
    return scaling(
        scene.bundle, scene._shape, "tflops", scene.everyone, direction=scene.direction, theme=theme, size="talk"
    )


def generation_steps(scene: Scene) -> tuple[str, ...]:
    peers = [name for name in scene.everyone if name not in scene.names]
    return (scene.names[1], *peers)


def draw_advice(scene: Scene, theme: str) -> go.Figure:
    return advice.board(scene.bundle, scene._shape, scene.everyone, scene.claims, theme)


def draw_launches(scene: Scene, theme: str) -> go.Figure:
    return roofline(
        launch_points(scene.bundle), device_roofs(scene.bundle), scene.bundle.profile, theme=theme, size="talk"
    )


def draw_kernels(quantity: str) -> Callable[[Scene, str], go.Figure]:
    return lambda scene, theme: plates.kernels(scene.bundle, quantity, theme)
