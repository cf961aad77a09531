"""Functions that this project does not contain: profiled like any other, or refused by a sentence."""

import json
import shutil

import pytest

from profiler import bundle, table
from profiler.bundle import Bundle
from profiler.collect import run as runs
from profiler.collect import suites
from profiler.errors import BadInput

from .test_run import SUCCESS

MODULE = '''
import math
import torch

def attention(q, k, v, causal=False):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v

def through_any_keyword(q, k, v, **options):
    return attention(q, k, v, **options)

def without_a_mask(q, k, v):
    return attention(q, k, v)

def not_scaled(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

def transposed(q, k, v):
    return attention(q, k, v).transpose(1, 2)

def pair(q, k, v):
    return attention(q, k, v), None

def raises(q, k, v):
    raise OSError(f"cannot read {__file__}")

def two(q, k):
    return q

number = 3
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module in the working folder, as a visitor has it; its name is new each time."""
    folder = tmp_path / "visitor"
    folder.mkdir()
    (folder / "visited.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    return folder


def configs(*names, masks=("full",), directions=("forward",)):
    return suites.sweep(
        [f"visited:{name}" for name in names], (24,), head_dims=(16,), masks=masks, dtypes=("fp32",), heads=2,
        directions=directions,
    )


def test_a_function_is_timed_compared_and_known_by_its_name(mine, tmp_path):
    found = configs("attention", "through_any_keyword", masks=("full", "causal"), directions=("forward", "backward"))
    runs.run(found, tmp_path / "bundle", counters=False, device="cpu")
    made = bundle.read(tmp_path / "bundle")
    assert set(made.timings["implementation"]) == {"visited:attention", "visited:through_any_keyword"}
    assert list(made.timings["status"]) == ["ok"] * 8 and made.timings["error_relative"].lt(1e-5).all()
    facts = made.profile["callables"]
    assert [entry["name"] for entry in facts] == ["visited:attention", "visited:through_any_keyword"]
    assert all(len(entry["sha256"]) == 64 for entry in facts)


def test_its_launches_are_found_by_its_ranges(mine, stub, tmp_path, monkeypatch):
    stub.write(SUCCESS)
    some = configs("attention")

    def load(path):
        rows = [{"launch": 0, "kernel": "k", "range": "attention", "range_path": f"{some[0].config_id}/attention"}]
        return Bundle(path.name, {}, table.make("launches", rows))

    monkeypatch.setattr("profiler.parse.load", load)
    made = runs.run(some, tmp_path / "bundle", device="cpu")
    assert list(made.launches["implementation"]) == ["visited:attention"] and ":" not in made.launches["range_path"][0]
    assert list(made.launches["stage"]) == ["attention"]


def test_a_wrong_result_is_measured_and_labelled_wrong(mine, tmp_path):
    made = runs.run(configs("not_scaled", "attention"), tmp_path / "bundle", counters=False, device="cpu")
    wrong, right = table.records(made.timings)
    assert wrong["status"].startswith("wrong: relative error") and wrong["median_ns"] > 0
    assert right["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("transposed", "got shape (1, 24, 2, 16)"),
        ("pair", "got tuple"),
    ],
)
def test_another_output_is_refused_with_its_shape(mine, tmp_path, name, said):
    made = runs.run(configs(name), tmp_path / "bundle", counters=False, device="cpu")
    expected = f"refused: visited:{name}: expected one tensor of shape (1, 2, 24, 16), {said}"
    assert list(made.timings["status"]) == [expected]


def test_an_error_that_names_a_private_folder_does_not_cost_the_run(mine, tmp_path):
    made = runs.run(configs("raises"), tmp_path / "bundle", counters=False, device="cpu")
    assert list(made.timings["status"]) == ["failed: OSError: cannot read [private]/visited.py"]


def test_a_causal_mask_needs_a_keyword_for_it(mine, tmp_path):
    made = runs.run(configs("without_a_mask", masks=("causal",)), tmp_path / "bundle", counters=False, device="cpu")
    assert list(made.timings["status"]) == ["refused: visited:without_a_mask has no keyword causal or is_causal"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:attention", "--callable: nowhere cannot be imported (ModuleNotFoundError: "),
        ("visited:missing", "--callable: visited has no missing."),
        ("visited:number", "--callable: expected a function, visited:number is a int."),
        ("visited:two", "--callable: expected visited:two to be callable as f(q, k, v), it has (q, k) "),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_runs(mine, tmp_path, name, said):
    some = suites.sweep((name,), (24,), head_dims=(16,), dtypes=("fp32",), heads=1)
    with pytest.raises(BadInput) as caught:
        runs.run(some, tmp_path / "bundle", counters=False, device="cpu")
    assert caught.value.what.startswith(said) and caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["visitor"]


def test_a_changed_function_is_another_run(mine, tmp_path, monkeypatch):
    some, partial = configs("attention", "without_a_mask"), tmp_path / "bundle.partial"
    runs.run(some, tmp_path / "first", counters=False, device="cpu")
    partial.mkdir()
    monkeypatch.setattr("profiler.collect.provenance.code_hash", lambda: "same")
    monkeypatch.setattr(runs.join, "join", lambda *arguments: (_ for _ in ()).throw(RuntimeError("cut off")))
    with pytest.raises(RuntimeError):
        runs.run(some, tmp_path / "bundle", counters=False, device="cpu")
    (mine / "visited.py").write_text(MODULE + "\n# changed\n")
    with pytest.raises(BadInput, match="callables"):
        runs.run(some, tmp_path / "bundle", counters=False, device="cpu", resume=True)
    assert json.loads((partial / "settings.json").read_text())["code"] == "same"
    shutil.rmtree(partial)


def test_command_line(cli, mine):
    (cli.folder / "visited.py").write_text(MODULE)
    done = cli("run", "--callable", "visited:two", "--n", "64", "--no-counters", "--out", "x")
    assert done.returncode == 2 and "expected visited:two to be callable" in done.stderr
    # The function's fault comes before whatever else a run would lack, ncu for one.
    first = cli("run", "--callable", "visited:two", "--n", "64", "--out", "x")
    assert first.stderr.startswith("--callable: expected visited:two")
    bench = cli("bench", "--callable", "visited:two", "--n", "64")
    assert bench.returncode == 2 and "expected visited:two to be callable" in bench.stderr
    assert cli("run", "--callable", "visited", "--out", "x").stderr.startswith("--callable: expected MODULE:FUNCTION")
    assert cli("run", "--callable", "a b:c", "--out", "x").stderr.startswith("--callable: expected MODULE:FUNCTION")
