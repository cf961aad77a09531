"""What a visitor must know of a source before reading it: rows that were kept apart, forms that nobody could check."""

from __future__ import annotations

import streamlit as st

from profiler.apart import PREFIX
from profiler.bundle import Bundle
from profiler.dashboard import state
from profiler.dashboard.components import boxes
from profiler.figures import labels
from profiler.parse import unverified

APART = ("{source}: {rows} cannot be and stand apart, with the launches of the same call. {first} "
         "“About the data” names all.")
UNVERIFIED_TITLE = "Forms of reports that are not verified"
UNVERIFIED_LEAD = ("No real file of these could be had: how they are read rests on documents and on files made by "
                   "hand.")


def kept_apart(bundle: Bundle) -> None:
    """Say above the page that rows of the source are not shown."""
    found = [note.removeprefix(PREFIX) for note in bundle.notes if note.startswith(f"{PREFIX}row ")]
    if found:
        state.note(APART.format(source=bundle.name, rows=labels.count(len(found), "row"),
                                first=f"{found[0][:1].upper()}{found[0][1:]}"))


def forms() -> None:
    """Folded: the forms without a real sample, and how they are read all the same."""
    with st.expander(UNVERIFIED_TITLE):
        st.markdown(UNVERIFIED_LEAD)
        st.markdown("\n".join(f"- **{boxes.plain(form)}**: {boxes.plain(how)}"
                              for form, how in unverified.FORMS.items()))
