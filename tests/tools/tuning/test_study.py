"""A study on a made-up trainer whose best value is known: trials, curves, ends, interruptions, several at once."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.trial import TrialState

from dlrm_app.config.like_train import TuneConfig
from dlrm_app.errors import DlrmError, ExitCode
from dlrm_app.reports.study import write_study
from dlrm_app.tools.tuning.study import open_study, tune
from dlrm_app.tools.tuning.trial import distribution, final_command, known_values, trained_values
from tests.commands import wait_until
from tests.composed import compose_config
from tests.refusals import refused

TRAINER = """
import json, pathlib, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:])
rate, dropout = float(words["optimizer.sparse.lr"]), float(words.get("model.dropout", 0))
folder = pathlib.Path(words["output"].strip('"'))
assert words["resume"] == "auto" and words["evaluation.test"] == "false"
if dropout > 0.8:
    sys.exit("error: model.dropout is too high")
folder.mkdir(parents=True, exist_ok=True)
(folder / "config.yaml").write_text("trainer: {global_batch_size: 10}")
with (folder / "metrics.jsonl").open("a") as file:
    for step in range(1, 5):
        auc = 0.5 + 0.05 * step - (rate - 0.1) ** 2
        event = {"event": "eval", "split": "val", "epoch": 0, "step": step, "auc": auc, "logloss": 1 - auc}
        print(json.dumps(event), file=file, flush=True)
        time.sleep(float(words.get("trainer.max_steps", 0)) / 1000)
"""
ENDLESS = """
import pathlib, signal, sys, time
from dlrm_app.distributed.launcher import stop_with_launcher
folder = pathlib.Path(__file__).parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit((folder / "ended").touch()))
stop_with_launcher()
(folder / "began").touch()
time.sleep(60)
"""
SPACE = "tune.space=[{key: optimizer.sparse.lr, low: 0.01, high: 0.5}]"


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("dlrm_app.tools.tuning.trial.POLL_SECONDS", 0.01)
    (tmp_path / "train.py").write_text(TRAINER)
    return [sys.executable, str(tmp_path / "train.py")]


def config_of(folder: Path, *overrides: str) -> TuneConfig:
    keys = ["data.path=x", f"output={folder}/study", "tune.trials=6", "tune.startup_trials=3", SPACE]
    config = compose_config("tune", TuneConfig, [*keys, *overrides])
    assert config.problems() == []
    return config


def study_of(config: TuneConfig) -> optuna.Study:
    return open_study(Path(str(config.output)), config.tune, config.metric)


def leave_undone(config: TuneConfig) -> dict[str, Any]:
    """Leaves what a process does that is killed while it trains; the values of its trial."""
    (Path(str(config.output)) / "trials/0000").mkdir(parents=True)
    killed = study_of(config).ask({each["key"]: distribution(each) for each in config.tune.space})
    killed.set_user_attr("folder", "trials/0000")
    return killed.params


def page_of(config: TuneConfig) -> str:
    page = write_study(Path(str(config.output)))
    assert page is not None
    return page.read_text()


def test_it_finds_better_values_and_says_how_to_train_with_them(tmp_path: Path, train: list[str]) -> None:
    config = config_of(tmp_path, "tune.trials=12", "tune.prune=false")
    found = tune(config, {"data.path": "x"}, train)
    study = study_of(config)
    assert len(study.trials) == 12
    for trial in study.trials:
        rate = trial.params["optimizer.sparse.lr"]
        assert trial.value == pytest.approx(0.7 - (rate - 0.1) ** 2)
        assert list(trial.intermediate_values) == [0, 1, 2, 3]
    best = study.best_trial.params
    assert found.command == final_command({"data.path": "x"}, best)
    text = page_of(config)
    for word in ("What mattered", "optimizer.sparse.lr", "Train with the best values", "The best trials"):
        assert word in text


def test_jobs_share_out_the_gpus(
    tmp_path: Path, train: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each keeps to one for all of its trials; more jobs than GPUs are said."""
    monkeypatch.setattr("dlrm_app.tools.tuning.study.visible_gpus", lambda: ["2", "5"])
    program = tmp_path / "train.py"
    program.write_text("import os; print('gpu', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n" + TRAINER)
    config = config_of(tmp_path, "tune.trials=6", "tune.jobs=3")
    tune(config, {"trainer.max_steps": 20}, train)
    logs = (tmp_path / "study" / "trials").glob("*.log")
    assert {log.read_text().splitlines()[0] for log in logs} == {"gpu 2", "gpu 5"}
    assert "tune.jobs=3 share 2 GPUs" in caplog.text


