"""Times in a format of their own, such as "%d/%b/%Y:%H:%M:%S %z": strptime's directives, compiled to a row of codes.

A code is a byte that stands for itself, or minus the place of a directive in DIRECTIVES, counted from 1. Numbers of
months, days and hours may have one digit. Times without %z are in UTC.
"""

import re

from dlrm_app.errors import Problem

DIRECTIVES = "YymbdHIpMSfz"
YEAR, SHORT_YEAR, MONTH, NAME, DAY, HOUR, HALF_HOUR, HALF, MINUTE, SECOND, FRACTION, ZONE = range(1, 13)
ROOM = 24
"""The most codes of a format."""


def compile_format(text: str) -> list[int]:
    """The codes of a format. Raises ValueError with the rule that it breaks."""
    codes = []
    for directive, literal in re.findall(r"%(.?)|([^%])", text, re.DOTALL):
        if directive == "" and literal == "":
            raise ValueError("must not end with %")
        if directive and directive != "%":
            if directive not in DIRECTIVES:
                raise ValueError(f"knows no %{directive}: use {' '.join(f'%{each}' for each in DIRECTIVES)}")
            codes.append(-1 - DIRECTIVES.index(directive))
        else:
            codes += (directive or literal).encode()
    given = [-code for code in codes if code < 0]
    has_one = [len({*given} & group) == 1 for group in ({YEAR, SHORT_YEAR}, {MONTH, NAME}, {DAY})]
    if len({*given}) < len(given) or not all(has_one):
        raise ValueError("must have a year (%Y or %y), a month (%m or %b), a day (%d), and nothing twice")
    if (HALF in given) != (HALF_HOUR in given) or {HOUR, HALF_HOUR} <= {*given}:
        raise ValueError("must have %H, or %I with %p")
    if len(codes) > ROOM:
        raise ValueError(f"must have at most {ROOM} marks")
    return codes


def format_problems(text: object) -> list[Problem]:
    """Problems of a column's ``format``."""
    if not isinstance(text, str) or not text:
        return [Problem("format", "must be a text such as '%d/%m/%Y %H:%M'", value=text)]
    try:
        compile_format(text)
    except ValueError as error:
        return [Problem("format", str(error), value=text)]
    return []
