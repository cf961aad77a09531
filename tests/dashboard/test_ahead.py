"""Sources are read ahead only while nobody waits, and one that cannot be read stops nothing."""

import gc
import sys
import time

import pytest

from profiler.dashboard import ahead as ahead_of
from profiler.dashboard import store
from profiler.dashboard.ahead import Ahead
from profiler.errors import BadInput
from tests.dashboard.conftest import ROOT, data, empty, shipped, visit  # noqa: F401

SWITCH = sys.getswitchinterval()


def test_reading_ahead_waits_for_a_quiet_moment_and_goes_on_after_an_error():
    done = []

    def broken():
        done.append("broken")
        raise BadInput("not a profile")

    ahead = Ahead(quiet=0.02)
    with ahead.page():
        thread = ahead.work([lambda: done.append("first"), broken, lambda: done.append("last")])
        time.sleep(0.2)
        assert done == [], "a page is being drawn"
    thread.join(20)
    assert done == ["first", "broken", "last"]


@pytest.mark.parametrize("folder", ["data", "shipped"])
def test_what_the_first_page_asks_is_answered_before_anybody_comes(folder, request):
    request.getfixturevalue(folder)

    def asked() -> dict[str, list]:
        keys = list(store._kept()[1]._entries)
        return {name: [key for key in keys if name in str(key)] for name in ("headline", "faster", "evaluate_beside")}

    gc.disable()
    ahead_of.first()
    ahead_of.rest()
    assert gc.isenabled() and sys.getswitchinterval() == SWITCH
    before = asked()
    assert all(len(keys) == 1 for keys in before.values())
    assert visit("evidence").title and asked() == before


def test_without_a_source_the_server_starts_all_the_same(empty):  # noqa: F811
    ahead_of.first()
    ahead_of.rest()
    assert not len(store._kept()[1])


def test_streamlit_finds_what_prepares_the_first_page():
    """It reads the file, and takes the app only from an assignment that it knows."""
    discovery = pytest.importorskip("streamlit.web.server.app_discovery")  # newer Streamlit
    assert discovery.discover_asgi_app(ROOT / "app.py").import_string == "app:app"
