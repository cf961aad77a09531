"""Shelves: nobody sees another's files, what is idle goes, memory stays bounded."""

import gc
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler import bundle as bundles
from profiler import parse
from profiler.dashboard import store, text
from profiler.dashboard.kept import Kept, weight
from profiler.errors import BadInput
from profiler.parse import build, child, report
from tests import synthetic
from tests.dashboard import large
from tests.dashboard.conftest import REPORTS, link_of, upload, visit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def source(name: str, size: int = 10) -> store.Source:
    return store.Source(f"added-{name}", "same-name.ncu-rep", name, "added", bytes=size)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shelves(clock):
    return store.Shelves(most_bytes=100, clock=clock)


def test_two_visitors_with_files_of_one_name_never_mix(shelves):
    one, two = shelves.add(None, source("a")), shelves.add(None, source("b"))
    assert one != two and len(one) >= 22  # 128 bits in base64
    assert list(shelves.items(one)) == ["added-a"]
    assert list(shelves.items(two)) == ["added-b"]


def test_a_token_that_nobody_got_opens_nothing_and_is_not_taken_over(shelves):
    assert shelves.items("guessed") == {}
    assert shelves.items(None) == {}
    assert shelves.add("guessed", source("a")) != "guessed"
    assert not shelves.knows("guessed")


@pytest.mark.parametrize("bad", ["", "x", "../../../../etc/passwd", "a" * 22, "A" * 10_000, "..%2F..%2Fetc%2Fpasswd",
                                 "Ä" * 22, "token\x00", "' OR 1=1 --aaaaaaaaaaa"], ids=lambda bad: repr(bad[:24]))
def test_a_token_of_wrong_form_is_unknown_like_any_other(shelves, bad):
    mine = shelves.add(None, source("a"))
    for token in (bad, mine[:-1], f"{mine}x", mine.swapcase(), f"./{mine}", f"{mine} "):
        assert not shelves.knows(token) and shelves.items(token) == {}
        shelves.remove(token, "added-a")
        assert shelves.add(token, source("b")) not in (token, mine)
    assert list(shelves.items(mine)) == ["added-a"]


def test_disk_is_bounded_too(shelves, clock, monkeypatch):
    monkeypatch.setattr(store, "MOST_DISK_BYTES", 100)
    tokens = []
    for name in "abc":
        clock.now += 1
        tokens.append(shelves.add(None, store.Source(f"added-{name}", name, name, "added", disk_bytes=40)))
    assert [shelves.knows(token) for token in tokens] == [False, True, True]


def test_idle_shelves_expire_and_a_look_keeps_them(shelves, clock):
    token = shelves.add(None, source("a"))
    clock.now += store.IDLE_SECONDS - 1
    assert shelves.items(token)
    clock.now += store.IDLE_SECONDS - 1
    assert shelves.items(token)
    clock.now += store.IDLE_SECONDS + 1
    assert shelves.items(token) == {} and not shelves.knows(token)


def test_memory_is_bounded_least_recently_used_first(shelves, clock):
    old = shelves.add(None, source("a", 60))
    clock.now += 1
    newer = shelves.add(None, source("b", 30))
    clock.now += 1
    newest = shelves.add(None, source("c", 50))
    assert not shelves.knows(old)
    assert shelves.knows(newer) and shelves.knows(newest)


def test_one_visitor_cannot_take_everything(shelves):
    token = shelves.add(None, source("a", 70))
    with pytest.raises(BadInput) as problem:
        shelves.add(token, source("b", 70))
    assert "Remove" in problem.value.remedy
    assert list(shelves.items(token)) == ["added-a"]


def test_the_same_content_twice_is_one_source(shelves):
    token = shelves.add(None, source("a", 70))
    assert shelves.add(token, source("a", 70)) == token
    assert len(shelves.items(token)) == 1


def test_removed_is_gone(shelves):
    token = shelves.add(None, source("a"))
    shelves.remove(token, "added-a")
    assert shelves.items(token) == {}
    shelves.remove("guessed", "added-a")


