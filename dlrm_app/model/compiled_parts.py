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
        module.forward = CompiledForward(path, module)


class CompiledForward:
    """Stands in for the ``forward`` of ``module``."""

    def __init__(self, path: str, module: nn.Module) -> None:
        self._path, self._module = path, module
        self._plain: Forward = module.forward
        # one graph or none: half a forward pass, taken back, may have moved a batch norm's statistics
        self._compiled: Forward = torch.compile(self._plain, fullgraph=True, dynamic=False)
        self._chosen: Forward | None = None

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The result of ``forward``."""
        if not self._module.training or any(isinstance(each, fx.Proxy) for each in inputs):
            return self._plain(*inputs)
        if self._chosen is None:
            return self._choose(*inputs)
        return self._chosen(*inputs)

    def _choose(self, *inputs: torch.Tensor) -> torch.Tensor:
        try:
            # the backward pass too: later, in the midst of it, there is no way back
            with differentiation.patch(force_non_lazy_backward_lowering=True):
                outputs = self._compiled(*inputs)
        except TorchDynamoException as error:
            logger.warning(
                "trainer.compile: %s stays as it is, for torch.compile says %s; it needs a compiler and, on GPUs, Python's "
                "headers (apt-get install g++ python3-dev); trainer.compile=false does without",
                self._path,
                _first_line(error),
            )
            self._chosen = self._plain
            return self._plain(*inputs)
        self._chosen = self._compiled
        return outputs


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
