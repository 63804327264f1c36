"""``--multirun`` as it is typed."""

from pathlib import Path

from tests.commands import command, run, succeed


def test_nothing_starts_while_one_combination_is_wrong(tmp_path: Path) -> None:
    arguments = ["--multirun", "rows=10,-1", "output=clicks_${rows}.tsv"]
    done = run(command("generate", *arguments), tmp_path)
    assert done.returncode == 2
    assert "rows must be at least 1, got -1 (with rows=-1)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_that_fails_is_named_with_those_that_were_not_started(tmp_path: Path) -> None:
    more_than_any_disk_holds = 10**14
    arguments = ["--multirun", f"rows=10,{more_than_any_disk_holds},20,30", "output=d${rows}/clicks.tsv"]
    done = run(command("generate", *arguments), tmp_path)
    assert done.returncode == 2
    assert "combination 1 of 4: rows=10\n" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last == "combination 2 of 4: rows=100000000000000 failed; not started: rows=20, rows=30"
    assert "Traceback" not in done.stderr
    assert (tmp_path / "d10" / "clicks.tsv").is_file()


def test_two_files_of_one_name_are_two_choices(tmp_path: Path) -> None:
    for name, rows in (("a", 30), ("b", 40)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.yaml").write_text(f"rows: {rows}\n")
    succeed(
        command("generate", "--multirun", "experiment=a/mine.yaml,b/mine.yaml", "output=clicks_${rows}.tsv"),
        tmp_path,
    )
    assert {"clicks_30.tsv", "clicks_40.tsv"} <= {path.name for path in tmp_path.iterdir()}


def test_a_sweep_that_cannot_be_written_down_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "multirun").write_text("a file where Hydra's folder should be")
    done = run(command("generate", "--multirun", "rows=10,20", "output=clicks_${rows}.tsv"), tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: multirun: File exists\n" or "Not a directory" in done.stderr
    assert "Traceback" not in done.stderr
