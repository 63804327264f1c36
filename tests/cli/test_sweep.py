"""``--multirun`` as it is typed."""

from pathlib import Path

import pytest

from tests.commands import command, run, succeed


def test_a_failed_job_ends_the_sweep(tmp_path: Path) -> None:
    done = run(command("generate", "--multirun", "rows=10,-1,20", "output=d${rows}/clicks.tsv"), tmp_path)
    assert done.returncode == 2
    assert "combination 2: rows=-1 output=" in done.stderr
    assert "rows must be at least 1, got -1" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} & {"d10", "d-1", "d20"} == {"d10"}


def test_sweeps_take_files_of_one_name_and_options_among_words(tmp_path: Path) -> None:
    for name, rows in (("a", 30), ("b", 40)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.yaml").write_text(f"rows: {rows}\n")
    words = ["experiment=a/mine.yaml,b/mine.yaml", "-m", "output=clicks_${rows}.tsv"]
    succeed(command("generate", *words), tmp_path)
    assert {"clicks_30.tsv", "clicks_40.tsv"} <= {path.name for path in tmp_path.iterdir()}


def test_a_sweep_that_cannot_be_saved_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "multirun").write_text("a file where Hydra's folder should be")
    done = run(command("generate", "--multirun", "rows=10,20", "output=clicks_${rows}.tsv"), tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: multirun: File exists\n" or "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_that_is_named_as_a_group_is_the_same_in_all(tmp_path: Path) -> None:
    words = ["--multirun", "model=nowhere", "input=x", "which=newest,best", "output=s.parquet"]
    done = run(command("predict", *words), tmp_path)
    assert done.returncode == 2
    assert "combination 1: " in done.stderr
    assert "model=nowhere does not exist" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_each_run_of_a_sweep_is_composed_as_if_typed_alone(tmp_path: Path) -> None:
    """Choices and their names, numbers of combinations, ranges, and settings of other commands."""
    (tmp_path / "mine.yaml").write_text("rows: 30\n")
    words = ["experiment=mine.yaml,null", "rows=range(20,22)", "output=${hydra:job.num}.tsv"]
    succeed(command("generate", "-m", *words), tmp_path)
    sizes = {path.name: len(path.read_text().splitlines()) for path in tmp_path.glob("*.tsv")}
    assert sizes == {"0.tsv": 20, "1.tsv": 21, "2.tsv": 20, "3.tsv": 21}
    done = run(command("days", "-m", "train.model=dlrm,dnc", "output=o", "dataset=x"), tmp_path)
    assert done.returncode == 2
    assert "combination 1: train.model=dlrm output=o" in done.stderr
