"""The frame that every page has."""

from dlrm_app.display.page import page


def test_a_page_names_itself_and_needs_nothing_from_elsewhere() -> None:
    """The title is text, which is escaped; the other parts stand as they are given."""
    made = page("a & <b>", "kind", summary="<i>well</i>", content="<p>all</p>", style="p { margin: 0 }\n")
    assert "<title>a &amp; &lt;b&gt; – kind</title>" in made
    assert "<h1>a &amp; &lt;b&gt;</h1>\n<p><i>well</i></p>" in made
    assert "<main>\n<p>all</p>\n</main>\n</body>" in made
    assert made.index("--page: #f6f7f9") < made.index("p { margin: 0 }\n</style>")
    assert "src=" not in made
    assert "href=" not in made


def test_a_script_comes_after_what_it_works_on() -> None:
    made = page("a", "kind", summary="", content="all", style="", script="run();\n")
    assert "all\n</main>\n<script>\nrun();\n</script>\n</body>" in made
