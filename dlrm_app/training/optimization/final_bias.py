"""The last bias fitted at the end of the epochs and of a run: predictions for the rows learnt from add up to their clicks.

There the gradient of log loss by this one weight is 0. A run of one epoch ends elsewhere: its level follows the clicks of the
last few thousand rows, and under Adagrad, where clicks are rare, it is too low, for an id's first step is a full one and
nearly always down, and the dense part makes up for it with a lag.
"""

import logging

import torch

from dlrm_app.distributed.collectives import sum_in_rank_order
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.model.initial_weights import last_biases
from dlrm_app.training.run import TrainingRun
from dlrm_app.training.split_evaluation import measure

logger = logging.getLogger(__name__)

LARGEST = 1.0
"""Of a shift: a run that needs more has not learnt the share of clicks, which no bias mends."""
NEWTON_STEPS = 4
"""Each doubles the digits, and the second is nearly exact already."""


def fit_final_bias(run: TrainingRun) -> None:
    """Shifts every last bias of the run's model. Every rank must call it, with no pipeline attached.

    An ensemble's models are shifted by the same number, found for the mean of their probabilities.
    """
    metrics = ClickMetrics("train")
    before = measure(run, "train", metrics, "calibrate")
    shift = shift_to_labels(*metrics.rows())
    for bias in last_biases(run.trainable.model):
        bias.data.add_(shift)
    logger.info(
        "trainer.calibrate: the last bias is shifted by %+.4f, for %.4f as many clicks were predicted as the train split has",
        shift,
        before["calibration"],
    )


def shift_to_labels(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """What to add to the logits of all ranks' rows for their probabilities to add up to their labels, by Newton's method.

    logits [n] of this rank, labels [n] bool. Within ±LARGEST; 0 where the logits are all sure, so that no shift counts.
    """
    wide, clicks = logits.double(), labels.sum(dtype=torch.float64)
    shift = 0.0
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(wide + shift)
        missing, slope = sum_in_rank_order(torch.stack([clicks - p.sum(), (p * (1 - p)).sum()])).tolist()
        shift = min(max(shift + missing / slope, -LARGEST), LARGEST) if slope else 0.0
    return shift
