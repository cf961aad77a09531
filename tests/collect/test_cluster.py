"""A run over a Dask cluster: two workers on the CPU under a stub ncu, killed on purpose, and what the bundle says."""

import json
import os
import signal
import sys
import types

import pytest

from profiler import bundle, table
from profiler.bundle import Bundle
from profiler.collect import cluster, provenance, suites
from profiler.collect import run as runs
from profiler.collect.share import Order, Place
from profiler.errors import BadInput

SMALL = {"head_dims": (16,), "masks": ("full",), "dtypes": ("fp32",), "heads": 1}
ONCE, FINE, GUILTY, BESIDE = (
    suites.sweep((name,), (n,), **SMALL)[0]
    for name, n in (("sdpa_math", 16), ("sdpa_math", 24), ("sdpa_math", 32), ("naive", 32))
)
# ncu that profiles nothing but answers as if: the worker that runs it is its parent, which it ends where it is told to.
STUB = """
import signal
here = pathlib.Path(__file__)
configs = json.loads(pathlib.Path("plan.json").read_text())["configs"]
ids = [c["implementation"] + str(c["shape"]["nq"]) for c in configs]
def end_worker():
    os.kill(os.getppid(), signal.SIGKILL)
    sys.exit(1)
if "sdpa_math32" in ids:
    end_worker()
if "sdpa_math16" in ids:
    with open(here.with_name("deaths"), "a+") as log:
        log.seek(0)
        first = not log.read()
        log.write("one")
    if first:
        end_worker()
stages = {"naive": ["scores", "softmax"], "sdpa_math": ["attention"]}
from profiler.spec import RunConfig
with open("result.jsonl", "a") as out:
    for entry in configs:
        config = RunConfig.from_json(entry)
        print(json.dumps({"record": "counters", "config_id": config.config_id, "status": "ok", "parameters": "{}",
                          "stages": stages[config.implementation]}), file=out)
with open(here.with_name("tmpdirs"), "a") as log:
    log.write(os.environ["TMPDIR"] + "\\n")
say('==PROF== Profiling "gemm" - 0: 0%....100% - 5 passes')
report.write_text(" ".join(ids))
"""


def load(path):
    """A chunk's report: the stub wrote which configurations it held."""
    by_name = {c.implementation + str(c.shape.nq): c for c in (ONCE, FINE, BESIDE)}
    rows = [
        {"launch": i, "range_path": f"{by_name[name].config_id}/attention", "range": "attention", "kernel": name}
        for i, name in enumerate(path.read_text().split())
    ]
    return Bundle(path.name, {}, table.make("launches", rows))


def test_a_worker_that_dies_is_replaced_and_what_kills_workers_is_named(stub, tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the optional extra requirements-dask.txt is not installed")
    # Workers are spawned, which runs this process's main module again: after an app was tested here, that is the app.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    stub.write(STUB)
    monkeypatch.setattr("profiler.collect.gpu.visible", lambda: ["0", "1"])
    monkeypatch.setattr("profiler.parse.load", load)
    heard = []
    runs.run(
        [ONCE, FINE, GUILTY, BESIDE], tmp_path / "bundle", device="cpu", workers="dask",
        progress=lambda *said: heard.append(said),
    )
    made = bundle.read(tmp_path / "bundle")
    rows = {row["config_id"]: row for row in table.records(made.timings)}
    assert list(rows) == [c.config_id for c in (ONCE, FINE, GUILTY, BESIDE)]
    guilty = rows.pop(GUILTY.config_id)
    assert guilty["status"] == "failed: it ended 2 workers" and guilty["median_ns"] is None
    assert any(note.startswith(f"{GUILTY.config_id}: set aside") for note in made.notes)
    assert {row["status"] for row in rows.values()} == {"ok"} and all(row["median_ns"] > 0 for row in rows.values())
    assert {row["gpu"] for row in rows.values()} <= {"index-0", "index-1"} and guilty["gpu"] is None
    assert sorted(made.launches["config_id"]) == sorted(rows)
    assert list(made.launches["launch"]) == [0, 1, 2]
    # Each ncu has a temporary folder of its own, inside that of its worker; more than two where a result died
    # with its worker before it was fetched.
    folders = (stub.folder / "tmpdirs").read_text().splitlines()
    assert len(set(folders)) == len(folders) >= 2 and all("flashscope-" in name for name in folders)
    assert [entry["gpu"] for entry in made.profile["gpus"]] == ["index-0", "index-1"]
    assert heard[-1][1:] == (8, 8)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "bundle"]


def test_shapes_stay_whole_and_shares_take_equally_long():
    configs = suites.scaling()
    shares = cluster.divide(configs, 2)
    assert len(shares) == 2  # what starts a process is paid once a worker
    assert sorted(c.config_id for share in shares for c in share) == sorted(c.config_id for c in configs)
    homes = {}
    for number, share in enumerate(shares):
        for config in share:
            assert homes.setdefault((config.shape, config.direction), number) == number
    # Seconds that both passes of a shape's six took on an H200, the starts of the processes left out: a worker that had
    # every causal shape needed 7 s more for a head size than one that had every full one.
    took = {("full", 16384): 9.8, ("causal", 16384): 12.8, ("full", 512): 6.0, ("causal", 512): 6.0}
    assert took.keys() <= {(c.shape.mask, c.shape.nq) for c in configs}
    for (mask, n), recorded in took.items():
        shape = [c for c in configs if (c.shape.mask, c.shape.nq, c.shape.head_dim) == (mask, n, 64)]
        assert sum(cluster.seconds(c, counted=True) for c in shape) == pytest.approx(recorded, rel=0.3)
    masks = [sum(c.shape.mask == "causal" for c in share) for share in shares]
    assert masks == [36, 36]
    assert len(cluster.divide(configs[:5], 4)) == 1  # one shape
    assert len(cluster.divide(configs * 2, 2)) == 4  # no share so long that its loss is the loss of the run


