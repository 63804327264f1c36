"""Lists in messages."""

from dlrm_app.text import first_lines, listed


def test_a_list_names_the_first_and_counts_the_rest() -> None:
    assert listed(["a", "b"], 2) == "a, b"
    assert listed([0, 1, 2], 1) == "0 and 2 more"
    assert listed(range(2004), 3) == "0, 1, 2 and 2,001 more"
    assert first_lines(["a", "b"], 2) == ["a", "b"]
    assert first_lines(["a", "b", "c"], 1) == ["a", "… and 2 more"]
