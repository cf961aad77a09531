"""Bundles that say what cannot be: each is refused by a sentence that names the column or the key, none is computed
with."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from profiler import bundle as bundles
from profiler import table
from profiler.errors import BadInput, DamagedFile
from tests import synthetic
from tests.parse.conftest import read


@pytest.fixture(scope="module")
def made():
    return synthetic.bundle(lengths=(512,), masks=("full",), head_dims=(64,))


@pytest.mark.parametrize(("change", "word"), [
    ({"gpu": {"name": 5}}, "gpu.name"), ({"gpu": {"sm_count": "many"}}, "gpu.sm_count"),
    ({"gpu": {"l2_size_bytes": -1}}, "gpu.l2_size_bytes"), ({"gpu": {"memory_bytes": 10**400}}, "gpu.memory_bytes"),
    ({"gpu": {"sm_count": True}}, "gpu.sm_count"), ({"gpu": {"sm_count": float("nan")}}, "no JSON"),
    ({"ceilings": [1]}, "ceilings"), ({"ceilings": [{"quantity": "x"}]}, "ceilings"),
    ({"ceilings": [{"quantity": "dram_read_bytes_per_s", "value": "fast"}]}, "dram_read_bytes_per_s"),
    ({"ceilings": [{"quantity": "dram_read_bytes_per_s", "value": 0}]}, "positive"), ({"suite": ["quick"]}, "suite"),
    ({"created": 2026}, "created"), ({"driver": "\ud800"}, "surrogates"), ({"notes": "x"}, "notes")], ids=repr)
def test_a_profile_that_cannot_be(change, word, made, tmp_path):
    folder = bundles.write(made, tmp_path / "b")
    profile = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    (folder / "profile.json").write_text(json.dumps({**profile, **change}), encoding="utf-8")
    with pytest.raises(DamagedFile, match=word):
        bundles.read(folder)


def test_a_profile_without_end(made, tmp_path):
    folder = bundles.write(made, tmp_path / "b")
    (folder / "profile.json").write_text('{"schema_version": 1, "gpu": ' + '{"a":' * 50_000 + "1" + "}" * 50_001)
    with pytest.raises(DamagedFile, match="recursion"):
        bundles.read(folder)


@pytest.mark.parametrize(("name", "values", "column"), [
    ("launches", {"grid": "a,b,c"}, "grid"), ("launches", {"block": ""}, "block"),
    ("launches", {"launch": None}, "launch"),
    ("launches", {"launch": 2**62}, "launch"), ("launches", {"duration_ns": 1e308}, "duration_ns"),
    ("launches", {"duration_ns": 5e-324}, "duration_ns"),
    ("timings", {"parameters": '{"block_m": NaN}'}, "parameters"), ("timings", {"batch": 2**62}, "batch"),
    ("metrics", {"launch": None}, "launch")], ids=str)
def test_rows_that_cannot_be(name, values, column, made, tmp_path):
    folder = bundles.write(made, tmp_path / "b")
    frame = pd.read_parquet(folder / f"{name}.parquet", dtype_backend="numpy_nullable").head(1)
    frame.assign(**{key: pd.array([value], dtype=frame[key].dtype) for key, value in values.items()}).to_parquet(
        folder / f"{name}.parquet")
    with pytest.raises(BadInput, match=f"table {name}, column {column}: expected"):
        bundles.read(folder)


@pytest.mark.parametrize("value", ["1e400", "1e308", "-1e308", "inf", "9" * 400])
def test_a_counter_beyond_any_measurement_is_left_empty_and_said(value):
    """So that what was read of a report can always be opened."""
    loaded = read(f'"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n"","","byte","byte"\n'
                  f'"0","k","{value}","64"\n')
    row = loaded.launches.iloc[0]
    assert row["dram_read_bytes"] is pd.NA and row["dram_write_bytes"] == 64
    assert any("dram_read_bytes" in note for note in loaded.notes)
    table.check("launches", loaded.launches)
