"""One run on a GPU at a time; the time a run takes, as it goes and before it starts; a request to end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from profiler.collect import gpu, lock, pace, share, suites, watch
from profiler.collect import run as runs
from profiler.collect.progress import Follower, Reporter
from profiler.errors import BadInput, GpuInUse

from .conftest import ROOT, processes_with
from .test_run import CONFIGS

HOLD = """
import sys, time
from profiler.collect import lock
with lock.measuring(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder():
    """A process that measures on GPU-1 until the test ends; its pid."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "GPU-1"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_run_on_one_gpu_is_refused_with_the_first_ones_id_and_start(holder):
    with pytest.raises(GpuInUse) as caught, lock.measuring("GPU-1"):
        pass
    assert f"process {holder.pid}, started 20" in caught.value.what and "CUDA_VISIBLE_DEVICES" in caught.value.remedy
    with lock.measuring("GPU-2"):
        pass


def test_a_lock_that_a_killed_process_left_behind_is_none(holder):
    holder.kill()
    holder.wait()
    assert json.loads((lock.cache_folder() / "gpu-GPU-1.lock").read_text())["pid"] == holder.pid
    with lock.measuring("GPU-1"):
        assert json.loads((lock.cache_folder() / "gpu-GPU-1.lock").read_text())["pid"] == os.getpid()


def test_run_and_bench_take_the_lock(stub, cli, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with lock.measuring(gpu.identity()):
        done = cli("run", "--suite", "quick", "--out", "bundle")
        assert done.returncode == 1 and f"process {os.getpid()}, started" in done.stderr and done.stdout == ""
        assert cli("bench").returncode == 1
    assert list(cli.folder.iterdir()) == []


def test_where_no_cache_folder_can_be_made_the_temporary_one_serves(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    assert lock.cache_folder().parent == tmp_path
    with lock.measuring("GPU-3"):
        pass


class Ticks:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    ticks = Ticks()
    monkeypatch.setattr(pace, "time", ticks)
    return ticks


def test_progress_says_what_each_took_and_what_is_left(clock):
    said = []
    reporter = Reporter(lambda *words: said.append(words), 4, counters=True)
    reporter.begin()
    assert said == []  # nothing is known before the first run
    reporter.pace._mark = 0.0
    clock.now = 6.0
    reporter.done(pace.COUNTERS, 2, "b")
    assert said[-1] == ("counters: b, 3.0 s each, about 6 s and the timing pass left", 2, 8)
    clock.now = 12.0
    reporter.done(pace.COUNTERS, 2, "d")
    clock.now = 13.0
    reporter.done(pace.TIMING, 1, "a")
    assert said[-1] == ("timing: a, 1.0 s each, about 3 s left", 5, 8)
    reporter.done(pace.TIMING, 3, "d")
    assert said[-1][0] == "timing: d, 0.2 s each" and said[-1][1:] == (8, 8)


def test_what_an_unfinished_run_left_does_not_count_as_fast(clock):
    said = []
    reporter = Reporter(lambda *words: said.append(words), 10, counters=False)
    reporter.pace._mark = 0.0
    reporter.done(pace.TIMING, 6, "taken", measured=False)
    assert said[-1][0] == "timing: taken"
    clock.now = 5.0
    reporter.done(pace.TIMING, 1, "g")
    assert said[-1] == ("timing: g, 5.0 s each, about 15 s left", 7, 10)


def test_an_earlier_run_gives_the_estimate_before_the_next_starts(clock):
    said = []
    earlier = pace.Pace({pace.COUNTERS: 2, pace.TIMING: 2}, _mark=0.0)
    clock.now = 4.0
    earlier.took(pace.COUNTERS, 2)
    clock.now = 5.0
    earlier.took(pace.TIMING, 2)
    pace.remember("GPU-1", "evidence", earlier, 8)
    assert pace.recall("GPU-2", "evidence") == {} and "counters" not in pace.recall("GPU-1", "roofline")
    known = pace.recall("GPU-1", "evidence")
    assert known == {"counters": 2.0, "timing": 0.5, "passes": 8.0}  # nothing began before its first configuration
    Reporter(lambda *words: said.append(words), 40, counters=True, known=known).begin()
    (text, done, total), = said
    assert text.startswith("about 2 min by an earlier run on this GPU (40 × 2.0 s of counters, 40 × 0.5 s of timing)")
    assert text.endswith(", 8 replay passes a launch") and (done, total) == (0, 80)


def test_what_it_took_is_said_at_the_end_and_only_what_was_measured(clock):
    said = []
    reporter = Reporter(lambda *words: said.append(words), 4, counters=True, counted=CONFIGS[:2])
    reporter.pace._mark = 0.0
    clock.now = 6.0
    reporter.done(pace.COUNTERS, 2, "b")
    clock.now = 8.0
    reporter.done(pace.TIMING, 4, "d")
    reporter.end(8)
    text = "counters: 2 in 6 s (3.0 s each), timing: 4 in 2 s (0.5 s each), 8 replay passes a launch"
    assert said[-1] == (text, 6, 6)
    taken = Reporter(lambda *words: said.append(words), 4, counters=False)
    taken.done(pace.TIMING, 4, "taken", measured=False)
    count = len(said)
    taken.end(None)
    assert len(said) == count


@pytest.mark.parametrize(("seconds", "words"), [(42.4, "42 s"), (100, "2 min"), (5400, "1 h 30 min")])
def test_durations_as_people_say_them(seconds, words):
    assert pace.duration(seconds) == words


def test_the_start_of_a_process_is_no_configuration_s_time(clock):
    said = []
    known = {pace.COUNTERS: 1.0, pace.TIMING: 0.5, pace.START: 7.0}
    reporter = Reporter(lambda *words: said.append(words), 4, counters=True, known=known)
    reporter.begin()
    assert said[-1][0].startswith("about 20 s by ")  # 4 × 1.0 + 4 × 0.5 + 2 × 7
    assert "4 × 1.0 s of counters, 4 × 0.5 s of timing, 2 × 7 s to start" in said[-1][0]
    reporter.pace._mark = 0.0
    clock.now = 6.0
    reporter.pace.started(pace.COUNTERS)
    clock.now = 8.0
    reporter.done(pace.COUNTERS, 1, "a")
    assert said[-1][0] == "counters: a, 2.0 s each, about 15 s left"  # 3 × 2 + 4 × 0.5 + 7
    clock.now = 14.0
    reporter.done(pace.COUNTERS, 3, "d")
    reporter.end(None)
    assert said[-1][0] == "counters: 4 in 14 s (2.0 s each)"
    pace.remember("GPU-1", "evidence", reporter.pace, 8, 2.5)
    assert pace.recall("GPU-1", "evidence") == {"counters": 2.0, "start": 6.0, "passes": 8.0, "launches": 2.5}


def test_a_function_of_the_visitor_has_a_pace_of_its_own_once_it_ran(clock):
    """It was estimated like ours, at 2 to 3 launches, and had up to 30."""
    ours = suites.sweep(("flash2",), (512, 1024), head_dims=(64,), masks=("full",))
    theirs = suites.sweep(("mine:attention",), (512, 1024, 2048), head_dims=(64,), masks=("full",))
    said = []
    reporter = Reporter(lambda *words: said.append(words), 5, counters=True, counted=[*theirs, *ours],
                        known=pace.TYPICAL["evidence"], source=pace.TYPICAL_SOURCE)
    reporter.begin()
    assert "3 × 1.0 s of counters of mine:attention for up to 3 launches each, 2 × 1.0 s of counters" in said[-1][0]
    reporter.pace._mark = 0.0
    reporter.counted(ours[:1], "a")
    before = reporter.pace.remaining_s()
    clock.now = 9.0
    reporter.counted(theirs[:1], "b, 13 launches")
    assert said[-1][0].startswith("counters: b, 13 launches, 9.0 s each")
    assert reporter.pace.remaining_s() - before == 2 * 9.0 - 3 * 1.0  # two of its left at its pace; ours at theirs
    pace.remember("GPU-1", "evidence", reporter.pace, 8)
    again = Reporter(lambda *words: said.append(words), 5, counters=True, counted=theirs,
                     known=pace.recall("GPU-1", "evidence"))
    again.begin()
    assert "3 × 9.0 s of counters of mine:attention," in said[-1][0]
    assert said[-1][0].endswith(", 8 replay passes a launch")


def test_several_gpus_share_the_configurations_and_not_the_starts():
    known, source = pace.expected("GPU-9", "evidence", 2)
    assert known[pace.COUNTERS] == pace.TYPICAL["evidence"][pace.COUNTERS] / 2 and known[pace.START] == 7
    assert source == "a recorded run on an H200, for 2 GPUs at once"
    assert pace.expected("GPU-9", "roofline") == (pace.TYPICAL_TIMING, pace.TYPICAL_SOURCE)


def test_launches_are_counted_for_each_configuration(tmp_path):
    configs, records, said = CONFIGS[:2], tmp_path / "records", []
    reporter = Reporter(lambda text, done, total: said.append(text), 2, counters=True)
    follower, seen = Follower(records, "counters", reporter, set(), configs), watch.Seen()
    for number, (config, launches) in enumerate(zip(configs, (3, 10))):
        seen.kernel, seen.launches, seen.passes = f"kernel_{number}", launches, 8
        follower.kernel(seen)
        with open(records, "a") as file:
            print(json.dumps({"record": "start", "config_id": config.config_id}), file=file)
            print(json.dumps({"record": "counters", "config_id": config.config_id}), file=file)
        follower.moved()
    assert f"{configs[0].config_id}, 3 launches, kernel kernel_0, 8 replay passes a launch" in said[0]
    assert f"{configs[1].config_id}, 7 launches, kernel kernel_1" in said[1]


def test_a_broken_file_of_paces_is_no_failure():
    (lock.cache_folder() / "pace.json").write_text("[1, 2")
    assert pace.recall("GPU-1", "evidence") == {}
    pace.remember("GPU-1", "evidence", pace.Pace({}), 8)


def test_a_crash_is_not_counted_twice_in_the_progress(tmp_path, monkeypatch):
    guilty = CONFIGS[2].config_id
    script = f"""
import json, sys
from profiler.spec import RunConfig
plan, out = json.load(open(sys.argv[1])), open(sys.argv[2], "a")
for entry in plan["configs"]:
    config = RunConfig.from_json(entry)
    print(json.dumps({{"record": "start", "config_id": config.config_id}}), file=out, flush=True)
    if config.config_id == {guilty!r}:
        sys.exit("illegal memory access")
    row = {{**config.key(), "parameters": "{{}}", "status": "ok", "median_ns": 1.0}}
    print(json.dumps({{"record": "timing", "row": row}}), file=out, flush=True)
print(json.dumps({{"record": "end"}}), file=out, flush=True)
"""
    monkeypatch.setattr(
        "profiler.collect.worker.command", lambda plan, results: [sys.executable, "-c", script, plan.name, results.name]
    )
    said = []
    runs.run(CONFIGS, tmp_path / "b", counters=False, device="cpu", progress=lambda *words: said.append(words))
    assert [done for _, done, _ in said] == sorted(done for _, done, _ in said) and said[-1][1:] == (8, 8)
    assert any(f"{guilty} set aside" in text for text, _, _ in said)


def test_metric_sets_are_known_by_name():
    assert len(share.metric_names("occupancy")) < len(share.metric_names("evidence"))
    with pytest.raises(BadInput, match="--metrics: expected one of evidence, stalls, roofline"):
        share.metric_names("all")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a request to end"])
def test_a_run_that_is_asked_to_end_leaves_no_process(stub, cli, tmp_path, number):
    word = f"asked-{tmp_path}"
    stub.write(f"""
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {word!r}])
print("started", file=open(pathlib.Path(__file__).with_name("started"), "w"))
time.sleep(600)
""")
    process = subprocess.Popen(
        [sys.executable, "-m", "profiler", "run", "--suite", "quick", "--out", "bundle"],
        cwd=cli.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )
    deadline = time.monotonic() + 100
    while not (stub.folder / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "no process was left behind" in said and "Traceback" not in said
    assert not processes_with(word) and list(cli.folder.iterdir()) == []
