"""The tidy tables and bundles: what goes in comes out, and what does not fit is refused by name."""

import json

import pandas as pd
import pytest

from profiler import apart, bundle, evidence, table
from profiler.errors import BadInput, DamagedFile, NewerSchema
from profiler.spec import CONFIG_KEY, AttentionShape, Mask, RunConfig
from tests import synthetic


def test_absent_values_are_null_not_zero():
    frame = table.make("launches", [{"launch": 0, "dram_read_bytes": 0.0}, {"launch": 1}])
    assert frame["dram_read_bytes"].isna().tolist() == [False, True]
    assert table.records(frame)[0]["dram_read_bytes"] == 0
    assert table.records(frame)[1]["dram_read_bytes"] is None


def test_unknown_columns_are_refused():
    with pytest.raises(KeyError, match="dram_reads"):
        table.make("launches", [{"dram_reads": 1}])
    with pytest.raises(BadInput, match="surprise"):
        table.validate("launches", pd.DataFrame({"surprise": [1]}))


def test_text_where_a_number_belongs_is_refused_with_the_column():
    with pytest.raises(BadInput, match="duration_ns"):
        table.validate("launches", pd.DataFrame({"duration_ns": ["fast"]}))


def test_both_tables_carry_the_whole_configuration_key():
    for name in ("launches", "timings"):
        assert set(CONFIG_KEY) <= {c.name for c in table.TABLES[name]}


def test_bundle_round_trip(tmp_path):
    before = synthetic.bundle(lengths=(512, 1024))
    after = bundle.read(bundle.write(before, tmp_path / "synthetic"))
    for name in table.TABLES:
        pd.testing.assert_frame_equal(getattr(before, name), getattr(after, name))
    assert after.profile["gpu"]["name"] == "Synthetic GPU"


def test_newer_schema_is_refused_and_damage_is_named(tmp_path):
    folder = bundle.write(synthetic.bundle(lengths=(512,)), tmp_path / "b")
    (folder / "launches.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DamagedFile, match=r"launches\.parquet"):
        bundle.read(folder)
    profile = json.loads((folder / "profile.json").read_text()) | {"schema_version": bundle.SCHEMA_VERSION + 1}
    (folder / "profile.json").write_text(json.dumps(profile))
    with pytest.raises(NewerSchema, match="schema 2"):
        bundle.read(folder)
    with pytest.raises(BadInput, match=r"profile\.json"):
        bundle.read(tmp_path)


def test_config_id_is_safe_inside_an_nvtx_filter_and_comes_back():
    shape = AttentionShape(1, 8, 100, 203, 64, kv_heads=2, mask="window:15,0")
    config = RunConfig("flash2", shape, parameters={"block_m": 64})
    assert config.config_id == "flash2-forward-bf16-b1-h8-hk2-q100-k203-d64-window_15_0-block_m64"
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("mask", "row", "nq", "nk", "keys"), [
    ("full", 0, 2, 5, [0, 1, 2, 3, 4]),
    ("causal", 0, 2, 5, [0, 1, 2, 3]),   # bottom-right: 0 + 5 - 2 = key 3 is the last
    ("causal", 1, 2, 5, [0, 1, 2, 3, 4]),
    ("causal", 0, 5, 2, []),             # 0 + 2 - 5 < 0: sees nothing
    ("causal", 3, 5, 2, [0]),
    ("window:1,0", 3, 4, 4, [2, 3]),
    ("window:-1,1", 0, 4, 4, [0, 1]),
])
def test_visible_keys_by_hand(mask, row, nq, nk, keys):
    assert list(Mask.parse(mask).visible(row, nq, nk)) == keys


@pytest.mark.parametrize("bad", [{"heads": 3, "kv_heads": 2}, {"dtype": "int8"}, {"mask": "triangle"}, {"batch": 0}])
def test_impossible_shapes_are_refused(bad):
    with pytest.raises(BadInput):
        AttentionShape(**{"batch": 1, "heads": 4, "nq": 8, "nk": 8, "head_dim": 16, **bad})