def test_the_same_command_continues_and_then_finds_nothing_to_do(tmp_path: Path, train: list[str]) -> None:
    tune(config_of(tmp_path, "tune.trials=2"), {}, train)
    config = config_of(tmp_path, "tune.trials=4")
    for _ in range(2):
        tune(config, {}, train)
        assert len(study_of(config).trials) == 4


def test_an_interrupted_trial_continues_in_its_folder(tmp_path: Path, train: list[str]) -> None:
    config = config_of(tmp_path, "tune.trials=1")
    values = leave_undone(config)
    tune(config, {}, train)
    trials = study_of(config).trials
    assert (trials[-1].params, trials[-1].user_attrs["folder"]) == (values, "trials/0000")
    assert [each.state for each in trials] == [TrialState.FAIL, TrialState.COMPLETE]


@pytest.mark.slow
def test_trials_below_the_others_curves_are_pruned(tmp_path: Path, train: list[str]) -> None:
    config = config_of(tmp_path, "tune.trials=10", "tune.startup_trials=4")
    tune(config, {"trainer.max_steps": 80}, train)
    trials = study_of(config).trials
    given_up = [each for each in trials if each.state == TrialState.PRUNED]
    assert given_up
    median = sorted(each.value for each in trials[:4])[1]
    assert all(0.7 - (each.params["optimizer.sparse.lr"] - 0.1) ** 2 <= median + 0.1 for each in given_up)
    assert all(each.state == TrialState.COMPLETE for each in trials[:4])


def test_the_first_trial_has_the_values_that_dlrm_train_takes(tmp_path: Path, train: list[str]) -> None:
    """Those that the space can draw are typed, for the search to learn from; the others are left as they are."""
    space = "{key: optimizer.sparse.lr, low: 0.01, high: 0.5}, {key: model.dropout, low: 0.1, high: 0.2}"
    keys = "{key: model.top_mlp, choices: [[64], [32, 16]]}, {key: checkpoint.keep_last, choices: [5, 6]}"
    more = [f"tune.space=[{space}, {keys}]", "optimizer.sparse.lr=0.07", "model.top_mlp=[32,16]"]
    config = config_of(tmp_path, *more, "tune.trials=3")
    tune(config, {"optimizer.sparse.lr": 0.07, "model.top_mlp": [32, 16]}, train)
    first, *others = study_of(config).trials
    assert first.params == {"optimizer.sparse.lr": 0.07, "model.top_mlp": "[32,16]"}
    for trial in others:
        assert set(trial.params) == {entry["key"] for entry in config.tune.space}


def test_the_default_space_can_draw_all_that_each_recipe_sets() -> None:
    for recipe in ("kaggle_small", "small_clicks", "linear_decay"):
        config = compose_config("tune", TuneConfig, ["data.path=x", "output=y", f"experiment={recipe}"])
        assert set(known_values(config)) == {entry["key"] for entry in config.tune.space}


