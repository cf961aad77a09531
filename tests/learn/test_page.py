"""The Learn page: every chapter in every language, with and without data; links, controls, what is said."""

from __future__ import annotations

import pytest

from profiler.dashboard.components.learn import CHAPTERS
from profiler.learn import words
from tests.dashboard.conftest import charts, data, empty, link_of, recorded, shipped, visit  # noqa: F401 (fixtures)

FIGURES = {"online": 1, "blocks": 1, "memory": 1, "sram": 1, "backward": 1, "kernel": 2, "choose": 1}


def titles(app) -> list[str]:
    return [note["text"].replace("<br>", " ") for figure in charts(app) for note in figure["layout"]["annotations"]
            if note.get("name") == "title"]


def assert_sound(app) -> None:
    assert [e.value for e in app.exception] == []
    assert [e.value for e in app.error] == []


@pytest.mark.parametrize("language", words.LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_in_every_language(chapter, language, shipped):  # noqa: F811
    app = visit("learn", chapter=chapter, lang=language)
    assert_sound(app)
    assert not app.info
    assert app.title[0].value == words.read(language, "page")(chapter)
    assert len(charts(app)) == FIGURES.get(chapter, 0)
    assert (link_of(app, "chapter"), link_of(app, "lang")) == (chapter, language)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_without_any_data(chapter, empty):  # noqa: F811
    app = visit("learn", chapter=chapter)
    assert_sound(app)
    assert len(charts(app)) == FIGURES.get(chapter, 0)
    if chapter == "beliefs":
        assert any("No profile is loaded" in m.value for m in app.markdown)


def test_the_worked_example_comes_first_and_own_numbers_after(data):  # noqa: F811
    app = visit("learn")
    assert "1.5530" in titles(app)[0]
    assert any("1.5530" in m.value for m in app.markdown)
    app.query_params.update({"scores": "0, 0, 0", "keys": "1"})
    app.run()
    assert_sound(app)
    assert "l becomes 3.0000" in titles(app)[0]
    assert not any("1.5530" in m.value for m in app.markdown)
    app.query_params["scores"] = "1, 3, 0"
    app.run()
    assert "Block 2 raised m to 3" in titles(app)[0] and "l becomes 1.1353" in titles(app)[0]  # e⁻² + 1, before block 3
    app.query_params["scores"] = "-inf, one"
    app.run()
    assert_sound(app)
    assert "Every key is masked" in titles(app)[0]
    assert any("one" in c.value for c in app.caption)


def test_the_block_map_counts(data):  # noqa: F811
    """Nq = Nk = 512 in blocks of 64: 8 × 8 blocks, 8 on the diagonal, 28 on each side."""
    app = visit("learn", chapter="blocks")
    assert titles(app)[0] == "<b>Of 64 blocks 28 are full, 8 cross the diagonal and 28 are skipped</b>"
    app.query_params.update({"nq": "128", "nk": "64"})
    app.run()
    assert_sound(app)
    assert any(m.value.startswith("64 of the first queries") for m in app.markdown)


def test_measured_points_where_the_profile_has_the_shape(shipped):  # noqa: F811
    app = visit("learn", chapter="sram")
    assert any("Filled squares" in c.value for c in app.caption)
    app.query_params["d"] = "256"
    app.run()
    assert_sound(app)
    assert not any("Filled squares" in c.value for c in app.caption)


def test_next_and_back(data):  # noqa: F811
    app = visit("learn")
    next(b for b in app.button if b.key == "fs.learn.next").click().run()
    assert_sound(app)
    assert link_of(app, "chapter") == CHAPTERS[1]
    next(b for b in app.button if b.key == "fs.learn.previous").click().run()
    assert link_of(app, "chapter") == CHAPTERS[0]


def test_a_link_to_a_chapter_that_does_not_exist_says_so(data):  # noqa: F811
    app = visit("learn", chapter="alchemy", lang="xx")
    assert_sound(app)
    assert len(app.info) == 2


def test_every_fault_can_be_chosen(data):  # noqa: F811
    from profiler.learn import faults

    for fault in faults.FAULTS:
        app = visit("learn", chapter="faults", fault=fault.key)
        assert_sound(app)
        assert any(fault.code.__name__ in code.value for code in app.code)


def test_a_line_of_the_checklist_opens_its_function(data):  # noqa: F811
    from profiler.learn import reading

    place = reading.places("state")[0]
    app = visit("learn", chapter="reading")
    assert not any("return acc, l_i, m_i" in code.value for code in app.code)
    next(b for b in app.button if b.key == f"fs.code.{place.address}").click().run()
    assert_sound(app)
    assert link_of(app, "code") == place.address
    [shown] = [code.value for code in app.code if "return acc, l_i, m_i" in code.value]
    assert f"→{place.line:>4}" in shown
    next(b for b in app.button if b.key == f"fs.code.{place.address}").click().run()
    assert not any("return acc, l_i, m_i" in code.value for code in app.code)


def test_the_verdicts_of_claims_are_in_the_reader_s_language(shipped):  # noqa: F811
    said = " ".join(m.value for m in visit("learn", chapter="beliefs", lang="zh").markdown)
    assert "**成立**" in said and "**holds**" not in said
