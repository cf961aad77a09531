"""A sweep as a TOML file: every combination of the lists in it, or of several [[sweep]] tables one after the other.

    implementations = ["naive", "flash2"]
    n = [1024, 4096]            # queries and keys
    nq = [1]                    # queries where they are fewer than the keys; default: as many
    head_dims = [64, 128]       # default [64, 128]
    masks = ["full", "causal"]  # default ["full"]
    dtypes = ["bf16"]           # default ["bf16"]
    batch = 1
    heads = 16
    kv_heads = 0                # 0: as many as heads
    directions = ["forward"]    # or "backward"

Tuning parameters as lists, for our Triton kernels, the others are measured once: block_m, block_n, num_warps,
num_stages, num_splits; of a backward with key_ or query_ in front; tma and one_pass are true or false.
For flash_varlen q_lengths and k_lengths, a whole number a sequence of the batch; for flash_sparse block_size and
block_mask, a row a block of queries: 0 or 1 for each block of keys, or how many of them are kept, evenly spread.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from profiler.collect import suites
from profiler.errors import BadInput
from profiler.spec import DIRECTIONS, ELEMENT_BYTES, RunConfig

LISTS: Mapping[str, type] = {
    "implementations": str,
    "n": int,
    "nq": int,
    "head_dims": int,
    "masks": str,
    "dtypes": str,
    "directions": str,
}
NUMBERS = ("batch", "heads", "kv_heads")
BLOCKS = ("block_m", "block_n", "num_warps", "num_stages")
TUNING: Mapping[str, type] = {
    **dict.fromkeys(BLOCKS, int),
    "num_splits": int,
    "tma": bool,
    "one_pass": bool,
    **{f"{side}_{name}": int for side in ("key", "query") for name in BLOCKS},
}
TUNABLE = ("flash2", "decode", "flash1", "flash_varlen", "flash_sparse")
PATTERNS = {"q_lengths": "flash_varlen", "k_lengths": "flash_varlen", "block_mask": "flash_sparse",
            "block_size": "flash_sparse"}
NEEDED = ("implementations", "n")
CHOICES = {"dtypes": tuple(ELEMENT_BYTES), "directions": DIRECTIONS}
WORDS = {str: "texts", int: "whole numbers above 0", bool: "true or false"}


def read(path: Path) -> list[RunConfig]:
    """The configurations of a sweep file. Raises BadInput naming the key, what was expected and what is there."""
    data = _parse(Path(path))
    tables = data.pop("sweep", None)
    if tables is None:
        tables = [data]
    elif data:
        raise BadInput(
            f"{path.name}: expected all keys inside [[sweep]], got {', '.join(sorted(data))} outside.",
            remedy="Move them below a line [[sweep]], or drop that line.",
        )
    elif not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{path.name}: sweep: expected tables that begin with [[sweep]], got {_said(tables)}.")
    configs = [
        config
        for i, table in enumerate(tables)
        for config in _configs(table, path.name + (f": sweep {i + 1}" if len(tables) > 1 else ""))
    ]
    return list({config.config_id: config for config in configs}.values())


def _parse(path: Path) -> dict[str, Any]:
    for name in ("tomllib", "tomli"):
        try:
            toml = importlib.import_module(name)
            break
        except ImportError:
            continue
    else:
        raise BadInput(
            "--sweep: expected Python 3.11 or later, or the package tomli.",
            remedy="pip install tomli, or name the shapes by options.",
        )
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--sweep: {path.name} cannot be read ({error.strerror}).") from error
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name}: expected TOML ({error}).", remedy="As in n = [1024, 4096].") from error


def _configs(table: Mapping[str, Any], where: str) -> list[RunConfig]:
    known = (*LISTS, *NUMBERS, *TUNING, *PATTERNS)
    for key in table:
        if key not in known:
            raise BadInput(f"{where}: expected keys among {', '.join(known)}, got {key!r}.")
    for key in NEEDED:
        if key not in table:
            raise BadInput(f"{where}: {key}: expected a list of {WORDS[LISTS[key]]}, got nothing.")
    lists = {key: _list(where, key, table[key], kind) for key, kind in {**LISTS, **TUNING}.items() if key in table}
    numbers = {key: _number(where, key, table[key]) for key in NUMBERS if key in table}
    tuning = {key: lists.pop(key) for key in TUNING if key in lists}
    patterns = {key: _pattern(where, key, table[key]) for key in PATTERNS if key in table}
    queries = lists.pop("nq", None)
    try:
        options: dict[str, Any] = {"masks": ["full"], **lists, **numbers}
        configs = suites.sweep(options.pop("implementations"), options.pop("n"), **options)
    except BadInput as error:  # what the shapes themselves refuse: masks, heads
        raise BadInput(f"{where}: {error.what}", remedy=error.remedy) from error
    if queries:
        configs = [config.with_shape(nq=nq) for config in configs for nq in queries]
    return [
        replace(config, parameters={
            **config.parameters,
            **{key: value for key, value in patterns.items() if PATTERNS[key] == config.implementation},
        })
        for config in tuned(configs, tuning)
    ]


def tuned(configs: Iterable[RunConfig], tuning: Mapping[str, Sequence[Any]]) -> list[RunConfig]:
    """Each configuration with every combination of the values; what cannot be tuned stays as it is, once."""
    return [
        replace(config, parameters={**config.parameters, **dict(zip(tuning, values))}) if tunable else config
        for config in configs
        for tunable in [config.implementation in TUNABLE]
        for values in (product(*tuning.values()) if tunable else [()])
    ]


def settings(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values of tuning parameters as the command line writes them: block_m=64,128. Raises BadInput."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in TUNING:
            raise BadInput(f"--set: expected NAME=VALUE,… with a name among {', '.join(TUNING)}, got {text!r}.",
                           remedy="As in --set block_m=64,128.")
        words = {"true": True, "false": False}
        given = [words.get(value, int(value) if value.isdecimal() else value) for value in values.split(",")]
        found[name] = _list("--set", name, given, TUNING[name])
    return found


def _pattern(where: str, key: str, value: Any) -> Any:
    """A parameter that is taken as it is: lengths, or a block mask and its block size."""
    def whole(number: Any) -> bool:
        return type(number) is int and number >= 0

    if key == "block_size":
        return _number(where, key, value)
    rows = isinstance(value, list) and value and all(
        whole(row) or (key == "block_mask" and isinstance(row, list) and all(map(whole, row))) for row in value)
    if not rows:
        expected = "rows of 0 and 1, or counts" if key == "block_mask" else "whole numbers of at least 0"
        raise BadInput(f"{where}: {key}: expected a list of {expected}, got {_said(value)}.")
    return value


def _list(where: str, key: str, value: Any, kind: type) -> list[Any]:
    right = isinstance(value, list) and value and all(type(item) is kind for item in value)
    if not right or (kind is int and min(value) < 1):
        raise BadInput(f"{where}: {key}: expected a list of {WORDS[kind]}, got {_said(value)}.")
    for item in value:
        if item not in CHOICES.get(key, (item,)):
            raise BadInput(f"{where}: {key}: expected some of {', '.join(CHOICES[key])}, got {item!r}.")
    return value


def _number(where: str, key: str, value: Any) -> int:
    least = 0 if key == "kv_heads" else 1
    if type(value) is not int or value < least:
        raise BadInput(f"{where}: {key}: expected a whole number of at least {least}, got {_said(value)}.")
    return value


def _said(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