@pytest.mark.parametrize(("column", "value", "message"), [
    ("duration_ns", -10.0, "0 or more, got -10"), ("dram_read_bytes", float("inf"), "got inf"),
    ("parameters", "[1,2]", "JSON object"), ("parameters", "{not json", "JSON object"), ("mask", "diagonal", "mask: "),
    ("dtype", "bf17", "dtype: expected"), ("nq", -512, "got -512"), ("nq", 1 << 30, "nq: expected"),
    ("direction", "sideways", "direction: expected"), ("head_dim", None, "head_dim missing"),
    ("kv_heads", 3, "divisor of heads"), ("nk", 256, "not that of the other rows"),
    ("launch", 7, "stands more than once"), ("grid", "a,b,c", "x,y,z")])
def test_a_launch_that_cannot_be_is_kept_apart_with_its_configuration(tmp_path, column, value, message):
    """Row 3 is the last but one of naive's four launches: without it naive would move too few bytes."""
    before = synthetic.bundle(lengths=(512, 1024), masks=("full",), head_dims=(64,))
    before.launches.loc[3, column] = value
    read = bundle.read(bundle.write(before, tmp_path / "b"))
    gone = {before.launches["config_id"][3]} | ({before.launches["config_id"][7]} if column == "launch" else set())
    assert set(before.launches["config_id"]) - set(read.launches["config_id"]) == gone
    assert len(read.launches) == (~before.launches["config_id"].isin(gone)).sum()
    assert len(read.timings) == len(before.timings), "its time was measured apart from its counters"
    said = [note for note in read.notes if note.startswith(apart.PREFIX)]
    assert "row 3 of launches" in said[0] and message in said[0] and "launches of the same configurations" in said[-1]
    assert evidence.evaluate(read)[0].verdict == "holds", "the rest is judged"


def test_a_timing_that_cannot_be_is_kept_apart_alone(tmp_path):
    before = synthetic.bundle(lengths=(512,))
    before.timings.loc[2, "mask"] = "window:1"
    folder = bundle.write(before, tmp_path / "b")
    read = bundle.read(folder)
    assert len(read.timings) == len(before.timings) - 1 and len(read.launches) == len(before.launches)
    frame = pd.read_parquet(folder / "timings.parquet")
    frame.assign(nq=[*frame["nq"].astype(str)[:-1], "many"]).to_parquet(folder / "timings.parquet")
    read = bundle.read(folder)
    assert len(read.timings) == len(before.timings) - 2
    assert any("expected whole numbers, got many" in note for note in read.notes)
    assert bundle.read(bundle.write(read, tmp_path / "c")).notes == read.notes, "nothing new is left to be said"


def test_no_row_that_can_be_is_no_bundle(tmp_path):
    before = synthetic.bundle(lengths=(512,))
    before.launches["dtype"] = pd.array(["bf17"] * len(before.launches), dtype="string")
    with pytest.raises(BadInput, match=r"table launches, dtype: expected one of .* in row 0"):
        bundle.read(bundle.write(before, tmp_path / "b"))


def test_fractions_and_doubled_rows_are_refused(tmp_path):
    before = synthetic.bundle(lengths=(512,))
    with pytest.raises(BadInput, match="nq"):
        table.validate("launches", before.launches.assign(nq=1.5))
    twice = bundle.Bundle("b", before.profile, table.concat("launches", [before.launches] * 2))
    with pytest.raises(BadInput, match="more than once"):
        bundle.read(bundle.write(twice, tmp_path / "b"))


@pytest.mark.parametrize("change", [{"notes": 5}, {"gpu": "x"}, {"schema_version": -3}, {"schema_version": 1e300}])
def test_a_profile_of_another_make_is_damaged(tmp_path, change):
    folder = bundle.write(synthetic.bundle(lengths=(512,)), tmp_path / "b")
    profile = json.loads((folder / "profile.json").read_text()) | change
    (folder / "profile.json").write_text(json.dumps(profile))
    with pytest.raises(DamagedFile, match=next(iter(change))):
        bundle.read(folder)


@pytest.mark.parametrize(("name", "value"), [("block_m", -7), ("block_n", 0), ("num_warps", "4")])
def test_impossible_parameters_are_refused(name, value):
    with pytest.raises(BadInput, match=name):
        RunConfig("flash2", AttentionShape(1, 1, 8, 8, 16), parameters={name: value})
