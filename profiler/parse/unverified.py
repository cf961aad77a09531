"""The forms that no real file could be had of to check the reader on. Said of each bundle read from one where the file
shows which form it is, and all of them on the page about the data."""

from __future__ import annotations

ENDINGS = {
    ".nsight-cuprof-report": "an older ending; read as a .ncu-rep.",
    ".ncu-repz": "unpacked (zstd) and read as a .ncu-rep.",
}
NVTX_PAGE = "A text page with NVTX ranges"
FORMS = {
    **ENDINGS,
    NVTX_PAGE: "the lines above the tables are read as ranges from outermost to innermost.",
    "CSV of the raw page, a row a launch": "read as ncu's documentation and parsers in public describe it, and checked "
                                           "on files made by hand.",
    "CSV with a decimal comma": "checked on files made by hand.",
    "Binary reports of Pascal, Turing, Ada and Blackwell GPUs": "their metrics are found by the names in NVIDIA's "
                                                                "lists; real ones were read of Volta, Ampere and "
                                                                "Hopper.",
}


def note(form: str) -> str:
    """The sentence about one of FORMS."""
    return f"{form}: unverified, as no real file of this form could be had; {FORMS[form]}"


def of_name(name: str) -> list[str]:
    """The sentences that the name of a file calls for."""
    return [note(ending) for ending in ENDINGS if name.endswith(ending)]
