"""Sources are read ahead only while nobody waits, and one that cannot be read stops nothing."""

import time

from profiler.dashboard.ahead import Ahead
from profiler.errors import BadInput


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
