"""The last bias shifted at the end of a run, by what was predicted of rows before they were trained on.

In the first epoch that is a prediction for a new row (progressive validation, Blum et al. 1999), and there are as many of these
as training rows. Under Adagrad, where clicks are rare, they are too low: an id's first step is a full one, nearly always
down, and the dense part makes up for it with a lag. In a later epoch the rows were seen before, and little is to be shifted.
"""

import logging

import torch
from torch import nn

from dlrm_app.config.train import TrainerConfig
from dlrm_app.distributed.collectives import all_gather_stacked, sum_in_rank_order
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.initial_weights import last_biases

logger = logging.getLogger(__name__)

LARGEST = 1.0
"""Of a shift: a run that needs more has not learnt the share of clicks, which no bias mends."""


class FinalBias:
    """Adds up labels, predictions p and their slopes p · (1 - p) over the last half epoch, then shifts every last bias by
    Σ(label - p) / Σ p · (1 - p): Newton's step to predictions that add up to the labels.

    An ensemble's models are shifted by the same number: each alone would have a part of the labels to go by.
    """

    def __init__(self, trainer: TrainerConfig, num_rows: int, device: torch.device) -> None:
        """``num_rows``: of the train split."""
        self._num_steps = trainer.num_steps(num_rows)
        last_epoch = min(self._num_steps, num_rows // trainer.global_batch_size)
        self._steps_before = self._num_steps - (last_epoch + 1) // 2
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)

    def add(self, step: int, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Takes in what ``step``, counted from 1, predicted of its rows: logits and labels [B] of this rank."""
        if step > self._steps_before:
            p = logits.double().sigmoid()
            self._sums += torch.stack([labels.double().sum(), p.sum(), (p * (1 - p)).sum()])

    def shift(self, step: int, model: nn.Module) -> None:
        """Shifts the biases of ``model`` if ``step`` was the run's last. Every rank must call it."""
        if step != self._num_steps:
            return
        labels, predicted, slopes = sum_in_rank_order(self._sums).tolist()
        wanted = (labels - predicted) / slopes if slopes else 0.0
        shift = min(max(wanted, -LARGEST), LARGEST)
        for bias in last_biases(model):
            bias.data.add_(shift)
        logger.info(
            "trainer.calibrate: the rows of the last half epoch have %s clicks, and %s were predicted before each was trained "
            "on: the last bias is shifted by %+.4f",
            f"{labels:,.0f}",
            f"{predicted:,.0f}",
            shift,
        )

    def state(self) -> list[list[float]]:
        """The sums of every rank. Every rank must call it."""
        sums: list[list[float]] = all_gather_stacked(self._sums).tolist()
        return sums

    def load_state(self, sums: list[list[float]], runtime: Runtime) -> None:
        """Goes on from ``sums``; under another number of ranks their total stays the same."""
        self._sums.copy_(torch.tensor(sums, dtype=torch.float64)[runtime.rank :: runtime.world_size].sum(0))
