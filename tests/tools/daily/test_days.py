"""Days in their order: learnt once, whatever interrupts; named where they are missing, late, changed or poisoned."""

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from html import escape
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.days import DaysConfig
from dlrm_app.config.overrides import Settings
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.locks import held_lock
from dlrm_app.reports.days import write_days
from dlrm_app.tools.daily import days as days_module
from dlrm_app.tools.daily.days import Outcome
from dlrm_app.tools.daily.plan import files_of, plan_days
from dlrm_app.tools.daily.publish import publish
from dlrm_app.tools.daily.record import DayRecord
from dlrm_app.tools.daily.settings import preprocess_settings
from tests.commands import command, run, succeed
from tests.composed import compose_config
from tests.ranks import CONTEXT
from tests.refusals import find_problem, is_like, refused
from tests.small_run import final_bytes
from tests.tools.daily.days_here import (
    NAMES,
    configured,
    days_words,
    learn,
    lines,
    results,
    run_in_log,
    write_log,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    write_log(folder / "days")
    return folder / "days"


@pytest.fixture(scope="module")
def three(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The days up to the third, and a training from scratch after the second; not to be changed."""
    output = tmp_path_factory.mktemp("three") / "out"
    learn([*days_words(log, output, NAMES[2]), "days.full_retrain=2"])
    return output


def nothing(name: str, settings: Settings, log: Path) -> None:
    raise AssertionError(f"dlrm-{name} {settings} is not to be run")


def shuffled_labels(text: str) -> str:
    rows = [line.partition("\t") for line in text.splitlines()]
    labels = [label for label, _, _ in rows]
    random.Random(0).shuffle(labels)
    return "".join(f"{label}\t{rest}\n" for label, (_, _, rest) in zip(labels, rows, strict=True))


def first_two_fifths(text: str) -> str:
    rows = text.splitlines(keepends=True)
    return "".join(rows[: len(rows) * 2 // 5])


def without_clicks(text: str) -> str:
    return "".join(f"0\t{line.partition(chr(9))[2]}\n" for line in text.splitlines())


def swapped_columns(text: str) -> str:
    """The id columns of every row in reverse."""
    rows = [line.split("\t") for line in text.splitlines()]
    return "".join("\t".join([*row[:14], *row[:13:-1]]) + "\n" for row in rows)


def twice(text: str) -> str:
    """Every row is delivered again, by another part of the pipeline."""
    return text + text


def lost_clicks(text: str) -> str:
    """70% of the clicks become rows without."""
    draw = random.Random(1)
    rows = [line.partition("\t") for line in text.splitlines()]
    return "".join(f"{int(y == '1' and draw.random() < 0.3)}\t{rest}\n" for y, _, rest in rows)


def null_columns(text: str) -> str:
    """Two of the id columns are empty: a join found nothing."""
    rows = [line.split("\t") for line in text.splitlines()]
    return "".join("\t".join([*row[:22], "", "", *row[24:]]) + "\n" for row in rows)


def hundredfold(text: str) -> str:
    """A price in cents, not euros."""
    rows = [line.split("\t") for line in text.splitlines()]
    price = 5
    return "".join(
        "\t".join([*row[:price], f"{100 * int(row[price])}" if row[price] else "", *row[price + 1 :]]) + "\n"
        for row in rows
    )


@pytest.mark.slow
def test_each_day_is_judged_before_it_is_learnt(three: Path) -> None:
    first, second, third = lines(three).values()
    assert [first[key] for key in ("next_day", "first_model", "full_retrain")] == [None] * 3
    assert second["next_day"] == second["first_model"]
    assert third["next_day"] != third["first_model"]
    assert third["full_retrain"]["auc"] > 0.6
    assert 0.6 < third["first_model"]["auc"] < third["next_day"]["auc"] < third["holdout"]["auc"] + 0.1
    assert {line["rows"] for line in lines(three).values()} == {3000}
    learnt = [read_manifest(three / "days" / name / "rows").splits["train"].rows for name in NAMES[:3]]
    held = [read_manifest(three / "days" / name / "dataset").splits["val"].rows for name in NAMES[:3]]
    assert all(110 < rows < 190 for rows in held)  # 5% of 3,000
    # later days also learn what the day before held back
    assert learnt == [3000 - held[0], 3000 - held[1] + held[0], 3000 - held[2] + held[1]]
    assert first["unseen_share"] is None
    assert 0.01 < second["unseen_share"] < 0.2
    assert [bool(line["vocabulary"]["new"]) for line in (first, second, third)] == [True] * 3
    assert (three / "published" / "model" / "result.json").is_file()
    assert (three / "published").resolve().name == NAMES[2]


@pytest.mark.long
def test_an_unfinished_day_begins_again_with_other_settings(
    log: Path, three: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same settings go on with what is done; settings that change no result, too."""
    dataset = conf_dir() / "dataset" / "criteo_kaggle.yaml"
    (tmp_path / "clicks.yaml").write_text(dataset.read_text())
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    words = days_words(log, output, NAMES[2])
    words[1] = f"dataset={tmp_path}/clicks.yaml"
    called: list[str] = []

    def until_training(name: str, settings: Settings, log: Path) -> None:
        called.append(name)
        if name == "train":
            raise KeyboardInterrupt
        run_in_log(name, settings, log)

    def commands(*more: str) -> list[str]:
        called.clear()
        caplog.clear()
        with pytest.raises(KeyboardInterrupt):
            learn([*words, *more], until_training)
        return called

    with caplog.at_level(logging.INFO):
        assert commands()[0] == "preprocess"
        assert commands() == ["train"]
        assert commands("train.logging.tensorboard=false", "gate.min_rows=0.4", "days.keep=9") == ["train"]
        assert "begins again" not in caplog.text
        assert commands("train.optimizer.sparse.lr=0.2")[0] == "preprocess"
        assert f"{NAMES[2]} was begun with other settings and begins again" in caplog.text
        assert "train.optimizer.sparse.lr: 0.1 → 0.2" in caplog.text
        text = dataset.read_text().replace(
            "{name: int_3, role: dense, kind: integer}", "{name: int_3, role: dense, kind: float}"
        )
        (tmp_path / "clicks.yaml").write_text(text)
        assert commands("train.optimizer.sparse.lr=0.2")[0] == "preprocess"
        assert 'preprocess.dataset.columns.int_3.kind: "integer" → "float"' in caplog.text


def test_rows_of_all_hours_are_learnt_and_held_out(tmp_path: Path) -> None:
    """The log is in the order of time: each hour has values of its own, 50 rows of 1,200."""
    columns = "\n".join(
        f"  - {{name: {name}, role: {role}}}"
        for name, role in (("y", "label"), ("hour", "sparse, kind: integer"), ("n", "sparse, kind: integer"))
    )
    (tmp_path / "log.yaml").write_text(f'name: log\ndelimiter: ","\ncolumns:\n{columns}\n')
    (tmp_path / NAMES[0]).write_text("".join(f"{n % 3 // 2},{n // 50},{n}\n" for n in range(1200)))
    words = [
        f"input.days={tmp_path}/{{day}}",
        f"dataset={tmp_path}/log.yaml",
        "output=o",
        f"days.from={NAMES[0]}",
    ]
    settings = preprocess_settings(configured(words), date(2026, 11, 1), None, tmp_path / "out")
    run_in_log("preprocess", settings, tmp_path / "log.txt")
    manifest = read_manifest(tmp_path / "out")
    assert manifest.sparse[0].distinct == 24
    table = pq.ParquetFile(tmp_path / "out" / "val" / "part-00000.parquet").read()
    hours = table["hour"].to_numpy()
    assert 0 not in hours
    assert len(set(hours.tolist())) > 15
    assert 30 < len(hours) < 95


def test_a_second_call_does_nothing(log: Path, three: Path) -> None:
    before = results(three)
    learn([*days_words(log, three, NAMES[2]), "days.full_retrain=2"], nothing)
    assert results(three) == before


@pytest.mark.long
def test_days_that_are_interrupted_at_every_step_end_the_same(log: Path, tmp_path: Path) -> None:
    """Every call is killed behind its first command, or before the next."""
    output = tmp_path / "out"
    words = [*days_words(log, output, NAMES[1]), "days.full_retrain=2"]
    learn(words)
    expected = results(output)
    shutil.rmtree(output)  # the same path again, because manifests name it
    calls = 0

    def once(name: str, settings: Settings, log: Path) -> None:
        nonlocal calls
        if calls:
            raise KeyboardInterrupt
        calls += 1
        run_in_log(name, settings, log)

    for _ in range(20):
        calls = 0
        try:
            learn(words, once)
            break
        except KeyboardInterrupt:
            continue
    assert results(output) == expected


def test_changed_files_are_reported_and_later_days_marked(
    log: Path, three: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = shutil.copytree(log, tmp_path / "log")
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    words = days_words(own, output, NAMES[2])
    for record in output.glob("days/*/day.json"):  # as if they had been read there
        record.write_text(record.read_text().replace(str(log), str(own)))
    for name in NAMES[:3]:  # only touched
        (own / f"dt={name}" / "clicks.tsv").touch()
    learn(words, nothing)
    marks = [line["mark"] for line in lines(output).values()]
    assert marks[0] is None
    assert "made from another" in marks[1]  # the records of the parents have other paths
    with (own / f"dt={NAMES[1]}" / "clicks.tsv").open("a") as file:
        file.write((own / f"dt={NAMES[2]}" / "clicks.tsv").read_text().splitlines()[0] + "\n")
    assert learn(words, nothing).exit_code == 5
    marks = [line["mark"] for line in lines(output).values()]
    assert "has changed since" in marks[1]
    assert marks[2] == f"made from {NAMES[1]}, which has changed"
    assert f"delete {output}/days/{NAMES[1]} {output}/days/{NAMES[2]}" in caplog.text
    assert "which has changed" in write_days(output).read_text()
    shutil.rmtree(output / "days" / NAMES[1])  # without those that follow it
    learn(words, nothing)
    assert lines(output)[NAMES[2]]["mark"] == f"made from another {NAMES[1]} than the one that is there now"


def test_files_under_another_path_are_the_same_files(log: Path, three: Path, tmp_path: Path) -> None:
    """A path relative to another folder, or a log on another disk; a copy beside a file is a new file."""
    own = tmp_path / "log"
    shutil.copytree(log, own)
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    words = days_words(own, output, NAMES[2])
    assert learn(words, nothing).exit_code == 0
    file = own / f"dt={NAMES[1]}" / "clicks.tsv"
    (file.parent / "more").mkdir()
    shutil.copy(file, file.parent / "more" / "clicks.tsv")
    assert learn(words, nothing).changed == NAMES[1:3]
    assert "has come since" in lines(output)[NAMES[1]]["mark"]


def test_verify_files_notices_a_change_of_equal_size_and_date(log: Path, three: Path, tmp_path: Path) -> None:
    own = shutil.copytree(log, tmp_path / "log")
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    words = days_words(own, output, NAMES[2])
    for record in output.glob("days/*/day.json"):
        record.write_text(record.read_text().replace(str(log), str(own)))
    file = own / f"dt={NAMES[1]}" / "clicks.tsv"
    status, rows = file.stat(), file.read_text().splitlines()
    number = len(rows) * 3 // 7
    rows[number] = f"{1 - int(rows[number][0])}{rows[number][1:]}"
    file.write_text("\n".join(rows) + "\n")
    os.utime(file, ns=(0, status.st_mtime_ns))
    learn([*words, "days.verify_files=true"], nothing)
    assert "has changed since" in lines(output)[NAMES[1]]["mark"]


def test_a_log_without_a_label_is_refused_before_any_work(log: Path, tmp_path: Path) -> None:
    form = (conf_dir() / "dataset" / "criteo_kaggle.yaml").read_text()
    (tmp_path / "clicks.yaml").write_text(form.replace("role: label", "role: ignore"))
    words = days_words(log, tmp_path / "out", NAMES[0])
    words[1] = f"dataset={tmp_path}/clicks.yaml"
    with refused(ConfigError, "dataset=.../clicks.yaml", "has no column with the role label"):
        learn(words, nothing)


def test_a_file_of_two_days_is_refused_by_name_before_any_work(tmp_path: Path) -> None:
    """Files of other names are those of one day each."""
    for day in (1, 2, 10):
        (tmp_path / f"2026-01-{day}.tsv").write_text("0\t1\n" * 199)
    words = ["dataset=criteo_kaggle", f"output={tmp_path}/out", "days.from=2026-01-01", "days.to=2026-01-10"]
    config = configured([f"input.days={tmp_path}/{{day:%Y-%m-%-d}}*", *words])
    with refused(ConfigError, "input.days", "takes .../2026-01-10.tsv for 2026-01-01 and for 2026-01-10"):
        plan_days(config, [])
    config = configured([f"input.days={tmp_path}/{{day:%Y-%m-%-d}}.*", *words])
    assert [day.day for day in plan_days(config, []).new] == [1, 2, 10]


def test_a_day_is_all_files_behind_links_and_a_loop_is_refused(tmp_path: Path) -> None:
    for place in ("log/dt=2026-11-01/part-0", "disk/part-1", "log/dt=2026-11-03/part-0"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("1\n2\n3\n4\n" * 10)
    (tmp_path / "log/dt=2026-11-01/more").symlink_to("../../disk")
    config = configured(days_words(tmp_path / "log", tmp_path / "out", NAMES[1]))
    files = files_of(config, date(2026, 11, 1))
    assert [Path(source.path).name for source in files] == ["part-1", "part-0"]
    assert files_of(config, date(2026, 11, 2)) == []
    (tmp_path / "log/dt=2026-11-03/loop").symlink_to("..")
    with refused(
        ConfigError,
        "input.days=.../log/dt=2026-11-03/*: .../log/dt=2026-11-03/loop/dt=2026-11-03/loop",
        "is a link to .../log, a folder above it",
    ):
        files_of(config, date(2026, 11, 3))


def test_the_previous_day_is_published_while_one_is_learnt_again(
    log: Path, three: Path, tmp_path: Path
) -> None:
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    with pytest.raises(AssertionError, match="is not to be run"):
        learn(days_words(log, output, NAMES[2]), nothing)
    assert (output / "published").resolve().name == NAMES[1]


@pytest.mark.parametrize("is_folder", [True, False])
def test_publishing_replaces_only_a_link(tmp_path: Path, is_folder: bool) -> None:
    (tmp_path / "out/days/2026-11-01").mkdir(parents=True)
    own = tmp_path / "out/published"
    own.mkdir() if is_folder else own.write_text("mine")
    with refused(DataError, str(own), "is not a link to the published day", cure="remove it..."):
        publish(tmp_path / "out/days/2026-11-01")
    assert own.is_dir() if is_folder else own.read_text() == "mine"


@pytest.mark.slow
def test_days_without_rows_are_left_out_even_if_rows_come_later(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second day has no file, the third a single row."""
    own = shutil.copytree(log, tmp_path / "log")
    shutil.rmtree(own / f"dt={NAMES[1]}")
    third = own / f"dt={NAMES[2]}" / "clicks.tsv"
    third.write_text(third.read_text().splitlines(keepends=True)[0])
    words = days_words(own, tmp_path / "out", NAMES[3])
    with caplog.at_level(logging.WARNING):
        learn(words)
        named = f"without files, or with too few rows to hold some back, left out: {NAMES[1]}, {NAMES[2]}"
        assert named in caplog.text
        shutil.copytree(log, own, dirs_exist_ok=True)
        learn(words, nothing)
    assert f"to train from {NAMES[1]} on again, delete {tmp_path}/out/days/{NAMES[3]} and run" in caplog.text
    assert list(lines(tmp_path / "out")) == [NAMES[0], NAMES[3]]


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param(shuffled_labels, marks=pytest.mark.slow),
        pytest.param(without_clicks, marks=pytest.mark.long),  # test_gate.py has the rule
        pytest.param(first_two_fifths, marks=pytest.mark.long),
        pytest.param(swapped_columns, marks=pytest.mark.long),
    ],
)
def test_a_poisoned_day_is_held_and_the_next_skips_it(
    poison: object, log: Path, three: Path, tmp_path: Path
) -> None:
    own = tmp_path / "log"
    for name in NAMES[:4]:
        (own / f"dt={name}").mkdir(parents=True)
    text = (log / f"dt={NAMES[2]}" / "clicks.tsv").read_text()
    (own / f"dt={NAMES[2]}" / "clicks.tsv").write_text(poison(text))  # type: ignore[operator]
    shutil.copy(log / f"dt={NAMES[3]}" / "clicks.tsv", own / f"dt={NAMES[3]}")
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    learn(days_words(own, output, NAMES[3]))
    held, following = lines(output)[NAMES[2]], lines(output)[NAMES[3]]
    assert not held["published"]
    assert held["held"]
    assert following["published"]
    assert following["parent"] == NAMES[1]
    assert (output / "published").resolve().name == NAMES[3]
    assert escape(held["held"]) in write_days(output).read_text()


@pytest.mark.slow
def test_a_held_day_calls_a_command_and_has_a_code_of_its_own(
    log: Path, three: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "log" / f"dt={NAMES[2]}"
    own.mkdir(parents=True)
    shutil.copy(log / f"dt={NAMES[1]}" / "clicks.tsv", own)
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    (tmp_path / "notify").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit 7\n')
    (tmp_path / "notify").chmod(0o755)
    words = [*days_words(tmp_path / "log", output, NAMES[2]), f"days.on_held='{tmp_path}/notify --page'"]
    assert learn(words).exit_code == 3
    assert (tmp_path / "called").read_text() == f"--page {output}/days/{NAMES[2]}/day.json\n"
    assert f"days.on_held: {tmp_path}/notify --page ended with code 7" in caplog.text
    assert learn(words, nothing).exit_code == 3  # until a day is published; the command is called once
    assert len((tmp_path / "called").read_text().splitlines()) == 1
    shutil.rmtree(output / "days" / NAMES[2])
    lost = [*words[:-1], f"days.on_held=[{tmp_path}/nowhere]"]
    assert learn(lost).exit_code == 3
    assert "No such file" in caplog.text
    assert lines(output)[NAMES[2]]["held"]


@pytest.mark.long
def test_a_killed_call_of_the_command_is_made_again(log: Path, three: Path, tmp_path: Path) -> None:
    own = tmp_path / "log" / f"dt={NAMES[2]}"
    own.mkdir(parents=True)
    shutil.copy(log / f"dt={NAMES[1]}" / "clicks.tsv", own)
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    called = tmp_path / "called"
    (tmp_path / "notify").write_text(
        f"#!/bin/sh\n[ -e {called} ] || {{ kill -9 $PPID; exit; }}\necho $1 >> {called}\n"
    )
    (tmp_path / "notify").chmod(0o755)
    words = [*days_words(tmp_path / "log", output, NAMES[2]), f"days.on_held={tmp_path}/notify"]
    assert run(command("days", *words), tmp_path).returncode == -9
    assert (output / "days" / NAMES[2] / "day.json").is_file()
    called.touch()
    for _ in range(2):
        assert learn(words, nothing).exit_code == 3
        assert called.read_text() == f"{output}/days/{NAMES[2]}/day.json\n"


def test_a_hanging_command_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(days_module, "COMMAND_SECONDS", 0.5)
    words = ["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"]
    days_module.report_held_day(words, tmp_path / "day.json")
    assert "timed out" in caplog.text
    status = Path("/proc") / (tmp_path / "pid").read_text().strip() / "stat"
    for _ in range(50):  # until it is gone, or a zombie that nobody waits for
        if not status.is_file() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it still runs")


def test_a_day_with_a_lost_column_fails_without_blaming_the_configuration(
    log: Path, three: Path, tmp_path: Path
) -> None:
    """Code 2 says that nothing was started; days before this one are done then."""
    own = tmp_path / "log" / f"dt={NAMES[2]}"
    own.mkdir(parents=True)
    rows = (log / own.name / "clicks.tsv").read_text().splitlines()
    (own / "clicks.tsv").write_text("".join(f"{row.rpartition(chr(9))[0]}\n" for row in rows))
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])
    with refused(DataError, NAMES[2], "failed", cure="fix its files...") as found:
        learn(days_words(tmp_path / "log", output, NAMES[2]))
    assert find_problem(found.value, "...clicks.tsv", "has one column too few")
    assert found.value.exit_code == 1
    first, second = (log / own.name / "clicks.tsv").read_text().splitlines()[:2]
    few = [f"0\t{first.partition(chr(9))[2]}\n", f"1\t{second.partition(chr(9))[2]}\n"]
    (own / "clicks.tsv").write_text("".join(few * 75))  # so alike that none is held out
    with refused(DataError, NAMES[2], "failed") as found:
        learn(days_words(tmp_path / "log", output, NAMES[2]))
    assert find_problem(found.value, "days.holdout=0.05", "gives the val split no rows...")


def test_a_held_day_that_is_accepted_later_is_named(
    log: Path, three: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    path = output / "days" / NAMES[2] / "day.json"
    record = json.loads(path.read_text())
    for rule in record["rules"]:
        rule["holds"] = rule["rule"] == "clicks"
    path.write_text(json.dumps({**record, "published": False, "held": "clicks"}))
    words = days_words(log, output, NAMES[2])
    learn(words, nothing)
    assert "days.accept" not in caplog.text
    assert learn([*words, f"days.accept=[{NAMES[2]}]"], nothing).exit_code == 3
    assert f"to publish it, delete {output}/days/{NAMES[2]} and run" in caplog.text


def test_words_for_days_are_accepted_as_dates_are() -> None:
    words = ['input.days="{day}"', "dataset=x", "output=o", "days.from=2026-11-01"]
    days = compose_config("days", DaysConfig, [*words, "days.accept=[yesterday,2026-11-05]"]).days
    accepted = [date.today() - timedelta(1), date(2026, 11, 5)]
    assert [days.is_accepted(day) for day in (*accepted, date(2026, 11, 6))] == [True, True, False]


@pytest.mark.long
def test_hours_are_learnt_as_days_are(log: Path, three: Path, tmp_path: Path) -> None:
    """The same files as hours of a day end with the same weights; an hour that comes late is named."""
    hours = [f"2026-11-01T{hour:02d}" for hour in (22, 23)]
    for hour, name in zip(hours, NAMES, strict=False):
        shutil.copytree(log / f"dt={name}", tmp_path / "log" / f"dt={hour[:10]}" / f"hour={hour[-2:]}")
    words = days_words(log, tmp_path / "hourly", NAMES[0])
    words[0] = f"input.days={tmp_path}/log/dt={{day}}/hour={{hour}}/*"
    first = words.index(f"days.from={NAMES[0]}")
    words[first] = f"days.from={hours[0]}"
    found = learn(words)
    assert [record.day for record in found.records] == hours
    for hour, name in zip(hours, NAMES, strict=False):
        model, same = (
            folder / "model" for folder in (tmp_path / "hourly/days" / hour, three / "days" / name)
        )
        assert final_bytes(model) == final_bytes(same)
    late = tmp_path / "log" / "dt=2026-11-01" / "hour=21"
    shutil.copytree(log / f"dt={NAMES[2]}", late)
    words[first] = "days.from=2026-11-01"
    again = learn(words, nothing)
    assert (again.exit_code, again.changed) == (5, ["2026-11-01T21"])


def test_hours_need_files_of_their_own() -> None:
    words = ["dataset=x", "output=o", "days.from=2026-11-01T05", "days.to=2026-11-02"]
    of_days, of_hours = (
        configured([f"input.days='{files}'", *words]) for files in ("{day}", "{day}/{hour:d}")
    )
    (problem,) = of_days.problems()
    assert is_like(problem, "days.from", "is an hour, and the files are of days")
    assert of_hours.problems() == []
    hours = of_hours.list_days()
    assert (len(hours), str(hours[0]), str(hours[-1])) == (43, "2026-11-01T05", "2026-11-02T23")
    assert of_hours.input.files(hours[0]) == "2026-11-01/5"


@pytest.mark.slow
def test_days_that_are_missing_at_the_end_have_a_code(log: Path, three: Path, tmp_path: Path) -> None:
    own = tmp_path / "log"
    for name in (NAMES[0], NAMES[2]):
        shutil.copytree(log / f"dt={name}", own / f"dt={name}")
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    for record in output.glob("days/*/day.json"):
        record.write_text(record.read_text().replace(str(log), str(own)))
    assert learn(days_words(own, output, NAMES[3]), nothing).missing == [NAMES[3]]
    words = [f"input.days={tmp_path}/no/{{day}}", *days_words(own, tmp_path / "new", NAMES[0])[1:]]
    done = run(command("days", *words), tmp_path)
    assert done.returncode == 4
    assert "input.days has no files" in done.stderr


def test_exit_codes_say_the_worst() -> None:
    good, bad = (
        DayRecord(day=NAMES[0], rows=1, positives=1, unseen={}, sources=[], published=is_good)
        for is_good in (True, False)
    )
    assert Outcome(Path(), [good], [], []).exit_code == 0
    assert Outcome(Path(), [], [], []).exit_code == 0
    assert Outcome(Path(), [bad, good], [], []).exit_code == 0
    assert Outcome(Path(), [good], [NAMES[1]], []).exit_code == 4
    assert Outcome(Path(), [good], [NAMES[1]], [NAMES[0]]).exit_code == 5
    assert Outcome(Path(), [good, bad], [NAMES[1]], [NAMES[0]]).exit_code == 3


@pytest.mark.parametrize("command", ["'a \"b'", "3", "[a,3]", "''", "[]"])
def test_an_invalid_command_is_refused(command: str) -> None:
    words = ['input.days="{day}"', "dataset=x", "output=o", "days.from=2026-11-01"]
    problems = compose_config("days", DaysConfig, [*words, f"days.on_held={command}"]).problems()
    assert [each.partition(" ")[0] for each in map(str, problems)] == ["days.on_held"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("poison", "rule"),
    [
        (lost_clicks, "clicks"),
        (null_columns, "missing"),
        (hundredfold, "shift"),
        (None, "known rows"),
        (twice, "known rows"),
        (swapped_columns, "shift"),
    ],
)
def test_a_damaged_day_is_held_back_before_training(
    poison: object, rule: str, log: Path, three: Path, tmp_path: Path
) -> None:
    """None: the day before is delivered again."""
    own = tmp_path / "log" / f"dt={NAMES[2]}"
    own.mkdir(parents=True)
    given = NAMES[2] if poison else NAMES[1]
    text = (log / f"dt={given}" / "clicks.tsv").read_text()
    (own / "clicks.tsv").write_text(poison(text) if poison else text)  # type: ignore[operator]
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    shutil.rmtree(output / "days" / NAMES[2])

    def run_all_but_train(name: str, settings: Settings, log: Path) -> None:
        assert name != "train"
        run_in_log(name, settings, log)

    learn(days_words(tmp_path / "log", output, NAMES[2]), run_all_but_train)
    held = lines(output)[NAMES[2]]
    assert rule in [each["rule"] for each in held["rules"] if each["holds"]]
    assert (output / "published").resolve().name == NAMES[1]
    assert all(each["rule"] in write_days(output).read_text() for each in held["rules"])


def test_the_page_of_one_day_and_of_three(log: Path, three: Path, tmp_path: Path) -> None:
    text = write_days(three).read_text()
    answer = (
        "On 1 of 1 day yesterday's model ranked the day's rows better than the model that stopped on the "
    )
    answer += "first day: AUC +0.0"
    assert answer in text
    assert "Against the model trained from scratch its AUC is" in text
    for title in (
        "AUC on the next day",
        "calibration on the next day",
        "values never seen",
        "ids",
        "seconds",
    ):
        assert f">{title}" in text
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    for name in NAMES[1:3]:
        shutil.rmtree(output / "days" / name)
    assert "Nothing can be said yet" in write_days(output).read_text()


@pytest.mark.slow
def test_a_refused_call_leaves_the_page_to_the_one_that_works(log: Path, three: Path, tmp_path: Path) -> None:
    output = shutil.copytree(three, tmp_path / "out", symlinks=True)
    (output / "days.html").write_text("as it was")
    with held_lock(output / ".lock", ""):
        done = run(command("days", *days_words(log, output, NAMES[2])), tmp_path)
    assert done.returncode == 1
    assert "another dlrm-days is working" in done.stderr
    assert "page:" not in done.stdout
    assert (output / "days.html").read_text() == "as it was"


def test_later_days_take_what_is_not_a_vocabulary_from_the_first(three: Path) -> None:
    words = ["input.days={day}", "dataset=d", "output=o", "days.from=2026-11-01"]
    typed = ["preprocess.encoding=hash", "preprocess.encoding.num_embeddings=9", "preprocess.seed=1"]
    grown = read_manifest(three / "days" / NAMES[0] / "dataset")
    hashed = replace(grown, sparse=[replace(each, encoding={"kind": "hash"}) for each in grown.sparse])
    of_day = {
        parent: preprocess_settings(configured([*words, *typed]), date(2026, 11, 2), found, Path("o"))
        for parent, found in (("none", None), ("hashed", hashed), ("grown", grown))
    }
    hashing = {"encoding": "hash", "encoding.num_embeddings": 9, "seed": 1}
    assert hashing.items() <= of_day["none"].items()
    assert {"encoding": "from_dataset", "encoding.path": str(grown.folder)}.items() <= of_day[
        "hashed"
    ].items()
    assert {"encoding": "vocab", "encoding.grow_from": str(grown.folder)}.items() <= of_day["grown"].items()
    assert all("encoding.num_embeddings" not in of_day[parent] for parent in ("hashed", "grown"))
    assert all(settings["seed"] == 1 for settings in of_day.values())


def learn_in_a_process(words: Sequence[str], seconds: float | None = None) -> float:
    """Learns days in a process of its own, which is killed after so many seconds; how many seconds it took."""
    started = time.monotonic()
    process = CONTEXT.Process(target=learn, args=(words,))
    process.start()
    process.join(seconds)
    if seconds is None:
        assert process.exitcode == 0
    process.kill()
    process.join()
    return time.monotonic() - started


@pytest.mark.long
def test_days_that_are_killed_at_random_moments_end_the_same(log: Path, tmp_path: Path) -> None:
    """SIGKILL at thirty moments of days that are encoded, judged, learnt, exported and trained from scratch."""
    words = [
        *days_words(log, tmp_path / "out", NAMES[3]),
        "days.full_retrain=2",
        "days.export=true",
        "export.format=torchscript",
        "train.checkpoint.every_steps=5",
    ]
    seconds = learn_in_a_process(words)
    expected = results((tmp_path / "out").rename(tmp_path / "expected"))
    moments = random.Random(7)
    for _ in range(30):
        learn_in_a_process(words, moments.uniform(0.1, 0.3 * seconds))
    learn_in_a_process(words)
    found = results(tmp_path / "out")
    assert found.keys() == expected.keys()
    assert [name for name, content in found.items() if content != expected[name]] == []


@pytest.mark.long
def test_two_ranks_learn_the_same_days(log: Path, three: Path, tmp_path: Path) -> None:
    words = [word for word in days_words(log, tmp_path / "out", NAMES[2]) if "threads" not in word]
    succeed(command("days", *words, "preprocess.threads=1", "train.trainer.threads=1", ranks=2), tmp_path)
    for name, line in lines(three).items():
        other = lines(tmp_path / "out")[name]
        assert (other["rows"], other["published"]) == (line["rows"], line["published"])
        if line["next_day"]:
            assert other["next_day"]["auc"] == pytest.approx(line["next_day"]["auc"], abs=1e-3)
