"""The part of a run's page that shows which columns matter, from a file of dlrm-evaluate."""

from html import escape
from pathlib import Path

from dlrm_app.errors import ConfigError, Problem
from dlrm_app.evaluation.result import EvaluationResult, ModelResult
from dlrm_app.records import read_record
from dlrm_app.table import Cell, Column, Columns, Rows, html_table

_AGAIN = "write it with dlrm-evaluate checkpoint=RUN importance.repeats=3 output=FILE.json"


def importance_section(file: Path, run: Path) -> str:
    """A table of the columns with bars as long as the falls of the metric, and the pairs that hide each other.

    Raises DlrmError if ``file`` has no importance of the columns of ``run``.
    """
    result = read_record(file, EvaluationResult, _AGAIN)
    model = _model_of(result, run)
    found = model.importance if model else None
    if model is None or found is None:
        raise ConfigError(Problem(f"importance={file}", f"has no importance of columns for {run}", _AGAIN))
    widest = max((each.fall for each in found.columns), default=0.0)
    rows: Rows = [
        [
            each.column,
            Cell(f"{each.fall:+.5f}", each.fall / widest if widest > 0 else 0.0),
            f"{each.low:+.5f} to {each.high:+.5f}",
            ", ".join(each.made),
        ]
        for each in found.columns
    ]
    interval = f"{100 * result.confidence:g}% interval"
    columns: Columns = [
        "column",
        f"{found.change} of the {found.title}",
        interval,
        Column("shuffled with it", is_words=True),
    ]
    about = (
        f"<p>{escape(model.name)}: how much the {escape(found.title)} on {result.split} {found.change}s when the "
        f"column is shuffled among the rows (mean of {found.repeats} on {found.rows:,} rows).</p>"
    )
    pairs = "".join(f"<li>{escape(found.pair_text(pair))}</li>" for pair in found.hiding_pairs())
    return f"<h2>Which column matters</h2>{about}{html_table(columns, rows)}{f'<ul>{pairs}</ul>' if pairs else ''}"


def _model_of(result: EvaluationResult, run: Path) -> ModelResult | None:
    """The result of a checkpoint of ``run``."""
    folder = run.resolve()
    return next((each for each in result.models if folder in Path(each.checkpoint).resolve().parents), None)
