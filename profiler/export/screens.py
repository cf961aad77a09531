"""The chapters of the storyline, in order: what each shows, which claims it needs, and how its reveals follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from profiler import devices, evidence, table
from profiler.bundle import Bundle
from profiler.evidence import Claim, Facts, Headline
from profiler.export import advice, plates, sketches
from profiler.figures import labels, units
from profiler.figures.bounds import time_bounds
from profiler.figures.ledger import ledger
from profiler.figures.points import attention_points, attention_roofs, launch_points
from profiler.figures.quadrant import quadrant
from profiler.figures.roofline import roofline
from profiler.figures.scaling import scaling
from profiler.figures.theorem import theorem
from profiler.model import Roof, roofs
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
        naive, flash = self.facts.naive(self._shape), self.facts.flash(self._shape)
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


@dataclass(frozen=True)
class Chapter:
    """One screen before its data is known.

    claims: ids that must hold. draw: scene and theme to a figure of talk size. steps: what appears after the first
    view, one pattern of mark and label names a key press. note: one or two sentences of explanation for the speaker.
    title: the finding, where the figure's own is not the one that this screen is for.
    """

    id: str
    topic: str
    draw: Callable[[Scene, str], go.Figure]
    claims: tuple[str, ...] = ()
    steps: Callable[[Scene], tuple[str, ...]] = lambda scene: ()
    note: str = ""
    title: Callable[[Scene], str] | None = None


def _problem(scene: Scene, theme: str) -> go.Figure:
    return time_bounds(scene.bundle, scene._shape, scene.names[:1], theme=theme, size="talk")


def _tensors(scene: Scene, theme: str) -> go.Figure:
    return plates.tensors(scene.bundle, scene._shape, scene.facts.l2_size_bytes, theme)


def _ledger(names: slice) -> Callable[[Scene, str], go.Figure]:
    return lambda scene, theme: ledger(scene.bundle, scene._shape, scene.names[names], theme=theme, size="talk")


def _naive_steps(scene: Scene) -> tuple[str, ...]:
    """Predicted bytes of every stage, then what was measured, stage by stage."""
    name = scene.names[0]
    run = scene.facts.run(name, scene._shape)
    return (rf"{name}/\w+/predicted|compulsory", *(f"{name}/{stage}" for stage in (run.launches if run else ())))


def _flash_steps(scene: Scene) -> tuple[str, ...]:
    return (rf"{scene.names[1]}/\w+/predicted|{scene.names[1]}/header", rf"{scene.names[1]}/\w+")


def _again_title(scene: Scene) -> str:
    h = scene.headline
    base = h.naive or h.naive_folded
    words = labels.implementation(scene.names[1])
    return (
        f"{words} moves {units.nbytes(h.flash and h.flash.dram_bytes)} through HBM, naive "
        f"{units.nbytes(base and base.dram_bytes)}: {units.times(h.ratio_by_floor)} the compulsory "
        f"{units.nbytes(h.compulsory_bytes)}"
    )


def _special_title(scene: Scene) -> str:
    ratio = scene.claims["special_functions_bind_small_d"].value
    return f"At D = {scene._shape.head_dim} the exponentials ask for {units.times(ratio)} the time of the matmuls"


def _block(scene: Scene) -> tuple[int, int] | None:
    run = scene.facts.run(scene.names[1], scene._shape)
    sizes = [run.config.parameters.get(key) for key in ("block_m", "block_n")] if run else []
    return (int(sizes[0]), int(sizes[1])) if len(sizes) == 2 and all(sizes) else None


def _tiles(scene: Scene, theme: str) -> go.Figure:
    return sketches.tiles(scene.bundle, scene._shape, _block(scene), scene.names[1], theme)


def _online(scene: Scene, theme: str) -> go.Figure:
    h = scene.headline
    return sketches.online(
        scene.bundle,
        scene._shape,
        scene.names[1],
        h.flash.error_relative if h.flash else None,
        h.error_eager_relative,
        theme,
    )


def _roofline(scene: Scene, theme: str) -> go.Figure:
    points = attention_points(scene.bundle, scene._shape, scene.names, stages=scene.names[:1])
    return roofline(
        points,
        attention_roofs(scene.bundle, scene._shape, scene.names),
        scene.bundle.profile,
        about=labels.shape(scene._shape),
        arrow=scene.names,
        theme=theme,
        size="talk",
    )


def _theorem(scene: Scene, theme: str) -> go.Figure:
    return theorem(scene.bundle, scene._shape, scene.names[1], theme=theme, size="talk")


def _special(scene: Scene, theme: str) -> go.Figure:
    return time_bounds(scene.bundle, scene._shape, scene.names[1:], theme=theme, size="talk")


def _occupancy(scene: Scene, theme: str) -> go.Figure:
    return quadrant(scene.bundle, scene._shape, scene.names, theme=theme, size="talk")


def _generations(scene: Scene, theme: str) -> go.Figure:
    return scaling(scene.bundle, scene._shape, "tflops", scene.everyone, theme=theme, size="talk")


def _generation_steps(scene: Scene) -> tuple[str, ...]:
    peers = [name for name in scene.everyone if name not in scene.names]
    return (scene.names[1], *peers)


def _advice(scene: Scene, theme: str) -> go.Figure:
    return advice.board(scene.bundle, scene._shape, scene.everyone, scene.claims, theme)


def device_roofs(bundle: Bundle) -> dict[str, list[Roof]]:
    """GPU name -> its roofs: counters of a launch that names a peak, ceilings recorded, the data sheet where known."""
    found = {}
    for device, rows in bundle.launches.groupby("device", dropna=False, sort=False):
        row = table.records(rows.sort_values("tensor_peak_flops_per_s", na_position="last").head(1))[0]
        name = "" if pd.isna(device) else str(device)
        sheet = devices.find(name, row["cc"], row["sm_count"])
        found[name] = roofs(
            counters=row,
            ceilings=bundle.profile.get("ceilings", ()),
            dtype=row["tensor_dtype"],
            device=sheet.spec(row["tensor_dtype"] or "fp16") if sheet else None,
        )
    return {"": next(iter(found.values()))} if len(found) == 1 else found


def _launches(scene: Scene, theme: str) -> go.Figure:
    return roofline(
        launch_points(scene.bundle), device_roofs(scene.bundle), scene.bundle.profile, theme=theme, size="talk"
    )


def _kernels(quantity: str) -> Callable[[Scene, str], go.Figure]:
    return lambda scene, theme: plates.kernels(scene.bundle, quantity, theme)


ATTENTION: tuple[Chapter, ...] = (
    Chapter(
        "problem",
        "the problem",
        _problem,
        ("speedup",),
        lambda scene: (rf"{scene.names[0]}/(?!measured).*", rf"{scene.names[0]}/measured"),
        "What each roof alone would ask for stands beside the time that was taken.",
    ),
    Chapter(
        "tensors",
        "S and P",
        _tensors,
        ("memory_linear",),
        lambda scene: ("tensor/S", "tensor/P|l2"),
        "Attention needs Q, K, V and O; the plain form also makes S and P, which grow with N².",
    ),
    Chapter(
        "bytes",
        "the bytes of naive attention, measured",
        _ledger(slice(0, 1)),
        ("naive_passes",),
        _naive_steps,
        "Every stage reads and writes whole N×N matrices. Hollow is what the algorithm asks for, filled what was "
        "counted; writes may fall short by what still lies in L2 when a kernel ends.",
    ),
    Chapter(
        "idea",
        "the idea",
        _tiles,
        ("no_s_p_in_hbm",),
        lambda scene: ("load", *(f"tile/{i}" for i in range(sketches.TILES)), "store"),
        "One block of queries stays on the SM while K and V stream by. S is made, used and dropped tile by tile.",
    ),
    Chapter(
        "online",
        "the online softmax",
        _online,
        ("same_result",),
        lambda scene: (*(f"row/{i}" for i in range(len(sketches.SCORES))), "whole", "error"),
        "Softmax needs the maximum and the sum of a whole row. Both can be carried from tile to tile.",
    ),
    Chapter(
        "again",
        "the bytes again, with flash",
        _ledger(slice(0, 2)),
        ("no_s_p_in_hbm", "compulsory_floor"),
        _flash_steps,
        "The same axis. The compulsory bytes are Q, K and V read once and O written once.",
        _again_title,
    ),
    Chapter(
        "roofline",
        "the roofline",
        _roofline,
        ("same_flops", "no_s_p_in_hbm"),
        lambda scene: (f"points/{scene.names[0]}", f"points/{scene.names[1]}|arrow"),
        "The same FLOPs over fewer bytes move the point to the right, where the HBM roof no longer holds it down.",
    ),
    Chapter(
        "theorem",
        "the theorem, where it shows",
        _theorem,
        ("theorem_l2_to_sm",),
        lambda scene: ("HBM|L2 → SM",),
        "K and V are read once for every block of query rows. A large L2 serves those reads, so they show between "
        "L2 and the SMs, and HBM stays at the compulsory bytes.",
    ),
    Chapter(
        "special",
        "a limit: special functions",
        _special,
        ("special_functions_bind_small_d",),
        lambda scene: (rf"{scene.names[1]}/(?!measured).*", rf"{scene.names[1]}/measured"),
        "Without the HBM bytes other roofs come near: the exponentials ask for as much time as the matmuls at a "
        "small head size.",
        _special_title,
    ),
    Chapter(
        "occupancy",
        "a limit that is none: occupancy",
        _occupancy,
        ("occupancy_not_speed",),
        lambda scene: (rf"points/{scene.names[1]}|{scene.names[1]}",),
        "Few warps are resident because each holds large tiles; they overlap their own loads and matmuls.",
    ),
    Chapter(
        "generations",
        "from FlashAttention-1 to 4",
        _generations,
        ("speedup",),
        _generation_steps,
        "FlashAttention-1 keeps S on the SM; 2 spreads query blocks over SMs and does less outside the matmuls; 3 "
        "overlaps loads, matmuls and softmax between warps on Hopper; 4 takes exponentials off the special-function "
        "units and rescales less often on Blackwell. The curves are those that were recorded.",
    ),
    Chapter(
        "advice",
        "what to do on this GPU",
        _advice,
        ("speedup",),
        lambda scene: tuple(f"line/{i}" for i in range(1, advice.MOST)),
        "Each line follows from this data; another GPU gives other lines.",
    ),
)

REPORT: tuple[Chapter, ...] = (
    Chapter(
        "launches",
        "the launches under their roofs",
        _launches,
        note="Each point is one launch; FLOPs and bytes as counted, time under the profiler.",
    ),
    Chapter("kernel_time", "time by kernel", _kernels("time"), note="Sums over launches of one kernel."),
    Chapter(
        "kernel_bytes",
        "HBM bytes by kernel",
        _kernels("bytes"),
        note="Sums over launches of one kernel, read and written.",
    ),
)
