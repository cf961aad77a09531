"""Large made-up files for measuring the app: a bundle of many launches, a binary report of many megabytes.

`bundle` writes what a long sweep, or a report of a whole model, would leave: launches and counters by a seeded
generator around the made-up bundle of tests.synthetic and the metric names of a recorded report. `report` repeats the
launches of a recorded report, block by block, so that NVIDIA's own reader reads it. Neither is data about any GPU.
"""

from __future__ import annotations

import random
import struct
import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from profiler import bundle as bundles
from profiler import parse, table
from profiler.bundle import Bundle
from profiler.metrics import rules
from profiler.parse import blocks
from profiler.spec import AttentionShape, RunConfig
from tests import synthetic

REPORTS = Path(__file__).resolve().parents[1] / "data" / "reports"
ROW_GROUP = 1_000_000  # rows, as pandas writes them
KEY = ("config_id", "implementation", "stage", "direction", "dtype", "batch", "heads", "kv_heads", "nq", "nk",
       "head_dim", "mask", "range_path", "parameters", "range", "domain")


def bundle(folder: Path, launches: int = 20_000, metrics: int = 900, seed: int = 1, ours: bool = True) -> Path:
    """A bundle of so many launches with so many raw metrics each. ours: whether launches name their attention call."""
    chance = np.random.default_rng(seed)
    made = _ours(launches, seed) if ours else _foreign(launches, chance)
    template = _template(metrics)
    folder.mkdir(parents=True)
    bundles.write(Bundle(folder.name, made.profile, made.launches, timings=made.timings), folder)
    wide = _values(template, made.launches, chance)
    schema = pa.schema([("launch", pa.int64()), *((name, pa.large_string()) for name in list(template.columns)[1:])])
    per_group = max(1, ROW_GROUP // metrics)
    with parquet.ParquetWriter(folder / "metrics.parquet", schema, compression="zstd") as writer:
        for first in range(0, launches, per_group):
            rows = wide[first:first + per_group]
            n = len(rows)
            columns = {name: pa.array(np.tile(template[name].to_numpy(dtype=object, na_value=None), n),
                                      pa.large_string()) for name in ("metric", "unit", "used_for")}
            value = pa.array(rows.reshape(-1)).cast(pa.string()).cast(pa.large_string())
            launch = pa.array(np.repeat(np.arange(first, first + n), metrics))
            writer.write_table(pa.table({"launch": launch, "metric": columns["metric"], "unit": columns["unit"],
                                         "value": value, "used_for": columns["used_for"]}, schema=schema),
                               row_group_size=ROW_GROUP)
    return folder


def zipped(folder: Path) -> Path:
    """The bundle as people send it."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return path


def report(path: Path, megabytes: float, sample: str = "h100_five_kernels.ncu-rep") -> int:
    """A report of about so many megabytes whose launches are those of a sample, again and again; how many there are.

    Repeated are the blocks of one result each that bring no string table of their own: they use that of the first.
    """
    data = (REPORTS / sample).read_bytes()
    at = 8 + struct.unpack("<I", data[4:8])[0]
    repeated, launches = [], 0
    while at < len(data):
        length = struct.unpack("<I", data[at:at + 4])[0]
        header = dict(blocks._fields(data[at + 4:at + 4 + length]))
        end = at + 4 + length + int(header.get(5, 0))
        launches += int(header.get(2, 0))
        if header.get(2) == 1 and not header.get(4):
            repeated.append(data[at:end])
        at = end
    times = int((megabytes * 1e6 - len(data)) // sum(map(len, repeated)))
    with open(path, "wb") as file:
        file.write(data)
        for _ in range(times):
            file.writelines(repeated)
    return launches + times * len(repeated)


def _ours(launches: int, seed: int) -> Bundle:
    """A sweep over many shapes, each launch a few per cent off the made-up counters."""
    chance, rows, timings = random.Random(seed), [], []
    names = ("naive", "naive_folded", "flash2", "sdpa_flash")
    lengths = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
    shapes = product((1, 2, 4, 8, 16), (8, 12, 16, 24, 32, 40, 48, 64), (64, 128), ("full", "causal"), lengths)
    for batch, heads, head_dim, mask, n in shapes:
        for name in names:
            parameters = {"block_m": 128, "block_n": 64, "num_warps": 4} if name == "flash2" else {}
            config = RunConfig(name, AttentionShape(batch, heads, n, n, head_dim, mask=mask), parameters=parameters)
            found = synthetic.launch_rows(config, len(rows))
            for row in found:
                row["duration_ns"] *= chance.uniform(0.97, 1.05)
                moved = row["dram_read_bytes"] + row["dram_write_bytes"]
                row["dram_bytes_per_second"] = moved / row["duration_ns"] * 1e9
                row["achieved_occupancy_pct"] *= chance.uniform(0.95, 1.0)
            if len(rows) + len(found) > launches:
                break
            rows += found
            timings.append(synthetic.timing_row(config, found))
    while len(rows) < launches:  # what is left of the round number: launches of the last one again
        rows.append({**rows[-1], "launch": len(rows)})
    profile = {**synthetic.bundle((512,)).profile, "suite": "", "notes": ["Made up for a measurement of the app."]}
    return Bundle("large", profile, table.make("launches", rows[:launches]), timings=table.make("timings", timings))


def _foreign(launches: int, chance: np.random.Generator) -> Bundle:
    """A report of a whole model: the launches of the recorded sample over and over with other sizes, no ranges."""
    real = parse.load(REPORTS / "h100_five_kernels.ncu-rep")
    ours = _ours(launches, 2)
    rows = ours.launches.copy()
    rows["kernel"] = [f"{k.split('_kernel')[0]}_{i % 60}_kernel" for i, k in enumerate(rows["kernel"])]
    rows[list(KEY)] = None
    profile = {**real.profile, "gpu": synthetic.GPU, "notes": ["Made up for a measurement of the app."]}
    return Bundle("large-report", profile, table.validate("launches", rows), timings=table.make("timings"))


def _template(metrics: int) -> pd.DataFrame:
    """Names, units and uses of so many raw metrics, from the recorded sample: those that columns use, and others."""
    raw = parse.load(REPORTS / "h100_five_kernels.ncu-rep").metrics
    raw = raw[raw["launch"].eq(0)].drop_duplicates("metric")
    used, other = raw[raw["used_for"].notna()], raw[raw["used_for"].isna()]
    kept = pd.concat([used, other.iloc[:metrics - len(used)]]).sort_index()
    if len(kept) != metrics:
        raise ValueError(f"expected at most {len(raw)} metrics, got {metrics}")
    return kept.reset_index(drop=True)


def _values(template: pd.DataFrame, launches: pd.DataFrame, chance: np.random.Generator) -> np.ndarray:
    """(launches, metrics) float64: the sample's values a few per cent apart, counters of columns as the columns say."""
    base = pd.to_numeric(template["value"], errors="coerce").fillna(0).to_numpy(dtype=float)
    wide = base * chance.uniform(0.8, 1.2, (len(launches), len(base)))
    whole = base == np.round(base)
    wide[:, whole] = np.round(wide[:, whole])
    columns = {rule.names[0]: column for column, choices in rules.COLUMNS.items() for rule in choices
               if rule.formula is None}
    for i, name in enumerate(template["metric"]):
        if name in columns and launches[columns[name]].notna().all():
            wide[:, i] = launches[columns[name]].to_numpy(dtype=float)
    return wide