def test_data_folders_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    assert store.recorded() == {}
    for name in ("b200", "nested/h200"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "profile.json").write_text("{}")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "one.ncu-rep").write_bytes(b"")
    (tmp_path / "reports" / "readme.md").write_text("")
    assert list(store.recorded()) == ["b200", "h200"]
    assert [path.name for path in store.samples()] == ["one.ncu-rep"]


def test_a_changed_bundle_has_another_version(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "profile.json").write_text("{}")
    before = store.recorded()["x"].version
    (tmp_path / "x" / "profile.json").write_text('{"schema_version": 1}')
    assert store.recorded()["x"].version != before


def test_results_are_kept_within_their_bytes_and_computed_once():
    kept, made = Kept(100, 1e9, size=len), []

    def make(name: str, length: int) -> str:
        return kept.get(name, lambda: made.append(name) or "x" * length)

    for name in ("a", "b", "a", "c", "a"):  # b is the least recently used when c comes
        assert make(name, 40) == "x" * 40
    assert made == ["a", "b", "c"] and kept.bytes == 80
    make("b", 40)
    assert made == ["a", "b", "c", "b"]
    assert len(make("larger than everything", 1000)) == 1000 and kept.bytes == 0


def test_several_visitors_wait_for_one_computation_and_an_error_is_not_kept():
    kept, started, made = Kept(10_000, 1e9), threading.Event(), []
    go = threading.Event()

    def slow() -> int:
        started.set()
        go.wait(10)
        made.append(1)
        return 7

    answers: list[int] = []
    visitors = [threading.Thread(target=lambda: answers.append(kept.get("k", slow))) for _ in range(5)]
    for visitor in visitors:
        visitor.start()
    started.wait(10)
    go.set()
    for visitor in visitors:
        visitor.join(10)
    assert answers == [7] * 5 and made == [1]
    with pytest.raises(BadInput):
        kept.get("bad", lambda: (_ for _ in ()).throw(BadInput("no")))
    assert kept.get("bad", lambda: 3) == 3


def test_what_nobody_asks_for_goes_after_a_day():
    clock = Clock()
    kept = Kept(10_000, 100, clock=clock)
    kept.get("old", lambda: "x")
    clock.now += 101
    kept.get("new", lambda: "y")
    assert len(kept) == 1
    assert weight(lambda: 0) > 1_000_000  # what cannot be weighed is taken for large


def test_memory_counts_the_tables_and_what_evidence_gathers_of_them():
    small, twice = synthetic.bundle(lengths=(512,)), synthetic.bundle(lengths=(512, 1024))
    assert store.memory(twice) > 1.8 * store.memory(small) > 1e5


@pytest.mark.parametrize("address, headers, yes", [
    ("127.0.0.1", {}, True), ("127.0.0.1", {"Host": "localhost:8501"}, True), ("localhost", {"Host": "[::1]:80"}, True),
    (None, {"Host": "localhost:8501"}, False), ("0.0.0.0", {"Host": "127.0.0.1:8501"}, False),
    ("127.0.0.1", {"Host": "flashscope.example"}, False),
    ("127.0.0.1", {"Host": "localhost", "X-Forwarded-For": "192.0.2.7"}, False)], ids=str)
def test_who_sits_at_this_machine(monkeypatch, address, headers, yes):
    context = SimpleNamespace(headers=headers)
    monkeypatch.setattr(store, "st", SimpleNamespace(context=context, get_option=lambda name: address))
    assert store.local() is yes


@pytest.mark.parametrize("local", [True, False], ids=["here", "public"])
def test_a_visitor_of_a_public_server_writes_nothing_into_its_profiles(data, monkeypatch, local):
    monkeypatch.setattr(store, "local", lambda: local)
    written = []
    monkeypatch.setattr("profiler.export.story.save", lambda plan, folder: written.append(folder) or Path("story.json"))
    app = visit("export")
    save = [b for b in app.button if b.label == text.EXPORT_KEEP]
    offered = [b.proto.label for b in app.get("download_button")]
    assert (len(save), text.EXPORT_TAKE in offered) == ((1, False) if local else (0, True))
    for button in save:
        button.click().run()
    assert len(written) == len(save)


