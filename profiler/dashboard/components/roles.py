"""What the launches of a report do in attention: proposed, changed by the visitor, kept in the link."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from profiler import roles
from profiler.bundle import Bundle
from profiler.dashboard import state, store, text
from profiler.dashboard.components import boxes
from profiler.figures import units

PROPOSED = "proposed"  # in the link: the proposals as they are
MOST = 200  # kernels that the table shows


def panel(source: store.Source, several: bool = False) -> None:
    """The table of kernels with their roles, and the attention call they make; nothing for a profile of our own.

    several: one of several sources, so the title says which, and a report with no role to speak of gets none.
    """
    found = store.derive(source, groups)
    if not found:
        return
    parameter, call = (f"{name}-{source.key}" for name in (store.ROLES_PARAMETER, store.CALL_PARAMETER))
    wish = state.wish(parameter)
    chosen = roles.chosen(wish)
    named = sum(bool(roles.effective(group, chosen)) for group in found)
    if several and not named:
        return
    kernels = "kernel" if len(found) == 1 else "kernels"
    title = text.ROLES_TITLE.format(count=units.whole(named), all=f"{units.whole(len(found))} {kernels}")
    with st.expander(f"{boxes.plain(source.label)}: {title}" if several else title, icon=":material/label:"):
        st.caption(text.ROLES_LEAD)
        key = f"roles.{source.key}"
        st.data_editor(
            table(found, chosen), key=key, hide_index=True, on_change=_take, args=(key, parameter, found, chosen),
            disabled=[name for what, name in text.ROLES_COLUMNS.items() if what != "role"],
            column_config={text.ROLES_COLUMNS["role"]: st.column_config.SelectboxColumn(
                options=list(text.ROLE_NAMES.values()), required=True)})
        with st.container(horizontal=True, vertical_alignment="bottom"):
            said = roles.call_in(group.range for group in found)
            if wish is not None:
                state.words(text.CALL, call, placeholder=said or roles.EXAMPLE, help=text.CALL_HELP)
                st.button(text.ROLES_FORGET, key=f"forget.{key}", on_click=_put, args=(parameter, None, call, None))
            else:
                st.button(text.ROLES_USE, key=f"use.{key}", type="primary", disabled=not named, on_click=_put,
                          args=(parameter, PROPOSED, call, state.wish(call) or said or None))


def groups(bundle: Bundle) -> list[roles.Group]:
    """The kernels of a report; none of a bundle that names its configurations itself."""
    return [] if bundle.profile.get("kind") == "profile" else roles.groups(bundle.launches)[:MOST]


def table(found: list[roles.Group], chosen: dict[int, str]) -> pd.DataFrame:
    """A row a kernel: name, role and why, range, launches."""
    rows = [{"kernel": g.kernel, "role": text.ROLE_NAMES[roles.effective(g, chosen)],
             "why": text.ROLE_CHOSEN if g.first in chosen else g.proposed.why if g.proposed else "",
             "range": g.range, "launches": g.launches} for g in found]
    return pd.DataFrame(rows).rename(columns=text.ROLES_COLUMNS)


def _take(key: str, parameter: str, found: list[roles.Group], chosen: dict[int, str]) -> None:
    """Put the visitor's edits into the link."""
    edits: dict[int, dict[str, Any]] = st.session_state[key]["edited_rows"]
    words = {name: role for role, name in text.ROLE_NAMES.items()}
    new = {found[at].first: words[row[text.ROLES_COLUMNS["role"]]] for at, row in edits.items()
           if text.ROLES_COLUMNS["role"] in row}
    state.put(parameter, roles.link({**chosen, **new}) or PROPOSED)


def _put(*pairs: str | None) -> None:
    for name, value in zip(pairs[::2], pairs[1::2]):
        state.put(str(name), value)
