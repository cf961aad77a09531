"""Run: with a stand-in for Python that answers as a machine with a GPU would, and without one."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time

import pytest

from profiler.collect import doctor, suites
from profiler.dashboard import jobs, text
from tests.dashboard.conftest import ROOT, visit

STAND_IN = """\
#!{python}
import json, pathlib, shutil, sys, time
here = pathlib.Path(__file__).parent
if "doctor" in sys.argv:
    print((here / "doctor.json").read_text())
    sys.exit(0)
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
for i in (1, 2, 3):
    print(f"[{{i}}/3] naive N 512", file=sys.stderr, flush=True)
    while not (here / f"step{{i}}").exists():
        time.sleep(0.02)
if (here / "fail").exists():
    sys.exit("no counters permitted here")
shutil.copytree({bundle!r}, out)
"""
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script with a #! line")


@pytest.fixture
def stand_in(data, tmp_path, monkeypatch):
    """A folder whose files steer the stand-in; results land in a data folder of their own."""
    (tmp_path / "results").mkdir()
    script = tmp_path / "python"
    script.write_text(textwrap.dedent(STAND_IN.format(python=sys.executable, bundle=str(data / "synthetic"))))
    script.chmod(0o755)
    say(tmp_path, name="GPU", state="ok")
    monkeypatch.setenv("FLASHSCOPE_PYTHON", str(script))
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path / "results"))
    yield tmp_path
    for job in jobs.jobs().all():
        jobs.jobs().cancel(job)


def say(folder, **check):
    """What the stand-in's doctor finds."""
    blank = {"text": "", "remedy": "", "needed_for": "profiling"}
    (folder / "doctor.json").write_text(json.dumps([blank | check]))


def let(folder, *steps):
    for step in steps:
        (folder / step).touch()


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.02)


def button(app, label):
    return next(b for b in app.button if b.label == label)


def test_a_run_goes_on_over_reloads_and_its_result_opens(stand_in):
    app = visit("run")
    assert not app.error
    button(app, text.RUN_START).click().run()
    job = jobs.jobs().all()[0]
    let(stand_in, "step1")
    until(lambda: job.progress()[0] == 2)
    again = visit("run")  # another tab, or a reload
    assert any(text.RUN_STATES["running"] in m.value for m in again.markdown)
    let(stand_in, "step2", "step3")
    until(lambda: job.state == jobs.DONE)
    button(again.run(), text.RUN_OPEN).click().run()
    assert any("needs" in t.value and "HBM" in t.value for t in again.title)


def test_runs_wait_for_one_another_and_can_be_cancelled(stand_in):
    app = visit("run")
    button(app, text.RUN_START).click().run()
    button(app, text.RUN_START).click().run()
    first, second = jobs.jobs().all()
    until(lambda: first.state == jobs.RUNNING)
    assert second.state == jobs.WAITING and first.out != second.out
    jobs.jobs().cancel(second)
    assert second.state == jobs.CANCELLED
    process = first.process
    jobs.jobs().cancel(first)
    until(lambda: process.poll() is not None)
    assert first.state == jobs.CANCELLED and not first.out.exists()


def test_a_failed_run_shows_what_it_said(stand_in):
    let(stand_in, "step1", "step2", "step3", "fail")
    app = visit("run")
    button(app, text.RUN_START).click().run()
    job = jobs.jobs().all()[0]
    until(lambda: job.state == jobs.FAILED)
    app.run()
    assert any("no counters permitted here" in c.value for c in app.code)


def test_the_queue_is_bounded(stand_in):
    app = visit("run")
    for _ in range(jobs.MOST_WAITING + 2):
        button(app, text.RUN_START).click().run()
    assert any(text.QUEUE_FULL in e.value for e in app.error)


def test_without_counters_only_what_needs_none_is_offered(stand_in):
    say(stand_in, name="Nsight Compute", state="missing", text="not found", remedy="Install it.")
    app = visit("run")
    button(app, text.RUN_START).click().run()
    assert "--no-counters" in jobs.jobs().all()[0].command
    assert any("not found" in m.value for m in app.markdown)


def test_a_machine_without_a_gpu_gets_the_commands(data, monkeypatch):
    monkeypatch.setattr(jobs, "machine", lambda _: [
        {"name": "GPU", "state": "missing", "text": "no driver", "remedy": "Get one.", "needed_for": "profiling"}])
    app = visit("run")
    assert not app.error and not [b for b in app.button if b.label == text.RUN_START]
    assert any("python -m profiler run --suite quick" in c.value for c in app.code)
    assert any("no driver" in m.value for m in app.markdown)
    app.query_params["suite"] = "tuning"
    app.run()
    assert any("python -m profiler run --suite tuning --out my-gpu" in c.value for c in app.code)


def test_the_commands_for_elsewhere_make_a_zip_that_opens(tmp_path):
    """Each verb and option exists; what the last command packs is a bundle again."""
    import shlex
    import shutil
    import subprocess
    import sys

    from profiler import parse

    lines = [shlex.split(line) for line in text.RUN_COMMANDS.format(suite="quick").splitlines()]
    for line in (one for one in lines if one[:3] == ["python", "-m", "profiler"]):
        told = subprocess.run([sys.executable, *line[1:4], "--help"], cwd=ROOT, capture_output=True, text=True,
                              timeout=120).stdout
        assert all(option in told for option in line[4:] if option.startswith("--")), line
    shutil.copytree(ROOT / "data/h200-decode", tmp_path / "my-gpu")
    subprocess.run([sys.executable, *lines[-1][1:]], cwd=tmp_path, check=True, timeout=120)
    assert len(parse.load(tmp_path / "my-gpu.zip").timings) == 15


def test_the_names_that_only_counters_need_are_the_doctors():
    assert set(jobs.FOR_COUNTERS) <= {check.name for check in doctor.diagnose()}


def test_what_the_page_tells_to_run_exists():
    assert (ROOT / "requirements.txt").is_file()
    assert "quick" in suites.SUITES and all(make.__doc__ for make in suites.SUITES.values())
