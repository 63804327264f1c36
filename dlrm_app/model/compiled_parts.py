"""The dense part of a model as torch.compile makes it, for training steps.

Evaluation goes without: it has batches of other sizes, each of which would be compiled anew.
"""

import logging
from collections.abc import Callable

import torch
from torch import fx, nn
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as differentiation

logger = logging.getLogger(__name__)

PARTS = ("dense_arch", "inter_arch", "over_arch")
"""Their names in a model, in the order in which a step reaches them."""

Forward = Callable[..., torch.Tensor]


def compile_parts(model: nn.Module) -> None:
    """Has each part of ``model`` compiled in its first training step; its hooks, weights and their names stay.

    A part that cannot be compiled stays as it is, with a warning that gives the reason.
    """
    parts = {path: module for path, module in model.named_modules() if path.rpartition(".")[2] in PARTS}
    logger.info("trainer.compile: the first step compiles %s, which takes some seconds", ", ".join(parts))
    for path, module in parts.items():
        module.forward = _compiled(path, module, module.forward)


def _compiled(path: str, module: nn.Module, plain: Forward) -> Forward:
    """What stands in for ``plain``, the ``forward`` of ``module``."""
    # one graph or none: half a forward pass, taken back, may have moved a batch norm's statistics
    compiled: Forward = torch.compile(plain, fullgraph=True, dynamic=False)
    chosen: Forward | None = None

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        nonlocal chosen
        if not module.training or any(isinstance(each, fx.Proxy) for each in inputs):
            return plain(*inputs)
        if chosen is not None:
            return chosen(*inputs)
        try:
            # the backward pass too: later, in the midst of it, there is no way back
            with differentiation.patch(force_non_lazy_backward_lowering=True):
                outputs = compiled(*inputs)
        except TorchDynamoException as error:
            logger.warning(
                "trainer.compile: %s stays as it is, for torch.compile says %s; it needs a compiler and, on GPUs, Python's "
                "headers (apt-get install g++ python3-dev); trainer.compile=false does without",
                path,
                _first_line(error),
            )
            chosen = plain
            return plain(*inputs)
        chosen = compiled
        return outputs

    return forward


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
