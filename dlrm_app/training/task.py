"""What a training step computes: logits and their binary cross-entropy."""

import torch
from torch import nn

from dlrm_app.data.batch import Batch

StepOutput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], (loss, logits [B], labels [B]) detached)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.BCEWithLogitsLoss()

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss."""
        logits = self.model(batch.dense_features, batch.sparse_features).squeeze(-1)
        loss = self.loss(logits, batch.labels)
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
