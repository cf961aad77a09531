"""Tidy tables to Plotly figures; no Streamlit.

One module a figure, each with ``frame`` (what it draws, as a table) and the function that draws it: ``ledger``,
``roofline`` (its points in ``points``), ``scaling``, ``theorem``, ``traffic``, ``parity``, ``bounds``, ``bars``,
``quadrant``, ``tuning`` (its rows in ``tuning_rows``), ``pyramid``, ``what_if``. Every figure takes ``theme`` ("light",
"dark") and ``size`` ("page", "talk"), has a generated finding as its title, and carries its data:
``canvas.to_frame(figure)``. ``units`` is the only home of number formatting, ``labels`` of names.
"""
