"""The chapters of the storyline, in order: what each shows, which claims it needs, and how its reveals follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go

from profiler.export import advice, screens, sketches
from profiler.export.screens import Scene


@dataclass(frozen=True)
class Chapter:
    """One screen before its data is known.

    claims: ids that must hold. draw: scene and theme to a figure of talk size. steps: what appears after the first
    view, one pattern of mark and label names a key press. note: one or two sentences of explanation for the speaker.
    title: the finding, where the figure's own is not the one that this screen is for. forward: tells of the forward
    pass only. page: of the app that shows it, by its address; "": the first.
    """

    id: str
    topic: str
    draw: Callable[[Scene, str], go.Figure]
    claims: tuple[str, ...] = ()
    steps: Callable[[Scene], tuple[str, ...]] = lambda scene: ()
    note: str = ""
    title: Callable[[Scene], str] | None = None
    forward: bool = False
    page: str = ""


ATTENTION: tuple[Chapter, ...] = (
    Chapter(
        "problem",
        "the problem",
        screens.draw_problem,
        ("speedup",),
        lambda scene: (rf"{scene.names[0]}/(?!measured).*", rf"{scene.names[0]}/measured"),
        "What each roof alone would ask for stands beside the time that was taken.",
        page="occupancy",
    ),
    Chapter(
        "tensors",
        "S and P",
        screens.draw_tensors,
        ("memory_linear",),
        lambda scene: ("tensor/S", "tensor/P|l2"),
        "Attention needs Q, K, V and O; the plain form also makes S and P, which grow with N².",
        forward=True,
        page="memory-io",
    ),
    Chapter(
        "bytes",
        "the bytes of naive attention, measured",
        screens.draw_ledger(slice(0, 1)),
        ("naive_passes",),
        screens.naive_steps,
        "Every stage reads and writes whole N×N matrices. Hollow is what the algorithm asks for, filled what was "
        "counted; writes may fall short by what still lies in L2 when a kernel ends.",
    ),
    Chapter(
        "idea",
        "the idea",
        screens.draw_tiles,
        ("no_s_p_in_hbm",),
        lambda scene: ("load", *(f"tile/{i}" for i in range(sketches.TILES)), "store"),
        "One block of queries stays on the SM while K and V stream by. S is made, used and dropped tile by tile.",
        forward=True,
    ),
    Chapter(
        "online",
        "the online softmax",
        screens.draw_online,
        ("same_result",),
        lambda scene: (*(f"row/{i}" for i in range(len(sketches.SCORES))), "whole", "error"),
        "Softmax needs the maximum and the sum of a whole row. Both can be carried from tile to tile.",
        forward=True,
    ),
    Chapter(
        "again",
        "the bytes again, with flash",
        screens.draw_ledger(slice(0, 2)),
        ("no_s_p_in_hbm", "compulsory_floor"),
        screens.flash_steps,
        "The same axis. The compulsory bytes are Q, K and V read once and O written once.",
        screens.again_title,
    ),
    Chapter(
        "roofline",
        "the roofline",
        screens.draw_roofline,
        ("same_flops", "no_s_p_in_hbm"),
        lambda scene: (f"points/{scene.names[0]}", f"points/{scene.names[1]}|arrow"),
        "The same FLOPs over fewer bytes move the point to the right, where the HBM roof no longer holds it down.",
        page="roofline",
    ),
    Chapter(
        "theorem",
        "the theorem, where it shows",
        screens.draw_theorem,
        ("theorem_l2_to_sm",),
        lambda scene: ("HBM|L2 → SM",),
        "K and V are read once for every block of query rows. A large L2 serves those reads, so they show between "
        "L2 and the SMs, and HBM stays at the compulsory bytes.",
        forward=True,
        page="memory-io",
    ),
    Chapter(
        "special",
        "a limit: special functions",
        screens.draw_special,
        ("special_functions_bind_small_d",),
        lambda scene: (rf"{scene.names[1]}/(?!measured).*", rf"{scene.names[1]}/measured"),
        "Without the HBM bytes other roofs come near: the exponentials ask for as much time as the matmuls at a "
        "small head size.",
        screens.special_title,
        forward=True,
        page="occupancy",
    ),
    Chapter(
        "occupancy",
        "a limit that is none: occupancy",
        screens.draw_occupancy,
        ("occupancy_not_speed",),
        lambda scene: (rf"points/{scene.names[1]}|{scene.names[1]}",),
        "Few warps are resident because each holds large tiles; they overlap their own loads and matmuls.",
        page="occupancy",
    ),
    Chapter(
        "generations",
        "from FlashAttention-1 to 4",
        screens.draw_generations,
        ("speedup",),
        screens.generation_steps,
        "FlashAttention-1 keeps S on the SM; 2 spreads query blocks over SMs and does less outside the matmuls; 3 "
        "overlaps loads, matmuls and softmax between warps on Hopper; 4 takes exponentials off the special-function "
        "units and rescales less often on Blackwell. The curves are those that were recorded.",
        page="scaling",
    ),
    Chapter(
        "advice",
        "what to do on this GPU",
        screens.draw_advice,
        ("speedup",),
        lambda scene: tuple(f"line/{i}" for i in range(1, advice.MOST)),
        "Each line follows from this data; another GPU gives other lines.",
        forward=True,
        page="scaling",
    ),
)

REPORT: tuple[Chapter, ...] = (
    Chapter(
        "launches",
        "the launches under their roofs",
        screens.draw_launches,
        note="Each point is one launch; FLOPs and bytes as counted, time under the profiler.",
        page="roofline",
    ),
    Chapter(
        "kernel_time",
        "time by kernel",
        screens.draw_kernels("time"),
        note="Sums over launches of one kernel.",
        page="launches",
    ),
    Chapter(
        "kernel_bytes",
        "HBM bytes by kernel",
        screens.draw_kernels("bytes"),
        note="Sums over launches of one kernel, read and written.",
        page="launches",
    ),
)
