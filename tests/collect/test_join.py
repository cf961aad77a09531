"""Launches get their configuration by range, and what is missing or not a single call is said. Rows made by hand."""

import pytest

from profiler import table
from profiler.bundle import Bundle
from profiler.collect import join
from profiler.errors import NothingProfiled, RunFailed
from profiler.spec import AttentionShape, RunConfig

NAIVE = RunConfig("naive", AttentionShape(1, 2, 64, 64, 32))
FLASH = RunConfig("flash2", AttentionShape(1, 2, 64, 64, 32))
RECORDS = [
    {"config_id": NAIVE.config_id, "status": "ok", "stages": ["scores", "softmax"], "parameters": "{}"},
    {"config_id": FLASH.config_id, "status": "ok", "stages": ["attention"], "parameters": '{"block_m":128}'},
]


def launch(number, config, stage, kernel="k", block="128,1,1", grid="1,1,1", **values):
    path = "/".join(part for part in (config.config_id if config else "other", stage) if part)
    return {
        "launch": number,
        "kernel": kernel,
        "block": block,
        "grid": grid,
        "range": stage,
        "range_path": path,
        **values,
    }


def attach(*rows):
    return join.attach(table.make("launches", rows), [NAIVE, FLASH], RECORDS)


def test_each_launch_gets_its_configuration_and_the_parameters_that_ran():
    found, dropped, notes = attach(
        launch(0, NAIVE, "scores"), launch(1, NAIVE, "softmax"), launch(2, FLASH, "attention")
    )
    assert list(found["implementation"]) == ["naive", "naive", "flash2"]
    assert list(found["stage"]) == ["scores", "softmax", "attention"]
    assert list(found["parameters"]) == ["{}", "{}", '{"block_m":128}']
    assert list(found["nq"]) == [64] * 3 and dropped == 0 and notes == []


def test_a_stage_without_a_launch_is_named():
    _, _, notes = attach(launch(0, NAIVE, "scores"), launch(1, FLASH, "attention"))
    assert notes == [f"{NAIVE.config_id}: no launch was profiled in softmax."]


def test_kernels_of_a_graph_and_launches_from_elsewhere_are_named():
    mine = RunConfig("mod:attention", AttentionShape(1, 2, 64, 64, 32))
    record = {"config_id": mine.config_id, "implementation": "mod:attention", "status": "ok", "stages": ["attention"]}
    rows = [{"config_id": mine.config_id, "stage": "attention"}]
    assert join.completeness(rows, {mine.config_id: {**record, "graphs": True}}) == [
        f"{mine.config_id}: its launches are kernels of a CUDA graph, counted one by one."]
    (note,) = join.completeness([], {mine.config_id: record})
    assert "no launch was profiled in attention" in note and "process or thread of its own" in note


def test_launches_of_other_ranges_are_left_out_and_counted():
    found, dropped, notes = attach(
        launch(0, None, "warm-up"),
        launch(1, NAIVE, "scores"),
        launch(2, NAIVE, "softmax"),
        launch(3, FLASH, "attention"),
    )
    assert len(found) == 3 and dropped == 1
    assert "1 launches outside every configuration were left out." in notes


def test_launches_outside_every_stage_stay_without_one():
    found, _, notes = attach(
        launch(0, NAIVE, "scores"), launch(1, NAIVE, "softmax"), launch(2, FLASH, None), launch(3, FLASH, "attention")
    )
    assert found["stage"].isna().tolist() == [False, False, True, False]
    assert any("outside every stage" in note for note in notes)


# What one parameter of a Triton kernel's tuning changes: warps the block, stages the shared memory.
TUNED = {
    "warps": [("128,1,1", 49152.0), ("256,1,1", 49152.0)] * 2,
    "stages": [("128,1,1", 32768.0), ("128,1,1", 49152.0), ("128,1,1", 65536.0), ("128,1,1", 65536.0)],
}


