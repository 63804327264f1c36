"""Verifies an export: compares the scores that the trained model and each file give held-out rows."""

import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dlrm_app.errors import DlrmError, Problem
from dlrm_app.evaluation.evaluate import Measured
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.evaluation.label_rows import MAIN
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.inference.exported_model import from_lines, to_lines
from dlrm_app.inference.formats import Forward, Inputs
from dlrm_app.inference.record import Verification
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.loader.batch import Batch, EvalBatches
from dlrm_app.progress import progress_bar

TIMED_ROWS = (1, 64, 512)
CHANCE = 0.05
"""The p-value from which on a loss may be chance: a file as good as the model is refused once in 40 times."""
_SECONDS = 0.3
_QUIET_PREEMPTIONS = 75
"""Preemptions per second of CPU time on a quiet machine: quiet ones had up to 50, busy ones 100 or more."""


@torch.no_grad()
def score_split(
    score: Callable[[Batch], torch.Tensor], batches: EvalBatches, metrics: Measured, title: str
) -> torch.Tensor:
    """Scores all rows of ``batches`` with ``score``, which returns logits [B], or [B, L] of several labels, and adds
    them to ``metrics``. Returns all logits [R, L].
    """
    all_logits = []
    with progress_bar(title, len(batches), True) as bar, batches:
        for batch in batches:
            rows = slice(batch.num_valid)
            logits = score(batch)[rows].reshape(batch.num_valid, -1)
            for label, each in metrics.items():
                each.update(label.scored(logits, batch.supervision[rows])[0])
            all_logits.append(logits.to(torch.float32, copy=True))
            bar.update(1)
    logits = torch.cat(all_logits)
    if bad := int(logits.isnan().any(1).sum()):
        rule = f"gives no number (nan) for {bad:,} of the {len(logits):,} rows, so nothing was exported"
        cure = (
            "the model computes with numbers too large for it: standardize its dense columns (dense.transform), or "
            "train it again with lower learning rates"
        )
        raise DlrmError(Problem(title, rule, cure))
    return logits


def verify(
    path: Path,
    run: Forward,
    trained: tuple[ClickMetrics, torch.Tensor],
    batches: EvalBatches,
    example: Inputs,
) -> Verification:
    """Scores ``batches`` with ``run``, loaded from ``path``, and compares with the ``trained`` model's scores, the
    main label's metrics and all logits. AUCs are the main label's, differences those of all labels.
    """
    metrics, all_trained = trained

    def score(batch: Batch) -> torch.Tensor:
        return run(to_inputs(batch))[1]

    found = ClickMetrics(metrics.split)
    all_exported = score_split(score, batches, {MAIN: found}, f"verify {path.name}")
    differences = (all_exported.double().sigmoid() - all_trained.double().sigmoid()).abs()
    comparison = compare_aucs(metrics.rows(), found.rows().logits, 1 - CHANCE)
    loss = comparison.difference
    timed = {str(rows): time_calls(run, repeated(example, rows)) for rows in TIMED_ROWS}
    return Verification(
        file=path.name,
        split=metrics.split,
        rows=len(all_trained),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        auc_trained=comparison.first.value,
        auc=comparison.second.value,
        auc_loss=loss.value,
        auc_loss_low=loss.low,
        auc_loss_high=loss.high,
        p_value=comparison.p_value,
        bytes=path.stat().st_size,
        milliseconds={rows: milliseconds for rows, (milliseconds, _) in timed.items()},
        busy=[rows for rows, (_, is_busy) in timed.items() if is_busy],
    )


def refuse_loss(found: Verification, max_auc_loss: float) -> None:
    """Raises DlrmError if a file loses more AUC than ``max_auc_loss``, and not by chance, or if its AUC is nan."""
    if found.auc_loss <= max_auc_loss or found.p_value >= CHANCE:
        return
    raise DlrmError(
        f"{found.file} loses {found.auc_loss:.6f} of AUC on {found.split} ({found.auc_trained:.6f} before, "
        f"{found.auc:.6f} after, p = {found.p_value:.3g}), more than max_auc_loss={max_auc_loss:g}, so nothing was "
        "exported: use more bits (the next of int4, int8, fp16 in quantize=, or in quantize_tables= for the "
        "tables that matter), or raise max_auc_loss"
    )


def repeated(inputs: Inputs, num_rows: int) -> Inputs:
    """``num_rows`` rows: those of ``inputs``, repeated."""
    lines = to_lines(inputs)
    wanted = [lines[row % len(lines)] for row in range(num_rows)]
    return from_lines(wanted, inputs[0].shape[1], is_weighted=len(inputs) > 3)


def time_calls(run: Forward, inputs: Inputs) -> tuple[float, bool]:
    """Times calls for _SECONDS.

    Returns (the longest time of the fastest tenth, in ms; True if other programs used the cores).

    Other programs only make calls slower, so the fastest ones describe the model best.
    """
    run(inputs)
    times: list[float] = []
    preempted, computed, started = _preemptions(), time.process_time(), time.perf_counter()
    while time.perf_counter() - started < _SECONDS or len(times) < 10:
        before = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - before)
    is_busy = _preemptions() - preempted > _QUIET_PREEMPTIONS * (time.process_time() - computed)
    return round(1000 * sorted(times)[len(times) // 10], 4), is_busy


def _preemptions() -> int:
    """The number of times that this process's threads were preempted by other programs."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
