"""Numbers as exports print them: thousands separators, decimal points or commas, and things that are no number.

Whether a comma groups or divides cannot be told from one cell ("1,234"), so the whole file is asked first:
``Format.of``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from profiler.metrics import units

NOT_A_NUMBER = frozenset(("", "n/a", "na", "nan", "-nan", "inf", "-inf", "(!)", "-", "null", "none", "#n/a", "(null)"))
_GROUP = re.compile(r"(?<=\d)['’ \u00a0\u202f\u2009](?=\d{3}(?:\D|$))")  # 83'886'080 and 83 886 080
_PLAIN = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[+-]?\.\d+(?:[eE][+-]?\d+)?", re.ASCII)
_POINT_SURE = re.compile(
    r"[+-]?(?:\d{1,3}(?:,\d{3})+\.\d+|\d{1,3}(?:,\d{3}){2,}|0?\.\d+|0\d*\.\d+|\d{4,}\.\d+|\d+\.(?:\d{1,2}|\d{4,}))",
    re.ASCII)
_COMMA_SURE = re.compile(
    r"[+-]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}|0?,\d+|0\d*,\d+|\d{4,},\d+|\d+,(?:\d{1,2}|\d{4,}))",
    re.ASCII)
_UNSURE = re.compile(r"[+-]?[1-9]\d{0,2}([.,])\d{3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Format:
    """decimal: "." or ",". notes: what there is to say of how it was found."""

    decimal: str = "."
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cells: Iterable[tuple[str, str]], delimiter: str = ",") -> Format:
        """The format of a file from its (value, unit) cells.

        Sure signs first (two groups, a leading zero, other than three digits after the mark), then what a unit says
        of an unsure
        one: whole things such as bytes carry no decimals, a percentage is below 1,000. With no sign at all the comma
        groups, as
        Nsight Compute prints it, unless the file is delimited by semicolons, as spreadsheets do where the comma is
        decimal.
        """
        point = comma = 0
        unsure: list[tuple[str, str]] = []
        for text, unit in cells:
            value = _GROUP.sub("", text.strip())
            if _POINT_SURE.fullmatch(value):
                point += 1
            elif _COMMA_SURE.fullmatch(value):
                comma += 1
            elif match := _UNSURE.fullmatch(value):
                unsure.append((match[1], unit))
        if not point and not comma:
            for mark, unit in unsure:
                known = units.base(unit)
                if known is None:
                    continue
                factor, name = known
                groups = name in units.WHOLE and factor == 1.0
                if groups or name == "%":
                    if (mark == ",") == groups:
                        point += 1
                    else:
                        comma += 1
        if comma > point or (not comma and not point and unsure and delimiter == ";"):
            notes = ["Numbers were read with a decimal comma (1.234,5), as the whole file shows."]
            if point:
                notes.append(f"{point} of its numbers look as if they had a decimal point.")
            return cls(",", tuple(notes))
        if comma:
            return cls(".", (f"{comma} numbers look as if they had a decimal comma; the file was read with a point.",))
        if unsure and not point:
            return cls(".", ("Nothing in the file says whether the comma of 1,234 groups or divides; it was read as "
                             "one thousand two hundred thirty-four, as Nsight Compute prints it.",))
        return cls()

    def number(self, text: str) -> int | float | None:
        """The number in ``text``: whole ones as int, so that a counter keeps all its digits; None where it holds
        none."""
        value = text.strip()
        if value.startswith("(!)"):
            value = value[3:].strip()
        if value.endswith(")"):  # with --print-metric-instances the parts follow the whole: "12 (5; 7)"
            value = value.partition(" (")[0]
        if value.lower() in NOT_A_NUMBER:
            return None
        value = _GROUP.sub("", value)
        if self.decimal == ".":
            if "," in value:
                if not re.fullmatch(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?", value):
                    return None
                value = value.replace(",", "")
        else:
            if "." in value and not re.fullmatch(r"[+-]?\d{1,3}(?:\.\d{3})+(?:,\d*)?", value):
                return None
            value = value.replace(".", "").replace(",", ".")
        if not _PLAIN.fullmatch(value) or len(value) > 400:
            return None
        if value.lstrip("+-").isdecimal() and len(value) <= 20:
            return int(value)
        number = float(value)
        return number if math.isfinite(number) else None


def looks_numeric(text: str) -> bool:
    """Whether a cell is a number in any format."""
    value = _GROUP.sub("", text.strip())
    return bool(value) and value[0] in "+-.,0123456789" and bool(re.fullmatch(
        r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?", value))


def looks_numeric_or_none(text: str) -> bool:
    """Whether a cell is a number, or says that there is none."""
    value = text.strip().lower()
    return looks_numeric(text) or (value != "" and value.removeprefix("(!)").strip() in NOT_A_NUMBER)
