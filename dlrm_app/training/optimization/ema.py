"""The exponential moving average of the dense weights, which is often the better model of a run whose rate stays high.

Polyak and Juditsky 1992; torch.optim.swa_utils.AveragedModel's rule. Tables are left out: most rows change seldom.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from dlrm_app.runs.checkpoint.state import Tensors
from dlrm_app.runs.checkpoint.trained_model import EMA
from dlrm_app.tables.names import table_of


class DenseEma:
    """Averages of the dense weights of the sharded ``model``, and copies of its buffers.

    After the first step they are its weights; after each further one decay · average + (1 - decay) · weights. Batch
    norm's running moments stay those of the weights, as in torch: they are averages already, and an average of them would
    lag behind the tables.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._weights = {
            name: value for name, value in model.state_dict().items() if table_of(name) is None
        }  # views
        self._averages = {name: value.clone() for name, value in self._weights.items()}
        self._buffers = [name for name, _ in model.named_buffers() if name in self._weights]
        self._parameters = [name for name in self._weights if name not in self._buffers]
        self._average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def update(self, updates: int) -> None:
        """Takes the weights in, after the ``updates``-th step that changed them."""
        if updates <= 1:
            self.start()
            return
        averages, weights = (
            [of[name] for name in self._parameters] for of in (self._averages, self._weights)
        )
        self._average(averages, weights, updates)
        self._copy(self._buffers)

    def start(self) -> None:
        """Begins anew with the weights of now."""
        self._copy(self._weights)

    def _copy(self, names: Iterable[str]) -> None:
        for name in names:
            self._averages[name].copy_(self._weights[name])

    @contextmanager
    @torch.no_grad()
    def in_place(self) -> Iterator[None]:
        """The model computes with the averages inside the block, and with the same weights as before after it."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for name, weight in self._weights.items():
            before = weight.clone()
            weight.copy_(self._averages[name])
            self._averages[name].copy_(before)

    def tensors(self) -> Tensors:
        """The averages by their names in a checkpoint."""
        return {f"{EMA}/{name}": average for name, average in self._averages.items()}
