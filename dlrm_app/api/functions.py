"""The library: a function for each command, as ``import dlrm_app as dlrm`` gives them. Imports are lazy.

Settings are the command's own: words as they are typed (``"model=dcn"``), mappings of dotted or nested keys to values
(``{"trainer.epochs": 2}``), and keywords for keys without a section (``output="run"``). They are composed and checked
as on the command line.

Each function returns a frozen result: ``str()`` of it is what the command prints, and a notebook shows it as tables.
Each raises ``ConfigError`` for settings that cannot work, before any work, ``DataError`` for damaged data, and
``DlrmError`` for other problems that the message says how to fix. Nothing is printed; log lines go to the logger
``dlrm_app``.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Executor as Pool
from typing import TYPE_CHECKING, Any, cast

from dlrm_app.api.commands import run
from dlrm_app.api.settings import Given, read_settings

if TYPE_CHECKING:
    from dlrm_app.evaluation.result import EvaluationResult
    from dlrm_app.inference.predict.model import Model
    from dlrm_app.inference.predict.predict import Predictions
    from dlrm_app.inference.result import Export
    from dlrm_app.preprocessing.summary import Dataset
    from dlrm_app.reports.comparison import Page
    from dlrm_app.runs.run import Run
    from dlrm_app.tools.checking.findings import Findings
    from dlrm_app.tools.checking.raw_logs import Proposal
    from dlrm_app.tools.daily.days import Outcome
    from dlrm_app.tools.diagnosis.examine import Examination
    from dlrm_app.tools.planning.plan_cluster import PlannedCluster
    from dlrm_app.tools.synthetic.clicks import Clicks
    from dlrm_app.tools.synthetic.inputs import ModelInputs
    from dlrm_app.tools.tuning.study import Study


def _call(
    name: str, settings: tuple[Given, ...], keywords: dict[str, object], pool: Pool | None = None
) -> Any:
    return run(name, *read_settings(name, settings, keywords), pool)


def preprocess(*settings: Given, executor: Pool | str | None = None, **keywords: object) -> "Dataset":
    """Turns raw click logs into a dataset folder, or continues an unfinished one (dlrm-preprocess).

    ``executor``: local or dask, as on the command line; or any ``concurrent.futures.Executor`` whose processes see the
    input and the output under the same names, such as a ProcessPoolExecutor, Dask's ``client.get_executor()`` or
    mpi4py's MPIPoolExecutor. With ``ranks``, all ranks that a launcher has started must call it.
    """
    if isinstance(executor, Pool):
        return cast("Dataset", _call("preprocess", settings, keywords, executor))
    if executor is not None:
        keywords["executor"] = executor
    return cast("Dataset", _call("preprocess", settings, keywords))


def check(*settings: Given, **keywords: object) -> "Findings | Proposal":
    """Checks and describes a dataset (``data.path``), or proposes a description of raw logs (``input``): dlrm-check."""
    return cast("Findings | Proposal", _call("check", settings, keywords))


def train(*settings: Given, **keywords: object) -> "Run":
    """Trains a model on a dataset (dlrm-train). Under torchrun every rank must call it; each gets the same result."""
    return cast("Run", _call("train", settings, keywords))


def evaluate(*settings: Given, **keywords: object) -> "EvaluationResult":
    """Metrics of a checkpoint or of scores on a dataset's split (dlrm-evaluate)."""
    return cast("EvaluationResult", _call("evaluate", settings, keywords))


def predict(*settings: Given, **keywords: object) -> "Predictions":
    """Scores a dataset's split or raw logs into a file (dlrm-predict). ``load`` scores rows in memory."""
    return cast("Predictions", _call("predict", settings, keywords))


def load(
    path: str | os.PathLike[str], *, which: str = "newest", ema: bool = False, plugins: Sequence[str] = ()
) -> "Model":
    """Loads a run, a checkpoint or an export, also of a store, to score rows with it: ``load("run").predict(rows)``.

    ``which``: the checkpoint of a run: newest, or best (on val). ``ema``: uses the moving average of its dense weights,
    which optimizer.dense.ema_decay keeps. ``plugins``: files that register the run's architecture, if it is one of your
    own that was not imported yet. Raises DataError for damaged files, and ConfigError for a path that is none
    of these.
    """
    from dlrm_app.inference.predict.model import load_model
    from dlrm_app.stores.fetch import fetched

    return load_model(fetched(os.fspath(path)), which, ema, plugins)


def export(*settings: Given, **keywords: object) -> "Export":
    """Turns a checkpoint into a verified export, which C++ and dlrm-serve can load (dlrm-export)."""
    return cast("Export", _call("export", settings, keywords))


def plan(*settings: Given, **keywords: object) -> "PlannedCluster":
    """Places the tables of a model on a described cluster, without that cluster (dlrm-plan)."""
    return cast("PlannedCluster", _call("plan", settings, keywords))


def generate(*settings: Given, **keywords: object) -> "Clicks | ModelInputs":
    """Writes synthetic click logs with a known best AUC, or inputs of synthetic models (dlrm-generate)."""
    return cast("Clicks | ModelInputs", _call("generate", settings, keywords))


def tune(*settings: Given, **keywords: object) -> "Study":
    """Searches a space of settings by training, judged on val (dlrm-tune)."""
    return cast("Study", _call("tune", settings, keywords))


def days(*settings: Given, **keywords: object) -> "Outcome":
    """Learns a log that grows day by day, and publishes the models that pass the gate (dlrm-days)."""
    return cast("Outcome", _call("days", settings, keywords))


def report(*settings: Given, **keywords: object) -> "Page":
    """Writes the page of a run, or a comparison of several: ``report("run1", "run2")`` (dlrm-report)."""
    return cast("Page", _call("report", settings, keywords))


def doctor(*settings: Given, **keywords: object) -> "Examination":
    """Checks that this machine's torch, fbgemm, torchrec, driver and backends work together (dlrm-doctor)."""
    return cast("Examination", _call("doctor", settings, keywords))
