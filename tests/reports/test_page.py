"""The frame that every page has."""

from dlrm_app.reports.page import Tile, configuration, facts, page, tiles
from dlrm_app.reports.plan import plan_page
from dlrm_app.sharding.cost import estimate_options
from dlrm_app.sharding.plan import to_plan
from dlrm_app.sharding.search import search
from dlrm_app.table import Cell
from tests.sharding.clusters import cluster, one_hot, workload


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
    made = tiles([Tile("<a>", Cell("<1>", 1.0), "<x>")]) + facts({"<b>": "<2>"}) + configuration({"k": "<c>"})
    for text in ("a", "1", "x", "b", "2", "c"):
        assert f"&lt;{text}&gt;" in made


def test_a_plans_page_shows_every_rank_and_escapes_names() -> None:
    work, where = workload([one_hot(100, name="<b>")]), cluster(3)
    options = estimate_options(work, where)
    found = search(options, where)
    assert found is not None
    plan = to_plan(found, options, dict.fromkeys(work.tables, "bags"), work, where)
    made = plan_page(plan, "a & b")
    assert all(f"rank {rank}: " in made for rank in range(3))
    assert "&lt;b&gt;" in made
    assert "<b>" not in made
    assert "<title>a &amp; b" in made
