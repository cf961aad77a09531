"""An address that leads nowhere: what was asked for, and every page there is."""

from profiler.dashboard import frame, text
from profiler.dashboard.components import boxes

boxes.missing(text.NO_PAGE.format(name=frame.asked()), text.NO_PAGE_REMEDY,
              pages=tuple(name for entries in frame.LIST.values() for name, _ in entries))
