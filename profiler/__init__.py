"""FlashScope's profiler: from a kernel on a GPU to the evidence on screen. See DESIGN.md."""

__version__ = "0.1.0"
