"""The study on one page, OUTPUT/tune.html: the best command, every trial, what mattered, and the best curves."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from dlrm_app.files import write_text
from dlrm_app.reports.chart import charts_html
from dlrm_app.reports.comparison import STYLES, comparison_charts, read_runs
from dlrm_app.reports.page import Tile, page, tiles
from dlrm_app.table import Cell, Column, Rows, html_table, share, text_table
from dlrm_app.text import fixed
from dlrm_app.tuning.settings import final_command

ENDS = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "given up",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "runs, or was interrupted",
    TrialState.WAITING: "waits",
}
FEW = 4
"""With fewer trials that came to their end nothing can be said of what matters."""


def write_page(output: Path, study: optuna.Study, metric: str, common: Sequence[str]) -> Path:
    """Writes ``output``/tune.html and gives its path. ``common``: what all trials were told."""
    trials = ranked(study)
    best = trials[0] if trials and trials[0].state == TrialState.COMPLETE else None
    done = [each for each in trials if each.state == TrialState.COMPLETE]
    sections = [
        tiles(
            [
                Tile(
                    f"best {metric} on val",
                    _score(best),
                    f"trial {best.number}" if best else "none is done yet",
                ),
                Tile("trials", Cell(str(len(trials)), len(trials)), f"{len(done)} came to their end"),
            ]
        ),
        f"<h2>Train with the best values</h2><pre>{escape(final_command(common, best.params))}</pre>"
        if best
        else "",
        _importances(study, len(done)),
        _curves(output, done),
        f"<h2>Trials</h2>{html_table(*trials_table(trials, metric))}",
    ]
    path = output / "tune.html"
    summary = "Values that were tried, judged by val alone. Nothing here has seen the test split."
    content = "\n".join(f"<section>{section}</section>" for section in sections if section)
    write_text(path, page(output.name, "tuning", summary=summary, content=content))
    return path


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that came to their end, the best first; then those given up, by what they had; then the others."""
    sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
    order = {TrialState.COMPLETE: 0, TrialState.PRUNED: 1}

    def rank(trial: FrozenTrial) -> tuple[int, float, int]:
        value = trial.value
        return order.get(trial.state, 2), math.inf if value is None else sign * value, trial.number

    is_left = {each.user_attrs.get("folder") for each in study.trials if each.state != TrialState.FAIL}
    return sorted(
        (
            each
            for each in study.trials
            if each.state != TrialState.FAIL
            or "error" in each.user_attrs
            or each.user_attrs.get("folder") not in is_left
        ),
        key=rank,
    )


def trials_table(trials: Sequence[FrozenTrial], metric: str) -> tuple[list[Column], Rows]:
    """A row a trial: its score, its values, how it ended."""
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    columns = [
        Column("trial", is_words=True),
        Column(metric, "the best on val; of one given up, its last"),
        *(Column(key) for key in keys),
        Column("evaluations"),
        Column("end", is_words=True),
    ]
    rows: Rows = [
        [
            str(trial.number),
            _score(trial),
            *(_value(trial.params.get(key)) for key in keys),
            str(len(trial.intermediate_values)),
            ENDS[trial.state] + (f": {trial.user_attrs['error']}" if "error" in trial.user_attrs else ""),
        ]
        for trial in trials
    ]
    return columns, rows


def print_end(study: optuna.Study, path: Path, common: Sequence[str], metric: str) -> None:
    """The best trials, where the page is, and what to type next."""
    trials = ranked(study)
    columns, rows = trials_table(trials[:5], metric)
    print(text_table(columns, rows))
    print(f"page: {path}")
    if trials and trials[0].state == TrialState.COMPLETE:
        print(f"next: {final_command(common, trials[0].params)}")


def _importances(study: optuna.Study, num_done: int) -> str:
    if num_done < FEW:
        return ""
    try:
        by_key: Mapping[str, float] = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):  # every trial had the same values, say
        return ""
    rows: Rows = [[key, share(value)] for key, value in by_key.items()]
    note = "<p>How much of the difference between trials goes with each key (PED-ANOVA); of few trials a rough guess.</p>"
    return f"<h2>What mattered</h2>{note}{html_table(['key', 'share'], rows)}"


def _curves(output: Path, done: Sequence[FrozenTrial]) -> str:
    folders = [
        output / trial.user_attrs["folder"] for trial in done[: len(STYLES)] if "folder" in trial.user_attrs
    ]
    trained = [str(folder) for folder in folders if (folder / "config.yaml").is_file()]
    if not trained:
        return ""
    charts = comparison_charts(read_runs(trained), "val")
    return f"<h2>The best trials</h2>{charts_html(charts, 'curves')}"


def _score(trial: FrozenTrial | None) -> Cell:
    value = (
        None if trial is None or trial.state not in (TrialState.COMPLETE, TrialState.PRUNED) else trial.value
    )
    return Cell(fixed(value, 5), value)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
