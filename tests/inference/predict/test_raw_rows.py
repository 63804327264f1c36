"""Parquet columns of any type as the text that the parser reads, or refused by their name."""

import pyarrow as pa
import pytest

from dlrm_app.errors import DataError
from dlrm_app.inference.predict.raw_rows import FIELD, lines_of
from dlrm_app.preprocess.read.spec import Column, Spec

NOT_READ = "\0"
"""What the parser rejects."""


def texts(kind: str, values: pa.Array, separator: str | None = None) -> list[str]:
    spec = Spec("x", FIELD, None, False, (Column("x", "dense", kind, separator),))
    return lines_of(pa.table({"x": values}), spec)


def test_numbers_that_no_integer_holds_are_rejected_and_never_another_number() -> None:
    given = [1.0, float("inf"), float("-inf"), 1e300, -(2.0**63), 2.5, float("nan"), None]
    bad = [NOT_READ] * 5
    assert texts("integer", pa.array(given)) == ["1", *bad, "", ""]


def test_lists_that_no_raw_log_holds_are_rejected_and_never_another_list() -> None:
    """An item with the separator would be two; a single missing one would be none."""
    given = pa.array([["a", None, "b"], [], None, ["a|b"], [None], [""], ["a", "x^y"], [None, None]])
    assert texts("string", given, "|") == [
        "a\x1e\x1eb",
        "",
        "",
        NOT_READ,
        NOT_READ,
        NOT_READ,
        "a\x1ex^y",
        "\x1e",
    ]
    assert texts("string", pa.array([["a", "x^y"]]), "^") == [f"a\x1e{NOT_READ}"]


@pytest.mark.parametrize("values", [pa.array([{"a": 1}]), pa.array([b"\xff\xfe"])])
def test_what_is_no_text_is_refused_by_its_column(values: pa.Array) -> None:
    with pytest.raises(
        DataError, match=r"column x is (struct|binary).*, which is no text or number: cast it"
    ):
        texts("string", values)
