"""The link: what it asks for is shown, what does not exist gives the default and a note, and a page change keeps it."""

from streamlit.testing.v1 import AppTest


def script():
    import streamlit as st

    from profiler.dashboard import state

    state.begin()
    mask = state.select("Mask", "mask", {"full": "full mask", "causal": "causal mask"}, "full")
    compare = state.select_several("Compare", "compare", {"a": "A", "b": "B", "c": "C"}, ["a", "b"])
    search, log = state.words("Search", "search"), state.flag("Log", "log")
    for name, value in (("mask", mask), ("compare", ",".join(compare)), ("search", search), ("log", log)):
        st.text(f"{name}={value}")
    for note in state.notes():
        st.info(note)
    state.commit()


def app(**link) -> AppTest:
    test = AppTest.from_function(script)
    for name, value in link.items():
        test.query_params[name] = value
    return test.run()


def shown(test: AppTest) -> dict[str, str]:
    return dict(line.value.split("=", 1) for line in test.text)


def link(test: AppTest, name: str) -> str:
    value = test.query_params[name]  # a list or a text, depending on Streamlit's version
    return value[0] if isinstance(value, list) else value


def test_defaults_without_a_link():
    test = app()
    assert shown(test) == {"mask": "full", "compare": "a,b", "search": "", "log": "False"}
    assert not test.info
    assert link(test, "mask") == "full"


def test_a_link_gives_its_view():
    test = app(mask="causal", compare="c,a", search="soft max", log="on")
    assert shown(test) == {"mask": "causal", "compare": "a,c", "search": "soft max", "log": "True"}
    assert test.selectbox[0].value == "causal"
    assert test.multiselect[0].value == ["a", "c"]
    assert not test.info


def test_bad_parameters_give_the_default_and_a_note():
    test = app(mask="<b>sideways</b>", compare="zzz,b", log="maybe", search="x" * 5000)
    assert shown(test)["mask"] == "full" and shown(test)["compare"] == "b" and shown(test)["log"] == "False"
    notes = " ".join(i.value for i in test.info)
    assert "mask" in notes and "zzz" in notes and "log" in notes
    assert len(shown(test)["search"]) == 400


def test_a_choice_goes_into_the_link_and_wins_over_the_old_link():
    test = app(mask="causal")
    test.selectbox[0].select("full").run()
    assert shown(test)["mask"] == "full"
    assert link(test, "mask") == "full"
    test.multiselect[0].unselect("a").run()
    assert link(test, "compare") == "b"


def test_choosing_nothing_stays_nothing():
    test = app(compare="b")
    test.multiselect[0].unselect("b").run()
    assert shown(test)["compare"] == ""
    test.run()
    assert shown(test)["compare"] == "" and test.multiselect[0].value == []


def test_a_page_change_empties_the_link_but_not_the_choice():
    test = app(mask="causal")
    test.query_params.clear()
    test.run()
    assert shown(test)["mask"] == "causal"
    assert link(test, "mask") == "causal"