@pytest.mark.parametrize("settings", TUNED.values(), ids=TUNED.keys())
def test_captured_autotuning_is_reported_and_not_summed(settings):
    tried = [
        launch(i, FLASH, "attention", kernel="flash2", block=block, shared_bytes_per_block=shared)
        for i, (block, shared) in enumerate(settings)
    ]
    found, dropped, notes = attach(*tried, launch(5, NAIVE, "scores"), launch(6, NAIVE, "softmax"))
    assert list(found["implementation"]) == ["naive", "naive"] and dropped == 4
    several = len(set(settings))
    expected = f"4 launches of flash2 with {several} combinations of block and shared memory: autotuning was captured"
    assert any(expected in note for note in notes)


def test_few_launches_with_different_blocks_are_one_call():
    # A reduction in two steps and one more: three launches of one kernel, each with its own block.
    rows = [
        launch(i, FLASH, "attention", kernel="reduce", block=block, shared_bytes_per_block=1040.0)
        for i, block in enumerate(["32,16,1", "512,1,1", "128,1,1"])
    ]
    found, dropped, _ = attach(*rows, launch(3, NAIVE, "scores"), launch(4, NAIVE, "softmax"))
    assert len(found) == 5 and dropped == 0


def test_one_kernel_on_tensors_of_many_sizes_is_one_call():
    # As an H200 recorded sdpa_math, causal, N 2048, D 64: PyTorch's elementwise kernel on Q, K, S, P and numbers.
    grids = [2048, 2048, 1, 1, 2048, 65536, 1, 65536, 4096]
    rows = [
        launch(i, FLASH, "attention", "vectorized_elementwise_kernel", grid=f"{x},1,1", shared_bytes_per_block=1024.0)
        for i, x in enumerate(grids)
    ]
    found, dropped, notes = attach(*rows, launch(9, NAIVE, "scores"), launch(10, NAIVE, "softmax"))
    assert len(found) == 11 and dropped == 0 and notes == []


def test_no_launch_of_ours_is_nothing_profiled():
    with pytest.raises(NothingProfiled):
        attach(launch(0, None, "elsewhere"))


def test_a_configuration_that_failed_under_ncu_is_named():
    records = [{"config_id": NAIVE.config_id, "status": "out of memory", "stages": []}, RECORDS[1]]
    _, _, notes = join.attach(table.make("launches", [launch(0, FLASH, "attention")]), [NAIVE, FLASH], records)
    assert notes == [f"{NAIVE.config_id}: no counters (out of memory)."]


def test_a_time_under_ncu_far_from_the_unprofiled_one_is_flagged():
    launches = table.make(
        "launches",
        [
            {"config_id": "a", "duration_ns": 500.0},
            {"config_id": "a", "duration_ns": 500.0},
            {"config_id": "b", "duration_ns": 299.0},
        ],
    )
    timings = table.make(
        "timings",
        [
            {"config_id": "a", "median_ns": 300.0},
            {"config_id": "b", "median_ns": 100.0},
            {"config_id": "c", "status": "out of memory"},
        ],
    )
    notes = join.unlike(launches, timings)
    assert len(notes) == 1 and notes[0].startswith("a: 1 µs under ncu")


def test_a_configuration_without_a_timing_row_fails_the_run():
    with pytest.raises(RunFailed, match=FLASH.config_id):
        join.timing_table([NAIVE, FLASH], [{"record": "timing", "row": {"config_id": NAIVE.config_id, "status": "ok"}}])


def test_merged_files_are_numbered_on():
    parts = [
        Bundle(
            name,
            {"kind": "report", "driver": "1", "file": {"name": name}},
            table.make("launches", [{"launch": 0}, {"launch": 1}]),
            table.make("metrics", [{"launch": 1, "metric": "m"}]),
        )
        for name in ("a", "b")
    ]
    made = join.merge("both", parts)
    assert list(made.launches["launch"]) == [0, 1, 2, 3]
    assert list(made.metrics["launch"]) == [1, 3]
    assert made.profile["driver"] == "1" and [f["name"] for f in made.profile["files"]] == ["a", "b"]
