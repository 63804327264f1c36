"""A training step: logits and their binary cross-entropy, in fp32 or bf16, at once or in pieces.

Shapes: B batch rows of this rank, N dense features.
"""

import copy
import logging
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dlrm_app.loader.batch import Batch

logger = logging.getLogger(__name__)

BF16_UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""torch's names of what a CPU multiplies bfloat16 by: of x86, and of Arm."""
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


class MicroBatches(nn.Module):
    """The dense part of ``model`` in ``count`` pieces, for batches whose activations have no room all at once.

    Keeps the inputs of each piece, and computes it again in the backward pass (Chen et al. 2016, arXiv:1604.06174). The tables
    are read once for the whole batch, and one backward pass goes through all pieces: a step adds up the same gradients as
    without, whatever optimizer and kernel. Several backward passes would not, where tables are updated inside each. A module, so that the pipelines, which trace the model, take it as a whole; its parameters stay those of ``model``.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        dense_part = copy.copy(model)
        dense_part._modules = {**model._modules, "sparse_arch": nn.Identity()}  # it is handed its embeddings
        self._dense_part = [dense_part]  # in a list, where torch does not look for parameters
        self._count = count

    def forward(self, dense_features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """([B, N], the sparse_arch's result [B, …]) → logits [B, 1]."""
        (dense_part,) = self._dense_part
        pieces = zip(dense_features.chunk(self._count), embedded.chunk(self._count), strict=True)
        return torch.cat([checkpoint(dense_part, *piece, use_reentrant=False) for piece in pieces])


def dense_autocast(device: torch.device, is_on: bool) -> AbstractContextManager[None]:
    """A block in which the dense part's products run in bfloat16, if ``is_on``; tables and their updates do not."""
    return torch.autocast(device.type, torch.bfloat16, enabled=is_on)


def multiplies_bf16(device: torch.device) -> bool:
    """True if ``device`` has units for products in bfloat16; without them they are emulated, many times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in BF16_UNITS)


def set_tf32(wanted: bool | str, device: torch.device) -> None:
    """Lets CUDA's fp32 matrix products round their factors to TF32, or not. ``wanted``: trainer.tf32, ``auto`` decided."""
    torch.backends.cuda.matmul.allow_tf32 = wanted is True
    if wanted is True and device.type != "cuda":
        logger.warning("trainer.tf32=true has no effect on %s: TF32 is a format of NVIDIA GPUs", device.type)
