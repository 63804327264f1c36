"""RUN/mlperf.txt: the lines that MLPerf Training's compliance and RCP checkers read (mlperf-logging 4.1, ruleset 6.0.0).

Their text is that of mlperf_logging.mllog; a line each, written at once, so that a run that is killed leaves what it did.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlrm_app.config.compose import compose_config
from dlrm_app.config.saved import changed_keys
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.runs.checkpoint.marker import Evaluation
from dlrm_app.runs.events import (
    EpochEnd,
    EpochStart,
    EvaluationEnd,
    EvaluationStart,
    Happening,
    RunStart,
    TrainingEnd,
)
from dlrm_app.text import bullets

logger = logging.getLogger(__name__)

BENCHMARK, RECIPE = "dlrm_dcnv2", "mlperf_dcnv2"
TRAIN_SAMPLES, EVAL_SAMPLES = 4_195_197_692, 89_137_319
"""Criteo 1TB's days 0 to 22, and the first half of day 23."""


COMPARED: dict[str, Sequence[str] | None] = {
    "tables": None,
    "model": None,
    "optimizer": None,
    "schedule": None,
    "trainer": ("epochs", "calibrate"),
    "distillation": ("scores",),
    "warm_start": ("checkpoint",),
    "evaluation": ("per_epoch", "target_auc"),
}
"""Sections that the closed division fixes, and which keys of them; None: all."""


def open_division_reasons(config: TrainConfig, manifest: Manifest) -> list[str]:
    """Lists what MLPerf's closed division does not allow; nothing for experiment=mlperf_dcnv2 on its dataset.

    Free are the batch size, the learning rate, which is one for tables and dense part, the seed, and how it is computed.
    """
    recipe = compose_config("train", TrainConfig, [f"experiment={RECIPE}", "data.path=unused"])
    for settings in (recipe.optimizer.sparse, recipe.optimizer.dense):
        settings.lr = config.optimizer.dense.lr
    reasons = changed_keys(*({name: _compared(each, name) for name in COMPARED} for each in (recipe, config)))
    for split, rows in (("train", TRAIN_SAMPLES), ("val", EVAL_SAMPLES)):
        count = manifest.splits[split].rows if split in manifest.splits else 0
        reasons += [f"rows of {split} {rows:,} → {count:,}"] if count != rows else []
    return reasons


def _compared(config: TrainConfig, section: str) -> dict[str, Any]:
    values, keys = asdict(getattr(config, section)), COMPARED[section]
    return values if keys is None else {key: values[key] for key in keys}


class MlperfLog:
    """Writes ``path`` from the start of initialisation to the end of training."""

    def __init__(self, path: Path, config: TrainConfig, manifest: Manifest) -> None:
        self._path, self._config, self._manifest = path, config, manifest
        path.unlink(missing_ok=True)
        self._event("cache_clear", True)
        self._start("init_start")

    def tell(self, happening: Happening) -> None:
        """Writes the lines of this moment."""
        match happening:
            case RunStart():
                self._start_run()
            case EpochStart(epoch):
                self._start("epoch_start", epoch_num=epoch)
            case EpochEnd(epoch):
                self._end("epoch_stop", epoch_num=epoch)
            case EvaluationStart("val", epochs):
                self._start("eval_start", epoch_num=epochs)
            case EvaluationEnd(Evaluation("val") as evaluation, epochs):
                self._event("eval_accuracy", evaluation.metrics["auc"], epoch_num=epochs)
                self._end("eval_stop", epoch_num=epochs)
            case TrainingEnd(has_reached_target):
                self._end("run_stop", status="success" if has_reached_target else "aborted")

    def _start_run(self) -> None:
        config, splits = self._config, self._manifest.splits
        submission = config.logging.mlperf
        reasons = open_division_reasons(config, self._manifest)
        if reasons:
            wrong = bullets(reasons, 8)
            logger.info(
                "MLPerf's log: open division, for this is not experiment=%s on its dataset\n%s", RECIPE, wrong
            )
        settings = {
            "submission_benchmark": BENCHMARK,
            "submission_org": submission.org,
            "submission_division": "open" if reasons else "closed",
            "submission_status": submission.status,
            "submission_platform": submission.platform,
            "seed": config.trainer.seed,
            "global_batch_size": config.trainer.global_batch_size,
            "gradient_accumulation_steps": config.trainer.micro_batches,
            "train_samples": splits["train"].rows,
            "eval_samples": splits["val"].rows,
            **_optimizer_settings(config),
        }
        for key, value in settings.items():
            self._event(key, value)
        self._end("init_stop")
        self._start("run_start")

    def _start(self, key: str, **metadata: float | str) -> None:
        self._write("INTERVAL_START", key, None, metadata)

    def _end(self, key: str, **metadata: float | str) -> None:
        self._write("INTERVAL_END", key, None, metadata)

    def _event(self, key: str, value: float | str, **metadata: float | str) -> None:
        self._write("POINT_IN_TIME", key, value, metadata)

    def _write(self, kind: str, key: str, value: object, metadata: dict[str, float | str]) -> None:
        line = {
            "namespace": "",
            "time_ms": int(1000 * time.time()),
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": {"file": "dlrm-train", "lineno": 0, **metadata},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f":::MLLOG {json.dumps(line)}\n")


def _optimizer_settings(config: TrainConfig) -> dict[str, float | str]:
    sparse, dense, schedule = config.optimizer.sparse, config.optimizer.dense, config.schedule.sparse
    decays = schedule.kind != "constant"
    return {
        "opt_name": dense.kind if sparse.kind == dense.kind else f"{sparse.kind}, {dense.kind}",
        "opt_base_learning_rate": sparse.lr,
        "opt_adagrad_learning_rate_decay": 0,
        "opt_adagrad_initial_accumulator_value": 0,
        "opt_adagrad_epsilon": sparse.eps,
        "opt_weight_decay": max(sparse.weight_decay, dense.weight_decay),
        "opt_learning_rate_warmup_steps": schedule.warmup_steps,
        "opt_learning_rate_decay_start_step": schedule.first_decay_step if decays else 0,
        "opt_learning_rate_decay_steps": (schedule.decay_steps or 0) if decays else 0,
    }
