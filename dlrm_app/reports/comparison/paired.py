"""Whether runs' AUCs differ by more than chance: every run's checkpoint on the same rows, against the first run's."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.report import ReportConfig
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DlrmError
from dlrm_app.evaluation.delong import Comparison, compare_aucs
from dlrm_app.evaluation.evaluate_checkpoints import Measured, measure
from dlrm_app.reports.comparison.runs import ComparedRun
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.runs.checkpoint.marker import check_columns

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairedTest:
    """A run's AUC less the first run's; ``adjusted_p`` is Holm's, over all runs that were tested."""

    comparison: Comparison
    adjusted_p: float


def paired_tests(
    runs: Sequence[ComparedRun], split: str, config: ReportConfig
) -> dict[str, PairedTest | str]:
    """By run's name: its test against the first run on ``split`` of that run's dataset, or why there is none."""
    first, *others = runs
    evaluation = _evaluation(split, config)
    results: dict[str, Comparison | str] = {}
    with start_runtime(config.threads) as runtime:
        try:
            manifest = read_manifest(Path(first.record.config["data"]["path"]))
            baseline = _measure(first, manifest, evaluation, runtime)
        except (DlrmError, KeyError) as error:
            return {run.name: f"{first.name}: {error}" for run in others}
        for run in others:
            try:
                measured = _measure(run, manifest, evaluation, runtime)
            except DlrmError as error:
                logger.warning("%s is not tested against %s: %s", run.name, first.name, error)
                results[run.name] = str(error)
                continue
            results[run.name] = _compare(measured, baseline, config.confidence)
    return _adjusted(results)


def _evaluation(split: str, config: ReportConfig) -> EvaluateConfig:
    values = [f"split={split}", f"which={config.which}", f"batch_size={config.batch_size}", "checkpoint=each"]
    return compose_config("evaluate", EvaluateConfig, values)


def _measure(run: ComparedRun, manifest: Manifest, config: EvaluateConfig, runtime: Runtime) -> Measured:
    trained = open_trained(run.record.path, runtime, config.which)
    check_columns(trained, manifest)
    return measure(trained, manifest, config, runtime)


def _compare(measured: Measured, baseline: Measured, confidence: float) -> Comparison | str:
    if not torch.equal(measured.labels, baseline.labels):
        return "its rows come in another order"
    return compare_aucs(measured.logits, baseline.logits, baseline.labels, confidence)


def _adjusted(results: dict[str, Comparison | str]) -> dict[str, PairedTest | str]:
    tested = {name: each for name, each in results.items() if isinstance(each, Comparison)}
    adjusted = dict(zip(tested, holm([each.p_value for each in tested.values()]), strict=True))
    return {
        name: each if isinstance(each, str) else PairedTest(each, adjusted[name])
        for name, each in results.items()
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests, adjusted so that the chance of any false finding is kept (Holm 1979, step-down)."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