def test_what_is_only_timed_weighs_less():
    config = suites.scaling()[0]
    assert cluster.seconds(config, counted=False) < cluster.seconds(config, counted=True) / 3
    configs = suites.sweep(("flash2",), (512, 1024, 2048, 4096), head_dims=(64,), masks=("full",), dtypes=("bf16",))
    shares = cluster.divide(configs, 2, {c.config_id for c in configs[1:]})
    assert sorted(len(share) for share in shares) == [1, 3]


def test_a_suspect_share_is_halved_until_one_is_left():
    parts, seen = [[ONCE, FINE, GUILTY]], []
    while parts:
        part = parts.pop()
        if GUILTY in part and len(part) > 1:
            parts += cluster.halves(part)
        else:
            seen.append(part)
    assert [GUILTY] in seen and sorted(c.config_id for part in seen for c in part) == sorted(
        c.config_id for c in (ONCE, FINE, GUILTY))
    assert cluster.halves([]) == [] and cluster.halves([ONCE]) == [[ONCE]]


def test_what_finished_shares_hold_is_not_measured_again(tmp_path):
    for config in (ONCE, FINE):
        cluster._set_aside(tmp_path, config)
    said = []

    pytest.importorskip("distributed", reason="the optional extra requirements-dask.txt is not installed")
    reporter = runs.Reporter(lambda *words: said.append(words), 2, counters=True)
    measured, notes = cluster.measure(None, runs.Order(device="cpu"), [ONCE, FINE], tmp_path, reporter)
    assert [part.times[0]["row"]["config_id"] for part in measured] == [ONCE.config_id, FINE.config_id]
    assert len(notes) == 2 and said[-1][1:] == (4, 4)


def test_a_gpu_s_ceilings_are_measured_once_a_run(monkeypatch):
    """Whatever else the worker's process has measured before."""
    asked = []
    monkeypatch.setattr(cluster.share, "place", lambda order: Place("GPU-1", None, None, None, (), "code"))
    monkeypatch.setattr(cluster.share, "measure", lambda *a, ceilings, **k: asked.append(ceilings))
    for run in ("one", "one", "two"):
        cluster.work(Order(device="cpu"), [], run)
    assert asked == [True, False, True]


def test_a_request_to_end_while_a_cluster_is_made_is_heard_when_it_can_be_closed():
    done = []
    with pytest.raises(KeyboardInterrupt), cluster._uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the cluster is whole")
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_measured_roof_says_its_gpu_where_several_measured(tmp_path):
    entry = {"quantity": "dram_copy_bytes_per_s", "value": 4e12, "unit": "B/s", "kind": "measured", "how": "copy"}
    for number in (1, 2):
        cluster._set_aside(tmp_path, (ONCE, FINE)[number - 1])
        with open(tmp_path / f"share-{number - 1}/timing.jsonl", "a") as file:
            file.write(json.dumps({"record": "ceiling", "entry": entry}) + "\n")
        (tmp_path / f"share-{number - 1}/share.json").write_text(json.dumps(
            {"configs": [(ONCE, FINE)[number - 1].config_id], "gpu": f"GPU-0000000{number}-abcd"}))
    measured, _ = cluster._gather(Order(counters=False, device="cpu"), [ONCE, FINE], tmp_path)
    times = [record for part in measured for record in part.times]
    places = [Place(f"GPU-0000000{number}-abcd", "NVIDIA H200", "580", None, (), "code") for number in (1, 2)]

    def ceilings(places):
        return provenance.profile(times, tool=None, chunks=[], suite=None, command="", counters=False,
                                  places=places)["ceilings"]

    assert [(e["gpu"], e["how"]) for e in ceilings(places)] == [
        ("GPU-00000001", "copy, on GPU-00000001"), ("GPU-00000002", "copy, on GPU-00000002")]
    assert ceilings(places[:1]) == [entry, entry]


@pytest.mark.parametrize("text", ["slurm", "dask=", "dask:8"])
def test_workers_are_dask_or_a_scheduler(text):
    with pytest.raises(BadInput, match="--workers: expected dask or dask=SCHEDULER"):
        cluster.scheduler(text)


def test_without_the_package_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BadInput, match="distributed") as caught:
        runs.run([FINE], tmp_path / "b", counters=False, device="cpu", workers="dask")
    assert "requirements-dask.txt" in caught.value.remedy and list(tmp_path.iterdir()) == []


def test_a_machine_without_a_gpu_is_no_cluster(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the optional extra requirements-dask.txt is not installed")
    monkeypatch.setattr("profiler.collect.gpu.visible", lambda: [])
    with pytest.raises(BadInput, match="shows no GPU"):
        runs.run([FINE], tmp_path / "b", counters=False, device="cpu", workers="dask")
