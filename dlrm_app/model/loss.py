"""What a training step computes: logits and their binary cross-entropy."""

import torch
from torch import nn

from dlrm_app.loader.batch import Batch
from dlrm_app.model.micro_batches import MicroBatches
from dlrm_app.model.precision import dense_autocast

StepOutput = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class ClickTask(nn.Module):
    """Wraps a model so that a batch gives (loss [], (loss, logits [B], labels [B]) detached), all float32.

    ``trains_in_bf16``: the products of a training step's dense part run in bfloat16 on ``device``. Evaluation never
    does: logits of 8 bits would tie, and the scores would not be those of the exported model.
    ``guard``: what the loss passes before the backward pass; None: nothing. ``micro_batches``: in how many pieces a
    training step computes the dense part.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        trains_in_bf16: bool = False,
        guard: nn.Module | None = None,
        micro_batches: int = 1,
    ) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._trains_in_bf16 = trains_in_bf16
        self.loss = nn.BCEWithLogitsLoss()
        self.guard = guard or nn.Identity()
        self._in_pieces = MicroBatches(model, micro_batches) if micro_batches > 1 else None

    def forward(self, batch: Batch) -> tuple[torch.Tensor, StepOutput]:
        """The mean loss over the batch's rows, padding included: only evaluation pads, and it drops the loss."""
        with dense_autocast(self._device, self._trains_in_bf16 and self.training):
            if self._in_pieces is not None and self.training:
                embedded = self.model.get_submodule("sparse_arch")(batch.sparse_features)
                logits = self._in_pieces(batch.dense_features, embedded)
            else:
                logits = self.model(batch.dense_features, batch.sparse_features)
        logits = logits.float().squeeze(-1)
        loss = self.loss(logits, batch.labels)
        return self.guard(loss), (loss.detach(), logits.detach(), batch.labels.detach())
