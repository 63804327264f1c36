"""The page that compares runs tells what each run's folder tells."""

import json
from pathlib import Path

import pytest

from dlrm_app.reports.comparison.compare import report
from tests.reports.comparison.test_runs import config_of
from tests.training.run_fixture import evaluation, read_report, write_run


def test_every_runs_last_metrics_curves_and_speed_are_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for index, name in enumerate(("a", "b")):
        write_run(tmp_path / name)
        with (tmp_path / name / "metrics.jsonl").open("a") as file:
            for event in evaluation("test", 40, auc=0.61 + index / 64):
                file.write(json.dumps(event) + "\n")
    report(config_of(str(tmp_path)))
    page = read_report(tmp_path / "compare.html")
    shown = {float(value) for value, _ in page.numbers}
    assert {0.61, 0.61 + 1 / 64, 4321.5} <= shown
    assert any(tip.startswith("a, 10 rows: ") for tip in page.tips)
    assert any(tip.startswith("b, 40 rows: ") for tip in page.tips)
    assert page.addresses == []
    out = capsys.readouterr().out
    assert "0.61000" in out
    assert f"checkpoint={tmp_path}/b" in out  # the better one is suggested next
    assert out.rstrip().endswith("compare.html")


def test_runs_are_compared_on_val_where_one_was_not_tested(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", splits=("val",), finished=False)
    report(config_of(str(tmp_path)))
    text = read_report(tmp_path / "compare.html").text
    assert "Results on val" in text
    assert "b (not finished)" in text
    assert "1 of them finished" in text


def test_nine_runs_are_all_in_the_table_and_eight_are_drawn(tmp_path: Path) -> None:
    for name in "abcdefghi":
        write_run(tmp_path / name)
    report(config_of(str(tmp_path)))
    page = read_report(tmp_path / "compare.html")
    assert "1 more run is not drawn" in page.text
    assert not any(tip.startswith("i, ") for tip in page.tips)
    assert all(name in page.text for name in "abcdefghi")
