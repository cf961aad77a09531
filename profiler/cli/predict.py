"""The verb predict: the IO model for one shape, from the algorithm alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from profiler.cli.options import Batch, Direction, Heads, Json, KvHeads
from profiler.errors import BadInput

if TYPE_CHECKING:
    from profiler.spec import DeviceSpec

LEVELS = {"dram": "HBM", "l2_to_sm": "L2 to SM", "sm_to_l2": "SM to L2"}


def predict(
    implementation: Annotated[
        str, typer.Option("--implementation", "-i", help="naive, naive_folded, flash1, flash2, decode, sdpa_flash, ...")
    ] = "flash2",
    n: Annotated[int, typer.Option(help="Queries, and keys unless --nk says otherwise.")] = 4096,
    nk: Annotated[Optional[int], typer.Option(help="Keys; without it as many as queries.")] = None,  # noqa: UP045
    head_dim: Annotated[int, typer.Option("--head-dim", "-d", help="Head size.")] = 64,
    mask: Annotated[str, typer.Option(help="full, causal or window:LEFT,RIGHT.")] = "full",
    dtype: str = "bf16",
    batch: Batch = 1,
    heads: Heads = 16,
    kv_heads: KvHeads = 0,
    direction: Direction = "forward",
    block_m: Annotated[int, typer.Option(help="Query rows of a block.")] = 128,
    block_n: Annotated[int, typer.Option(help="Key rows of a block.")] = 64,
    splits: Annotated[int, typer.Option(help="decode: parts that the keys are cut into.")] = 1,
    page_size: Annotated[int, typer.Option(help="decode: keys of a page; 0: not paged.")] = 0,
    device: Annotated[Optional[str], typer.Option(help="A GPU by its name, for time bounds.")] = None,  # noqa: UP045
    like: Annotated[Optional[Path], typer.Option(help="A bundle whose GPU the bounds are of.")] = None,  # noqa: UP045
    more: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--with", metavar="NAME=VALUE",
                     help="An option or list, e.g. softcap=30, k_lengths=[100,4096]; repeat."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict bytes by level and tensor, FLOPs and exponentials of one shape from the algorithm; nothing is measured.

    Example: python -m profiler predict -i naive --n 4096 -d 64 --mask causal --device "NVIDIA H200"
    """
    from profiler import model
    from profiler.model.implementations import BUILDERS, OURS
    from profiler.spec import AttentionShape, RunConfig

    known = sorted({name for name, _ in BUILDERS})
    if implementation not in known:
        raise BadInput(f"--implementation: expected one of {', '.join(known)}, got {implementation!r}.")
    positive = {"--n": n, "--nk": n if nk is None else nk, "--head-dim": head_dim, "--batch": batch, "--heads": heads,
                "--block-m": block_m, "--block-n": block_n, "--splits": splits}
    for name, value in positive.items():
        if value < 1:
            raise BadInput(f"{name}: expected a positive whole number, got {value}.")
    for name, value in {"--kv-heads": kv_heads, "--page-size": page_size}.items():
        if value < 0:
            raise BadInput(f"{name}: expected a whole number of at least 0, got {value}.")
    if implementation == "decode" and n > MOST_QUERIES:
        raise BadInput(f"--n: decode takes 1 to {MOST_QUERIES} queries, got {n}.",
                       remedy="Give the keys with --nk, for example --n 1 --nk 32768.")
    keys = n if nk is None else nk
    if splits > max(1, keys):
        raise BadInput(f"--splits: expected at most as many as keys, {keys:,}, got {splits:,}.")
    shape = AttentionShape(batch, heads, n, n if nk is None else nk, head_dim, kv_heads, dtype, mask)
    tiles: dict[str, int] = {"block_m": block_m, "block_n": block_n} if implementation in OURS else {}
    if direction == "backward":
        tiles = {f"{side}_{name}": value for side in ("key", "query") for name, value in tiles.items()}
    if implementation == "decode":
        tiles |= {"num_splits": splits} | ({"page_size": page_size} if page_size else {})
    config = RunConfig(implementation, shape, direction, {**tiles, **dict(map(_option, more or []))})
    found = model.predict(config, device=_device(device, like, dtype))
    if as_json:
        print(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    else:
        print(_text(shape.label(), found.to_json()))


OPTIONS = ("attn_bias", "bias_bytes", "key_padding_mask", "softcap", "alibi_slopes", "sinks", "dropout_p", "return_lse",
           "q_lengths", "k_lengths", "n_new", "block_mask", "block_size", "num_warps", "one_pass")
NUMBERS = {"softcap": 1e30, "dropout_p": 1, "bias_bytes": 1e15, "n_new": 1 << 24, "block_size": 1 << 24,
           "num_warps": 64}
LISTS = ("block_mask", "q_lengths", "k_lengths")
MOST_QUERIES = 16  # a sequence, of decode


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value a number, true or a list as JSON writes them."""
    name, _, value = text.partition("=")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    numbers = value and name in NUMBERS and (isinstance(found, bool) or not isinstance(found, (int, float)) or not (
        0 <= found <= NUMBERS[name]))
    if numbers or (value and name in LISTS and not isinstance(found, list)):
        wanted = f"a number from 0 to {NUMBERS[name]:g}" if numbers else "a list"
        raise BadInput(f"--with {name}: expected {wanted}, got {value!r:.60}.")
    if name not in OPTIONS or found is None or isinstance(found, str):
        raise BadInput(f"--with: expected NAME=VALUE with a name of {', '.join(OPTIONS)} and a number, true or a list, "
                       f"got {text!r}.")
    return name, found


def _device(name: str | None, like: Path | None, dtype: str) -> DeviceSpec | None:
    """The GPU that bounds are of: by name, or the one that a bundle was recorded on."""
    from dataclasses import replace

    from profiler import devices

    gpu: dict[str, Any] = {"name": name}
    if like is not None:
        from profiler.parse import load

        gpu = load(like).profile.get("gpu") or {}
    if gpu.get("name") is None:
        return None
    found = devices.find(gpu["name"])
    if found is None:
        raise BadInput(f"{'--like' if like else '--device'}: no data sheet of {gpu['name']!r} is known.",
                       remedy="Name it as reports do, for example \"NVIDIA H200\", or leave it out.")
    spec = found.spec(dtype)
    return replace(spec, l2_size_bytes=int(gpu["l2_size_bytes"])) if gpu.get("l2_size_bytes") else spec


def _text(label: str, found: dict[str, Any]) -> str:
    def number(value: Any, unit: str = "") -> str:
        return "not predicted" if value is None else f"{value:,}{unit}"

    from profiler.model.roofs import ROOF_NAMES

    config, largest = found["config"], found["largest_buffer"]
    rows = [
        ("compulsory", number(found["compulsory_total_bytes"], " B")),
        ("HBM", number(found["dram_bytes"], " B")),
        ("L2 to SM", number(found["l2_to_sm_bytes"], " B")),
        ("SM to L2", number(found["sm_to_l2_bytes"], " B")),
        ("matmul, visible", number(found["flops_visible"], " FLOP")),
        ("matmul, computed", number(found["flops_computed"], " FLOP")),
        ("special functions", number(found["special_ops"])),
        ("largest buffer", f"{number(largest['bytes'], ' B')} ({largest['name']})"),
        ("peak memory", number(found["peak_memory_bytes"], " B")),
        *((f"intensity, {LEVELS[level]}", "not predicted" if value is None else f"{value:,.1f} FLOP/B")
          for level, value in found["intensity_flop_per_byte"].items()),
        *((f"time, {ROOF_NAMES[roof]}", f"at least {ns / 1000:,.2f} µs{' (binding)' * (roof == found['binding'])}")
          for roof, ns in found["bounds_ns"].items()),
    ]
    lines = [f"{config['implementation']} {config['direction']} on {label}: predicted, not measured",
             *(f"{name:<26}{value}" for name, value in rows)]
    for stage in found["stages"]:
        moved = ", ".join(
            f"{verb} {name} {value:,}" for verb in ("reads", "writes") for name, value in stage[verb].items()
        )
        lines.append(f"  {stage['stage']}: {moved}")
        if blocks := stage["blocks_per_head"]:
            lines.append(f"    blocks of {blocks['block_m']} × {blocks['block_n']} a head: {blocks['full']:,} full, "
                         f"{blocks['crossing']:,} crossing, {blocks['skipped']:,} skipped")
        if stage["note"]:
            lines.append(f"    {stage['note']}")
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])])
