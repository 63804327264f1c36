"""The frame that every page has."""

from dlrm_app.reports.page import Tile, details, page, tiles


def test_a_page_names_itself_and_needs_nothing_from_elsewhere() -> None:
    """The title is text, which is escaped; the other parts stand as they are given."""
    made = page("a & <b>", "kind", summary="<i>well</i>", sections=["<p>all</p>", ""])
    assert "<title>a &amp; &lt;b&gt; – kind</title>" in made
    assert "<h1>a &amp; &lt;b&gt;</h1>\n<p><i>well</i></p>" in made
    assert "<main>\n<section><p>all</p></section>\n</main>\n<script>" in made
    assert "--page: #f6f7f9" in made
    assert "src=" not in made
    assert "href=" not in made


def test_names_and_values_are_text() -> None:
    made = tiles([Tile("<a>", "<1>", "<x>")]) + details("<b>", {"k": "<c>"})
    for text in ("a", "1", "x", "b", "c"):
        assert f"&lt;{text}&gt;" in made
