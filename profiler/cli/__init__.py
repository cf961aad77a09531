"""The verbs of the command line, a file a group: ``measure.py`` on this machine, ``read.py`` on what was recorded."""
