"""The texts: every language says the same things, with the same placeholders and nothing left empty."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from string import Formatter

import pytest

from profiler.dashboard.components.learn import CHAPTERS
from profiler.learn import words

SECTIONS = ("page", *CHAPTERS)
LETTERS = {"zh": re.compile(r"[\u4e00-\u9fff]")}
WORDS = re.compile(r"\b(the|of|and|in|is|are|not|with|for|once|block|row|rows|name)\b")  # an English text has one


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("language", [code for code in words.LANGUAGES if code != "en"])
def test_a_translation_has_the_keys_and_placeholders_of_english(section, language):
    english, other = words.read("en", section).texts, words.read(language, section).texts
    assert list(other) == list(english)
    for key, text in english.items():
        assert placeholders(other[key]) == placeholders(text), key
        assert text and other[key], f"{key} is empty"


@pytest.mark.parametrize("section", SECTIONS)
def test_chinese_texts_are_chinese(section):
    for key, text in words.read("zh", section).texts.items():
        said = re.sub(r"`[^`]*`|\{\w+\}", "", text)
        if not LETTERS["zh"].search(said):  # formulas and names of things only
            assert not WORDS.search(said), f"{section}.{key} is not translated: {text}"


@pytest.mark.parametrize("section", SECTIONS)
def test_no_key_is_given_twice(section):
    for language in words.LANGUAGES:
        file = words.FOLDER / language / f"{section}.md"
        keys = re.findall(r"^## (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(keys) == len(set(keys)) == len(words.read(language, section).texts)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_text_that_a_chapter_names_is_there(chapter):
    """Keys written out in the chapter's code; those built from a name are met by the page tests."""
    module = import_module(f"profiler.dashboard.components.learn.{chapter}")
    known = {"words": words.read("en", chapter).texts, "common": words.read("en", "page").texts}
    named = 0
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known and node.args \
                and isinstance(node.args[0], ast.Constant):
            named += 1
            assert node.args[0].value in known[node.func.id], node.args[0].value
    assert named
