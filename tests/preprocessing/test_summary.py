"""What is said once a dataset is made."""

import re
from pathlib import Path

import pytest

from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import AUTO, configure, make


def test_a_file_with_fewer_rows_than_were_published_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("day_0", 30), ("day_1.tsv", 40), ("other", 5)):
        Path(name).write_bytes(make_clicks(lines))
    published = "dataset.published_rows={day_0:31,day_1:40,day_2:9}"
    said = str(make(Path("out"), "input.train=[day_0,day_1.tsv,other]", published))
    warned = [line for line in said.splitlines() if line.startswith("warning")]
    assert [line.split(":")[1] for line in warned] == [" day_0 has 30 rows, 31 were published"]


def test_the_published_days_of_criteo_add_up() -> None:
    days = configure("dataset=criteo_1tb", "input.train=x", "output=x").dataset.published_rows
    assert days is not None
    assert list(days) == [f"day_{day}" for day in range(24)]
    assert sum(days.values()) == 4_373_472_329
    assert sum(days.values()) - days["day_23"] == 4_195_197_692  # MLPerf's number of training samples


def test_it_says_what_it_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.tsv").write_bytes(make_clicks(300))
    with caplog.at_level("INFO"):
        said = str(make(Path("k"), "input.train=log.tsv", "split.val=0.1", "split.test=0.1", *AUTO))
    assert re.search(r"train +240", said)
    assert re.search(r"300 rows in [0-9.]+ s: [0-9,]+ rows/s", said)
    assert re.search(r"vocabulary, min_count \d+ +cat_0, cat_1", caplog.text)
    made = ["manifest.json", "rejects.jsonl", "target", "test", "train", "val", "vocab"]
    assert sorted(path.name for path in Path("k").iterdir()) == made