def test_two_processes_share_a_study(tmp_path: Path, train: list[str]) -> None:
    """Here two threads with a study each; every trial is run once, and there are no more than asked for."""
    config = config_of(tmp_path, "tune.trials=8", "tune.jobs=2", "tune.prune=false")
    both = [threading.Thread(target=tune, args=(config, {}, train)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    done = [each for each in study_of(config).trials if each.state == TrialState.COMPLETE]
    assert len(done) == 8
    folders = [each.user_attrs["folder"] for each in done]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert len((tmp_path / "study" / folder / "metrics.jsonl").read_text().splitlines()) == 4


def test_values_that_cannot_work_fail_alone(tmp_path: Path, train: list[str]) -> None:
    space = "tune.space=[{key: optimizer.sparse.lr, low: 0.01, high: 0.5}, {key: model.dropout, choices: [0.1, 0.9]}]"
    config = config_of(tmp_path, space, "tune.trials=8", "tune.prune=false")
    tune(config, {}, train)
    for trial in study_of(config).trials:
        assert (trial.state == TrialState.FAIL) == (trial.params.get("model.dropout") == 0.9)
    assert "error: model.dropout is too high" in page_of(config)


def test_a_study_whose_trials_all_fail_ends(tmp_path: Path, train: list[str]) -> None:
    """Trial 0 has values of no draw, and succeeds."""
    space = "tune.space=[{key: optimizer.sparse.lr, low: 0.01, high: 0.5}, {key: model.dropout, choices: [0.9, 0.95]}]"
    with refused(
        DlrmError,
        "",
        "...3 trials failed and no trial with drawn values succeeded; the last: error: model.dropout...",
    ):
        tune(config_of(tmp_path, space), {}, train)


def test_a_pruned_or_stopped_trial_ends_early(tmp_path: Path, train: list[str]) -> None:
    settings = {"optimizer.sparse.lr": 0.1, "trainer.max_steps": 20000}
    stopped = threading.Event()
    trained = trained_values(tmp_path / "run", settings, "auc", stopped, train)
    assert next(trained) == pytest.approx(0.55)
    stopped.set()
    with pytest.raises(KeyboardInterrupt):
        next(trained)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    trained = trained_values(tmp_path / "other", settings, "logloss", threading.Event(), train)
    assert next(trained) == pytest.approx(0.45)
    trained.close()
    assert len((tmp_path / "other" / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_trial_that_ctrl_c_stopped_is_left_for_later(tmp_path: Path, train: list[str]) -> None:
    """Ctrl-C reaches the training too, which saves itself and ends with this code."""
    (tmp_path / "stopped.py").write_text(f"raise SystemExit({int(ExitCode.RESUMABLE)})")
    config = config_of(tmp_path, "tune.trials=1")
    with pytest.raises(KeyboardInterrupt):
        tune(config, {}, [sys.executable, str(tmp_path / "stopped.py")])
    tune(config, {}, train)
    trials = study_of(config).trials
    assert [each.state for each in trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert trials[0].params == trials[1].params
    assert "error" not in trials[0].user_attrs


def test_a_training_ends_with_the_study_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    words = [sys.executable, str(tmp_path / "train.py")]
    run = f"list(trained_values(Path({str(tmp_path / 'run')!r}), {{}}, 'auc', Event(), {words!r}))"
    imports = "from pathlib import Path; from threading import Event; from dlrm_app.tools.tuning.trial import trained_values"
    program = f"{imports}; {run}"
    study = subprocess.Popen([sys.executable, "-c", program])
    wait_until((tmp_path / "began").exists, 60, "the training")
    study.kill()
    study.wait()
    wait_until((tmp_path / "ended").exists, 60, "its end")


def test_trials_that_cannot_be_compared_are_another_study(tmp_path: Path, train: list[str]) -> None:
    """Threads, the order of words and the ends of a range decide nothing."""
    space = "tune.space=[{key: optimizer.sparse.lr, %s}]"
    tune(config_of(tmp_path, "tune.trials=1"), {"model.dropout": 0.1, "data.path": "x"}, train)
    for override, dropout, said in (
        ("tune.metric=logloss", 0.1, "...set tune.metric=auc, or choose another output"),
        (
            SPACE,
            0.2,
            "...have the settings ...dropout=0.1..., this command has ...dropout=0.2...: give the same...",
        ),
        (
            space % "choices: [0.1, 0.2]",
            0.1,
            "...draw optimizer.sparse.lr from ...: only the ends of a range may...",
        ),
        (space % "low: 1, high: 3", 0.1, "...only the ends of a range may..."),
        (space % "low: 0.01, high: 0.5, log: true", 0.1, "...only the ends of a range may..."),
    ):
        changed = config_of(tmp_path, "tune.trials=2", override)
        with refused(DlrmError, "", said):
            tune(changed, {"data.path": "x", "model.dropout": dropout}, train)
    wider = config_of(tmp_path, "tune.trials=2", space % "low: 0.2, high: 0.9")
    tune(wider, {"data.path": "x", "model.dropout": 0.1, "trainer.threads": 1}, train)
    assert [trial.state for trial in study_of(wider).trials] == [TrialState.COMPLETE] * 2


@pytest.mark.parametrize("cut", [1, 20])
def test_a_half_written_last_line_costs_no_study(tmp_path: Path, train: list[str], cut: int) -> None:
    """Optuna would join the next line to it, and read neither that nor what follows."""
    tune(config_of(tmp_path, "tune.trials=2"), {"data.path": "x"}, train)
    journal = tmp_path / "study/study.log"
    journal.write_bytes(journal.read_bytes()[:-cut])
    config = config_of(tmp_path, "tune.trials=4")
    tune(config, {"data.path": "x"}, train)
    assert [trial.state for trial in study_of(config).trials].count(TrialState.COMPLETE) == 4


def test_a_damaged_line_of_metrics_is_named_and_can_be_removed(tmp_path: Path, train: list[str]) -> None:
    config = config_of(tmp_path, "tune.trials=1")
    leave_undone(config)
    metrics = tmp_path / "study/trials/0000/metrics.jsonl"
    metrics.write_text('{"event": "ev\n{"event": "skip", "epoch": 0, "step": 1, "rows": [], "columns": []}\n')
    with refused(
        DlrmError,
        ".../study/trials/0000/metrics.jsonl:1",
        "is not an event of a run (Unterminated string starting at: line 1 column 11 (char...",
    ):
        tune(config, {}, train)
    metrics.write_text("")
    tune(config, {}, train)
    assert study_of(config).trials[-1].state == TrialState.COMPLETE


def test_a_damaged_journal_is_named(tmp_path: Path, train: list[str]) -> None:
    config = config_of(tmp_path, "tune.trials=1")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.log").write_text("hello\nyou\n")
    with refused(
        DlrmError,
        "",
        "...study.log is damaged, or is not a study (...): take it from a copy, or choose another output",
    ):
        tune(config, {}, train)


NO_RANGES = (
    "low: 0.5, high: 0.1",
    "low: 0, high: 0.1, log: true",
    "high: 0.1",
    "low: true, high: 3",
    "low: 0.1, high: 0.2, log: 5",
    "low: 0, high: 1, step: 5",
    "low: 0.1, high: 0.2, log: true, step: 0.05",
)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("", "tune.space is empty"),
        ("key: model.dropuot, low: 0, high: 1", "model.dropuot is not a known key"),
        ("key: output, choices: [a, b]", "names output, which the study itself decides"),
        *((f"key: model.dropout, {values}", "or numbers low < high") for values in NO_RANGES),
        ("key: model.dropout, choices: [high, low]", "model.dropout must be a number, got 'high'"),
        ("key: model.dropout, choices: [0.1, 0.1]", "at least two choices, each once, got [0.1, 0.1]"),
        ("key: trainer.epochs, low: 0.5, high: 3", "trainer.epochs must be a whole number, got 0.5"),
        ("key: trainer.pipeline, low: 1, high: 3", "gives trainer.pipeline, a text, a range"),
        ("key: model, low: 1, high: 3", "names model, which holds several keys: name one, as model.NAME"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(entry: str, words: str, plain: TuneConfig) -> None:
    tune = replace(plain.tune, space=[yaml.safe_load(f"{{{entry}}}")] if entry else [])
    problems = replace(plain, resume="auto", tune=tune).problems()
    assert any(words in str(problem) for problem in problems), problems
    assert any("resume has no part in dlrm-tune" in str(problem) for problem in problems)


@pytest.fixture(scope="module")
def plain() -> TuneConfig:
    return compose_config("tune", TuneConfig, ["data.path=x", "output=y"])


@pytest.mark.parametrize(
    ("words", "metric", "direction"),
    [
        ([], "auc", "MAXIMIZE"),
        (["evaluation.best=logloss"], "logloss", "MINIMIZE"),
        (["evaluation.best=logloss", "tune.metric=auc"], "auc", "MAXIMIZE"),
        (["evaluation.group_by=user", "evaluation.best=ndcg@10"], "ndcg@10", "MAXIMIZE"),
        (["evaluation.group_by=user", "tune.metric=mrr"], "mrr", "MAXIMIZE"),
    ],
)
def test_trials_are_compared_by_the_metric_that_decides(
    words: list[str], metric: str, direction: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, *words)
    assert config.metric == metric
    (tmp_path / "study").mkdir()
    assert study_of(config).direction.name == direction
