"""The synthetic bundle told once; changed copies of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from profiler.bundle import Bundle
from profiler.export import story
from tests import synthetic


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    return synthetic.bundle()


@pytest.fixture(scope="session")
def told(bundle) -> story.Story:
    return story.tell(bundle)


@pytest.fixture(scope="session")
def doctored(bundle) -> Callable[..., Bundle]:
    """doctored(implementation, column, add): that many more in every launch of an implementation."""

    def change(implementation: str, column: str, add: float) -> Bundle:
        launches = bundle.launches.copy()
        mine = launches["implementation"].eq(implementation).fillna(False).astype(bool)
        launches.loc[mine, column] = launches.loc[mine, column] + add
        return replace(bundle, launches=launches)

    return change
