"""Compiles the dense part of a model with torch.compile, for training steps.

Evaluation is not compiled: its batches have other sizes, and each size would be compiled again.
"""

import logging
from collections.abc import Callable

import torch
from torch import fx, nn
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as differentiation

from dlrm_app.distributed.collectives import num_ranks

logger = logging.getLogger(__name__)

PARTS = ("dense_arch", "inter_arch", "over_arch")
"""The compiled parts' names in a model, in the order in which a step runs them."""

Forward = Callable[..., torch.Tensor]


def compile_parts(model: nn.Module) -> None:
    """Makes each part of ``model`` compile in its first training step; hooks, weights and their names stay.

    A part that cannot be compiled stays as it is, with a warning that gives the reason.
    """
    parts = {path: module for path, module in model.named_modules() if path.rpartition(".")[2] in PARTS}
    logger.info("trainer.compile: the first step compiles %s, which takes some seconds", ", ".join(parts))
    # batch norms ask for it, and no step can trace the answer
    torch.compiler.assume_constant_result(num_ranks)  # type: ignore[no-untyped-call]
    for path, module in parts.items():
        module.forward = _compiled(path, module, module.forward)


def _compiled(path: str, module: nn.Module, plain: Forward) -> Forward:
    # one graph or none: a forward pass that fails halfway may have changed a batch norm's statistics
    compiled: Forward = torch.compile(plain, fullgraph=True, dynamic=False)
    chosen: Forward | None = None

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        nonlocal chosen
        if not module.training or any(isinstance(each, fx.Proxy) for each in inputs):
            return plain(*inputs)
        if chosen is not None:
            return chosen(*inputs)
        try:
            # compiles the backward pass now too: an error in the middle of it could not be handled
            with differentiation.patch(force_non_lazy_backward_lowering=True):
                outputs = compiled(*inputs)
        except TorchDynamoException as error:
            logger.warning(
                "trainer.compile: %s is not compiled, because torch.compile says %s; it needs a compiler and, "
                "on GPUs, Python's "
                "headers (apt-get install g++ python3-dev); trainer.compile=false does not need them",
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
