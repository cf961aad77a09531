"""Rows of a table as mappings whose columns become Python values when first asked for: of the 51 columns of 20,000
launches a page asks for a third."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from profiler import table


class Columns:
    """A table's columns as lists of plain values (None for null), each made once."""

    def __init__(self, frame: pd.DataFrame):
        self.frame = frame
        self._made: dict[str, list[Any]] = {}

    def of(self, name: str) -> list[Any]:
        """Raises KeyError for a column that the table does not have."""
        if name not in self._made:
            self._made[name] = table.values(self.frame[name])
        return self._made[name]

    def rows(self) -> list[Row]:
        return [Row(self, number) for number in range(len(self.frame))]


class Row(Mapping[str, Any]):
    """One row; values are those of ``table.records``."""

    __slots__ = ("_columns", "_number")

    def __init__(self, columns: Columns, number: int):
        self._columns, self._number = columns, number

    def __getitem__(self, name: str) -> Any:
        return self._columns.of(name)[self._number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.frame.columns)

    def __len__(self) -> int:
        return len(self._columns.frame.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a row that is kept apart from its table is small