def test_of_many_files_the_damaged_one_is_named_and_the_good_ones_are_there(data, tmp_path):
    damaged = tmp_path / "damaged.ncu-rep"
    damaged.write_bytes((REPORTS / "rtx3070_one_kernel.ncu-rep").read_bytes()[:30_000])
    good = [REPORTS / "rtx3070_one_kernel.ncu-rep", REPORTS / "h100_five_kernels.ncu-rep"]
    app = upload(visit("launches"), good[0], damaged, good[1])
    assert [e.value for e in app.exception] == []
    assert len(app.error) == 1 and "damaged" in app.error[0].value and "cut short" in app.error[0].value
    assert [s.label for s in store.shelves().items(link_of(app, "uploads")).values()] == [path.name for path in good]


def test_launches_come_to_the_browser_a_page_at_a_time(data, monkeypatch):
    monkeypatch.setattr("profiler.dashboard.components.tables.PAGE", 50)
    app = visit("launches")
    first = app.dataframe[0].value
    assert len(first) == 50 and list(first["launch"]) == list(range(50))
    app.selectbox(key="fs.widget.page").set_value("3").run()
    assert list(app.dataframe[0].value["launch"]) == list(range(100, 150))
    app.selectbox(key="fs.widget.order").set_value("duration_ns").run()
    times = list(app.dataframe[0].value["duration_ns"])
    every = synthetic.bundle().launches["duration_ns"].sort_values(ascending=False)
    assert times == list(every.iloc[100:150])
    assert link_of(visit("launches", launch="120"), "page") == "3"


def test_of_a_large_report_the_other_metrics_are_read_when_a_launch_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "repeated.ncu-rep"
    launches = large.report(path, 1, "rtx3070_nvtx_ranges.ncu-rep")
    every, sample = parse.load(path), parse.load(REPORTS / "rtx3070_nvtx_ranges.ncu-rep")
    assert len(every.launches) == launches == 21  # 0.16 MB with three, then pairs of 84 kB up to 1 MB
    assert every.reread is None
    monkeypatch.setattr(report, "ALL_VALUES", 1000)
    part = build.bundle(report.read(path, "repeated"), "repeated", {"name": path.name})
    assert len(part.raw(0)) < 200 < len(every.raw(0))
    assert part.profile["metrics_left_out"] == len(every.raw(0)) - len(part.raw(0))
    monkeypatch.setattr(child, "run", lambda *_, **__: [bundles.write(part, tmp_path / "part")])
    made = parse.load(path)
    monkeypatch.undo()
    columns = ["metric", "unit", "value", "used_for"]
    for number, like in ((0, 0), (launches - 1, 2)):
        again = made.reread(number)
        assert set(again["launch"]) == {number}
        assert again[columns].fillna("").to_dict("list") == sample.raw(like)[columns].fillna("").to_dict("list")
    path.unlink()
    with pytest.raises(BadInput, match="no longer there"):
        made.reread(0)


def test_an_added_file_that_is_read_again_goes_with_its_shelf(tmp_path, monkeypatch):
    class Again:
        """Stands for the reader of a large report."""

    monkeypatch.setattr(store, "state", SimpleNamespace(put=lambda *_: None, wish=lambda _: None))
    shelves = store.Shelves()
    monkeypatch.setattr(store, "shelves", lambda: shelves)
    seen = []

    def load(path, name, progress):
        seen.append(path)
        return replace(synthetic.bundle(lengths=(512,)), reread=Again() if len(seen) == 1 else None)

    monkeypatch.setattr(parse, "load", load)
    kept = store.add_file("large.ncu-rep", b"1" * 1000)
    assert kept.disk_bytes == 1000 and seen[0].read_bytes() == b"1" * 1000
    store.add_file("small.ncu-rep", b"2")
    assert not seen[1].exists()
    del kept
    shelves._shelves.clear()
    gc.collect()
    assert not seen[0].exists()
