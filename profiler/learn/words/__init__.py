"""The texts of the Learn page, one Markdown file a section and language: `## key` starts a text.

The files of every language hold the same keys and, in `{braces}`, the same placeholders.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
LANGUAGES = {"en": "English", "zh": "简体中文"}


class Words:
    """The texts of one section in one language: `words("key", placeholder=value)`."""

    def __init__(self, language: str, texts: dict[str, str]):
        self.language, self.texts = language, texts

    def __call__(self, key: str, **values: object) -> str:
        return self.texts[key].format(**values)


@lru_cache(maxsize=64)
def read(language: str, section: str) -> Words:
    """The words of `section`; FileNotFoundError for one that is not there."""
    content = (FOLDER / language / f"{section}.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\S+)\n", content, flags=re.MULTILINE)
    return Words(language, {key: body.strip() for key, body in zip(parts[1::2], parts[2::2])})
