"""Shelves: nobody sees another's files, what is idle goes, memory stays bounded."""

import pytest

from profiler.dashboard import store
from profiler.errors import BadInput


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
