"""Everything that is measured of predictions is the same on a GPU as on CPU, on one rank and on two."""

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.evaluation.curves import measure_curves
from dlrm_app.evaluation.evaluate import Scored
from dlrm_app.evaluation.intervals import compare_aucs
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.loader.supervision import Supervision
from dlrm_app.training import evaluation as module
from dlrm_app.training.evaluation import fit_final_bias, shift_to_labels
from tests.cuda_without_gpu.make_believe import CPU, GPU, TO_GPU, MakeBelieveGpu
from tests.ranks import on_ranks
from tests.scored import scored


def predictions(rank: int) -> tuple[torch.Tensor, ...]:
    """Two models' logits, labels, groups; 1,000 rows with ties."""
    generator = torch.Generator().manual_seed(rank)
    logits = (torch.randn(2, 1000, generator=generator) * 8).round() / 8
    labels = (torch.rand(1000, generator=generator) < 0.3).float()
    return logits[0], logits[1], labels, torch.randint(0, 20, (1000,), generator=generator)


def measure(runtime: Runtime, device: torch.device) -> tuple[Any, ...]:
    first, second, labels, groups = (values.to(device) for values in predictions(runtime.rank))
    metrics = ClickMetrics("val", "a feature")
    for part in torch.arange(1000, device=CPU).split(300):
        some = slice(int(part[0]), int(part[-1]) + 1)
        metrics.update(scored(first[some], labels[some]), groups[some])
    curves = measure_curves(metrics.rows())
    return metrics.compute(), curves, compare_aucs(scored(first, labels), second, 0.95)


def on_both(runtime: Runtime) -> tuple[Any, Any]:
    on_cpu = measure(runtime, CPU)
    with MakeBelieveGpu():
        return on_cpu, measure(runtime, GPU)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_metrics_are_those_of_the_cpu(num_ranks: int) -> None:
    for on_cpu, on_gpu in on_ranks(on_both, num_ranks):
        assert on_gpu == on_cpu


def test_the_last_bias_is_fitted_to_logits_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CPU: the train split has more rows than a GPU has room for, and nothing is sorted or ranked."""
    logits, _, labels, _ = predictions(0)
    bias = torch.nn.Parameter(torch.zeros(1))
    kept: list[bool] = []

    def score(*arguments: Any) -> None:
        for part in (slice(600), slice(600, 1000)):
            taught = Supervision.unweighted(labels[part].unsqueeze(0)).to(GPU)
            rows: Any = SimpleNamespace(supervision=taught, num_valid=len(labels[part]))
            arguments[-1](Scored(rows, logits[part].unsqueeze(1).to(GPU)))

    def shift(parts: Sequence[torch.Tensor], clicks: float, *more: Any) -> tuple[float, float]:
        kept.extend(part.is_cuda for part in parts)
        return shift_to_labels(parts, clicks, *more)

    monkeypatch.setattr(module, "score_rows", score)
    monkeypatch.setattr(module, "shift_to_labels", shift)
    monkeypatch.setattr(module, "split_batches", lambda *_: nullcontext())
    monkeypatch.setattr(module, "last_biases", lambda *_: [bias])
    run: Any = SimpleNamespace(trainable=SimpleNamespace(model=None), forward_passes=None, runtime=None)
    run.manifest = SimpleNamespace(splits={}, labels=[])
    with MakeBelieveGpu():
        fit_final_bias(run)
    assert kept == [False, False]
    assert bias.item() == pytest.approx(shift_to_labels([logits], float(labels.sum()))[0])


def test_fitting_the_bias_waits_once_for_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, _, labels, _ = predictions(0)
    monkeypatch.setattr(module, "BATCHES_HELD", 4)
    monkeypatch.setattr(module, "split_batches", lambda *_: nullcontext())

    def score(*arguments: Any) -> None:
        for some in torch.arange(1000).split(100):
            part = slice(int(some[0]), int(some[-1]) + 1)
            taught = Supervision.unweighted(labels[part].unsqueeze(0)).to(GPU)
            rows: Any = SimpleNamespace(supervision=taught, num_valid=len(labels[part]))
            arguments[-1](Scored(rows, logits[part].unsqueeze(1).to(GPU)))

    monkeypatch.setattr(module, "score_rows", score)
    run: Any = SimpleNamespace(forward_passes=None, runtime=None, manifest=SimpleNamespace(labels=[]))
    with MakeBelieveGpu() as gpu:
        (shift,) = module.shifts_to_split(run, "train", lambda shift, error: shift)
    assert shift == pytest.approx(shift_to_labels([logits], float(labels.sum()))[0])
    assert (
        len([wait for wait in gpu.waits if wait != TO_GPU]) == 2 * 3
    )  # logits and clicks of 4, 4 and 2 batches
