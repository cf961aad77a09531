"""An app of one control: what Streamlit and this machine take, whatever an app does."""

import streamlit as st

st.write(st.segmented_control("Choice", ["one", "two", "three"], default="one"))
