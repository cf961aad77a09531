"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

# Typer reads annotations while it runs, so they keep typing's spelling, which Python 3.10 to 3.13 all have.
Implementations = Annotated[
    list[str] | None, typer.Option("--implementation", "-i", metavar="NAME", help="Repeat for several.")
]
Callables = Annotated[
    list[str] | None,
    typer.Option("--callable", metavar="MODULE:FUNCTION", help="Of q, k, v (and causal); repeat for several."),
]
Direction = Annotated[str, typer.Option(help="forward or backward.")]
Lengths = Annotated[Optional[list[int]], typer.Option("--n", metavar="N", help="Sequence length; repeat for several.")]  # noqa: UP045
Heads = Annotated[int, typer.Option(help="Query heads.")]
KvHeads = Annotated[int, typer.Option(help="Key/value heads; 0: as many as query heads.")]
Batch = Annotated[int, typer.Option(help="Batch size.")]
HeadDims = Annotated[
    Optional[list[int]],  # noqa: UP045
    typer.Option("--head-dim", "-d", metavar="D", help="Head size; repeat for several."),
]
Masks = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--mask", metavar="MASK", help="full or causal; repeat for several."),
]
Dtypes = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--dtype", metavar="TYPE", help="bf16, fp16 or fp32; repeat for several."),
]
Suite = Annotated[str | None, typer.Option(help="quick, evidence, scaling, tuning, backward, decode, peers,"
                                           " shapes, ablation, ladder, options or memory; other options narrow it.")]
Sweep = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--sweep", help="A TOML file of shapes and tuning parameters; then no suite or shape options.")
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="NAME=VALUE,...",
                 help="A tuning parameter of our Triton kernels and its values: block_m=64,128; repeat for several."),
]
Metrics = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--metrics", help="What to count: evidence (unless the suite ladder asks for stalls), stalls (the same"
                                   " and what warps wait for), roofline, occupancy (fewest passes) or full."),
]
NcuPath = Annotated[Optional[str], typer.Option("--ncu", help="Path of ncu, where it is not on PATH.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Source = Annotated[Path, typer.Argument(help="A bundle, a .ncu-rep or an ncu export as CSV.", show_default=False)]
