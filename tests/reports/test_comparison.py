"""The page that compares runs tells what each run's folder tells."""

import json
from pathlib import Path

import pytest
import yaml

from dlrm_app.config.report import ReportConfig
from dlrm_app.config.words import WordReader
from dlrm_app.errors import ConfigError
from dlrm_app.reports.comparison import check_runs, differences, read_runs, report_runs
from tests.training.run_fixture import evaluation, read_report, write_run


def test_every_runs_last_metrics_curves_and_speed_are_on_it(tmp_path: Path) -> None:
    for index, name in enumerate(("a", "b")):
        write_run(tmp_path / name)
        with (tmp_path / name / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(evaluation("test", 40, auc=0.61 + index / 64)) + "\n")
    compared = report_runs(config_of(str(tmp_path)))
    page = read_report(tmp_path / "compare.html")
    assert {"0.61000", "0.62562", "4.32k"} <= {*page.numbers}
    assert any(tip.startswith("10 rows, a: ") for tip in page.tips)
    assert any(tip.startswith("40 rows, b: ") for tip in page.tips)
    assert page.addresses == []
    assert "0.61000" in str(compared)
    assert "0.61000" in compared._repr_html_()
    assert [path.name for path in compared.runs] == ["a", "b"]


def test_runs_are_compared_on_val_where_one_was_not_tested(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", splits=("val",), finished=False)
    report_runs(config_of(str(tmp_path)))
    text = read_report(tmp_path / "compare.html").text
    assert "Results on val" in text
    assert "b (not finished)" in text
    assert "1 of them finished" in text


def test_runs_measured_on_other_rows_are_named(tmp_path: Path) -> None:
    for name, clicks in (("a", 250), ("b", 250), ("c", 251)):
        write_run(tmp_path / name)
        with (tmp_path / name / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**evaluation("test", 40), "positives": clicks}) + "\n")
    assert "not comparable" not in str(report_runs(config_of(str(tmp_path / "a"), str(tmp_path / "b"))))
    page = report_runs(config_of(str(tmp_path)))
    said = "different rows of test (a, b: 1,000 rows, 250 clicks; c: 1,000 rows, 251 clicks)"
    assert said in str(page)
    assert said in read_report(page.path).text


def config_of(*runs: str) -> ReportConfig:
    return ReportConfig(runs=list(runs))


def test_folders_are_typed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is there is a run whatever its name; a word with = is a setting otherwise."""
    monkeypatch.chdir(tmp_path)
    Path("lr=0.1").mkdir()
    words = ["a", "split=val", "lr=0.1", 'b"c', 'c\\"d', "e\\"]
    settings, problems = WordReader(ReportConfig, "report", "runs").read(words).finish()
    assert settings == {"runs": ["a", "lr=0.1", 'b"c', 'c\\"d', "e\\"], "split": "val"}
    assert problems == []


def test_a_sweeps_folder_stands_for_its_runs_each_once(tmp_path: Path) -> None:
    for name in ("sweep/0", "sweep/1", "other/deep"):
        write_run(tmp_path / name)
    runs = read_runs([f"{tmp_path}/sweep", f"{tmp_path}/sweep/../sweep/1", f"{tmp_path}/other/deep"])
    assert list(runs) == ["sweep/0", "sweep/1", "other/deep"]


def test_every_folder_without_a_run_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(ConfigError) as error:
        check_runs(config_of(f"{tmp_path}/run", f"{tmp_path}/a", f"{tmp_path}/b"))
    assert f"{tmp_path}/a holds no run" in str(error.value)
    assert f"{tmp_path}/b holds no run" in str(error.value)
    assert f"{tmp_path}/run " not in str(error.value)


def test_differences_are_the_keys_whose_values_differ(tmp_path: Path) -> None:
    """Lists of named items by the items' names; where a run lies is no difference."""
    for name, rate, rows in (("a", 0.1, 10), ("b", 0.1, 20), ("c", 0.2, 20)):
        write_run(tmp_path / name)
        config = {
            "optimizer": {"lr": rate, "name": "adam"},
            "tables": {"specs": [{"name": "t", "rows": rows}]},
            "output": name,
            "trainer": {"global_batch_size": 1},
        }
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config))
    assert differences(read_runs([str(tmp_path)])) == {
        "optimizer.lr": ["0.1", "0.1", "0.2"],
        "tables.specs.t.rows": ["10", "20", "20"],
    }
