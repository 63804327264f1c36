"""One table, as text and as HTML."""

import math

from dlrm_app.table import Cell, Column, Rows, html_table, integer, share, text_table

COLUMNS = ("split", Column("<rows>"), Column("why", is_words=True))
ROWS: Rows = [["train", integer(1000), "yes"], ["<val>", integer(10), "no"]]


def test_columns_stand_under_their_headings() -> None:
    assert text_table(COLUMNS, ROWS).splitlines() == [
        "split  <rows>  why",
        "train   1,000  yes",
        "<val>      10  no",
    ]


def test_a_page_has_the_same_cells_escaped() -> None:
    page = html_table(COLUMNS, ROWS)
    assert '<th scope="row" class="words">&lt;val&gt;</th>' in page
    assert '<td>1,000</td><td class="words">yes</td>' in page
    assert ">&lt;rows&gt;</th>" in page


def test_a_bar_is_as_long_as_the_share_and_never_leaves_its_cell() -> None:
    lengths = {0.25: "25.0%", 1.5: "100.0%", -1.0: "0.0%", math.nan: "0.0%"}
    for value, length in lengths.items():
        assert f'style="--length:{length}">' in share(value).html()
    assert share(0.25).text == "25%"
    assert share(None).html() == '<span class="none">–</span>'
    assert Cell("×2", 0.5).html() == '<span class="bar" style="--length:50.0%">×2</span>'
