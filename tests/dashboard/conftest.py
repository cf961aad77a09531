"""A data folder with the made-up bundle and sample reports, and the app on it."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from profiler import bundle
from tests import synthetic

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "tests" / "data" / "reports"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """A data folder: one bundle, one sample report."""
    folder = tmp_path_factory.mktemp("data")
    bundle.write(synthetic.bundle(), folder / "synthetic")
    (folder / "reports").mkdir()
    shutil.copy(REPORTS / "h100_five_kernels.ncu-rep", folder / "reports")
    return folder


@pytest.fixture
def data(recorded, monkeypatch) -> Path:
    monkeypatch.setenv("FLASHSCOPE_DATA", str(recorded))
    st.cache_resource.clear()
    return recorded


@pytest.fixture
def shipped(monkeypatch) -> Path:
    """The profiles that come with the project."""
    monkeypatch.delenv("FLASHSCOPE_DATA", raising=False)
    st.cache_resource.clear()
    return ROOT / "data"


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FLASHSCOPE_DATA", str(tmp_path))
    st.cache_resource.clear()
    return tmp_path


@pytest.fixture
def open_page(data) -> Callable[..., AppTest]:
    """open_page(name, **link): the page with that link, drawn."""
    return visit


def visit(name: str, **link: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    app.switch_page(f"profiler/dashboard/pages/{name}.py").run()
    if link:  # after the page change, which empties the query string
        for key, value in link.items():
            app.query_params[key] = value
        app.run()
    return app


def charts(app: AppTest) -> list[dict]:
    """Data and layout of the figures on the page."""
    return [json.loads(sent["spec"]) for sent in sent_charts(app)]


def sent_charts(app: AppTest) -> list[dict]:
    """What the browser gets of each figure; not of the component that draws nothing."""
    return [sent for one in app.get("bidi_component") if "spec" in (sent := json.loads(one.proto.json or "{}") or {})]


def table(app: AppTest, heading: str) -> list[dict[str, str]]:
    """The rows of the page's table of words that has a column of that heading."""
    for said in (html.unescape(m.value).replace("\\", "") for m in app.markdown if m.value.startswith("| ")):
        names, _, *rows = [line.strip("| ").split(" | ") for line in said.splitlines()]
        if heading in names:
            return [dict(zip(names, row)) for row in rows]
    return []


def link_of(app: AppTest, name: str) -> str:
    """A parameter of the page's link; empty where it has none."""
    value = app.query_params.get(name, "")
    return value[0] if isinstance(value, list) else value


def upload(app: AppTest, *files: Path) -> AppTest:
    """Add files as a visitor does."""
    for file in files:
        app.sidebar.file_uploader[0].upload(file.name, file.read_bytes())
    return app.run()
