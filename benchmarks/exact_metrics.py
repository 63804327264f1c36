"""CPU time and memory of exact metrics: python benchmarks/exact_metrics.py [MILLION_ROWS]

One thread. Memory is what the process grew by at most so far, beyond the rows themselves.
"""

import resource
import sys
import time
from collections.abc import Callable

import torch

from dlrm_app.evaluation.group_ranking import measure_groups
from dlrm_app.evaluation.grouped_auc import collect_groups, grouped_auc
from dlrm_app.evaluation.intervals import auc_interval, compare_aucs
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.evaluation.ranking import rank_scores, roc_auc
from dlrm_app.evaluation.scored_rows import ScoredRows


def main() -> None:
    torch.set_num_threads(1)
    num_rows = int(float(sys.argv[1] if len(sys.argv) > 1 else 10) * 1e6)
    logits = torch.randn(num_rows) - 1
    labels = torch.rand(num_rows) < torch.sigmoid(logits)
    groups = (torch.rand(num_rows) ** 3 * 100_000).int()
    rows = ScoredRows.unweighted(logits, labels)
    before = _peak()
    works: dict[str, Callable[[], object]] = {
        "AUC": lambda: roc_auc(rank_scores(rows)),
        "all metrics": lambda: _all(logits, labels),
        "grouped AUC": lambda: grouped_auc(collect_groups(rows, groups)).mean(),
        "all of groups": lambda: measure_groups(collect_groups(rows, groups), [5, 10]),
        "DeLong interval": lambda: auc_interval(rows, 0.95),
        "DeLong, two models": lambda: compare_aucs(rows, logits + groups, 0.95),
    }
    for name, work in works.items():
        measure(name, work, num_rows, before)


def _all(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    metrics = ClickMetrics("rows")
    for some, positive in zip(logits.split(4096), labels.split(4096), strict=True):
        metrics.update(ScoredRows.unweighted(some, positive))
    return metrics.compute()


def measure(name: str, work: Callable[[], object], num_rows: int, before: int) -> None:
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    rate = num_rows / seconds / 1e6
    print(f"{name:20} {seconds:6.2f} s CPU, {rate:.1f} million rows/s, up to {_peak() - before:,} MiB more")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
