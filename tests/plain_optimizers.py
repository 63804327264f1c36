"""Optimizers to compare ours with: torch's for the dense part, and fbgemm's rules for tables, row by row."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dlrm_app.config.optimizer import DenseSettings, SparseSettings

DENSE: dict[str, Callable[[list[nn.Parameter], DenseSettings], torch.optim.Optimizer]] = {
    "sgd": lambda p, s: torch.optim.SGD(p, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay),
    "adagrad": lambda p, s: torch.optim.Adagrad(p, lr=s.lr, eps=s.eps, weight_decay=s.weight_decay),
    "adam": lambda p, s: torch.optim.Adam(
        p, lr=s.lr, eps=s.eps, betas=(s.beta1, s.beta2), weight_decay=s.weight_decay
    ),
    "adamw": lambda p, s: torch.optim.AdamW(
        p, lr=s.lr, eps=s.eps, betas=(s.beta1, s.beta2), weight_decay=s.weight_decay
    ),
}


class RowByRow:
    """Updates every touched row of every table by itself, in float64, as the formulas are written in papers.

    Weights are rounded to the nearest value of ``stored_as`` after each step. With ``parts`` > 1 each row counts as so
    many, of equal width, which have statistics of their own.
    """

    def __init__(
        self,
        tables: Sequence[nn.Parameter],
        settings: SparseSettings,
        stored_as: torch.dtype = torch.float32,
        parts: int = 1,
    ) -> None:
        self.tables, self.settings, self.lr, self.stored_as = list(tables), settings, settings.lr, stored_as
        self.parts = parts
        self.state: dict[tuple[int, int, int], list[torch.Tensor | float]] = {}
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        for place, table in enumerate(self.tables):
            assert table.grad is not None
            touched = table.grad.abs().sum(1).nonzero().flatten()
            for row in range(len(table)) if self.settings.updated_rows == "all" else touched.tolist():
                weights, gradient = table[row].double(), table.grad[row].double()
                pairs = zip(weights.chunk(self.parts), gradient.chunk(self.parts), strict=True)
                changes = [self.direction((place, row, part), w, g) for part, (w, g) in enumerate(pairs)]
                table[row] = (weights - self.lr * torch.cat(changes)).to(self.stored_as)

    def direction(self, key: tuple[int, int, int], w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        s, kind = self.settings, self.settings.kind
        m, v = self.state.setdefault(key, [0.0, 0.0])
        of_fbgemm = "coupled" if kind in ("sgd", "adagrad", "rowwise_adagrad") else "decoupled"
        decay = s.weight_decay * w
        coupled, decoupled = (decay, 0) if (s.weight_decay_mode or of_fbgemm) == "coupled" else (0, decay)
        g = g + coupled
        if kind == "sgd":
            return g + decoupled
        square = (g * g).mean() if "rowwise" in kind else g * g
        if "adagrad" in kind:
            v = v + square
            self.state[key] = [m, v]
            return g / (v**0.5 + s.eps) + decoupled
        m, v = s.beta1 * m + (1 - s.beta1) * g, s.beta2 * v + (1 - s.beta2) * square
        self.state[key] = [m, v]
        m_hat, v_hat = m / (1 - s.beta1**self.count), v / (1 - s.beta2**self.count)
        r = m_hat / (v_hat**0.5 + s.eps) + decoupled
        return r * w.norm() / r.norm() if "lamb" in kind else r
