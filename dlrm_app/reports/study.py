"""OUTPUT/tune.html: a study's best command, its trials, the importance of keys, and the best curves."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from dlrm_app.files import explained_disk_errors, write_text
from dlrm_app.reports.chart import STYLES, charts_html
from dlrm_app.reports.comparison import comparison_charts, read_runs
from dlrm_app.reports.page import Tile, page, tiles
from dlrm_app.table import Rows, html_table, share
from dlrm_app.tools.tuning.study import JOURNAL, load_study, ranked, score_cell, trials_table
from dlrm_app.tools.tuning.trial import StudySettings, final_command, read_study_settings

MIN_FINISHED = 4
"""The least number of finished trials from which the importance of keys can be estimated."""


def write_study(output: Path) -> Path | None:
    """Writes ``output``/tune.html from the study's journal and returns its path; None if there is no study."""
    if not (output / JOURNAL).is_file():
        return None
    study = load_study(output)
    settings = read_study_settings(output) or StudySettings("auc", {})
    metric, common = settings.metric, settings.settings
    trials = ranked(study)
    best = trials[0] if trials and trials[0].state == TrialState.COMPLETE else None
    done = [each for each in trials if each.state == TrialState.COMPLETE]
    which = f"trial {best.number}" if best else "none is done yet"
    command = escape(final_command(common, best.params)) if best else ""
    ended = Tile("trials", str(len(trials)), f"{len(done)} finished")
    sections = [
        tiles([Tile(f"best {metric} on val", score_cell(best), which), ended]),
        f"<h2>Train with the best values</h2><pre>{command}</pre>" if command else "",
        _importances(study, len(done)),
        _curves(output, done),
        f"<h2>Trials</h2>{html_table(*trials_table(trials, metric))}",
    ]
    path = output / "tune.html"
    summary = "The values that were tried, compared on val only. Nothing here has seen the test split."
    with explained_disk_errors(output, "then type the same command again"):
        write_text(path, page(output.absolute().name, "tuning", summary=summary, sections=sections))
    return path


def _importances(study: optuna.Study, num_done: int) -> str:
    if num_done < MIN_FINISHED:
        return ""
    try:
        by_key: Mapping[str, float] = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    except (ValueError, RuntimeError):  # for example if every trial had the same values
        return ""
    rows: Rows = [[key, share(value)] for key, value in by_key.items()]
    note = (
        "<p>Each key's share of the difference between trials (PED-ANOVA); "
        "with few trials this is a rough guess.</p>"
    )
    return f"<h2>What mattered</h2>{note}{html_table(['key', 'share'], rows)}"


def _curves(output: Path, done: Sequence[FrozenTrial]) -> str:
    folders = [output / trial.user_attrs["folder"] for trial in done[: len(STYLES)]]
    trained = [str(folder) for folder in folders if (folder / "config.yaml").is_file()]
    if not trained:
        return ""
    charts = comparison_charts(read_runs(trained), "val")
    return f"<h2>The best trials</h2>{charts_html(charts, 'curves')}"
