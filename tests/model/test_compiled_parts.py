"""torch.compile around the dense part: what is computed stays, and where it cannot be had a step goes without."""

import copy
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor

from dlrm_app.model.compiled_parts import compile_parts

ROWS = 6


class Model(nn.Module):
    """Two parts under the names that are compiled, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse_arch = nn.Linear(3, 4)
        self.dense_arch = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
        self.over_arch = nn.Linear(4, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[B, 5] and [B, 3] → [B, 1]."""
        logits: torch.Tensor = self.over_arch(self.dense_arch(dense) * self.sparse_arch(ids))
        return logits


class Breaking(nn.Linear):
    """A layer that is not one graph."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As a linear layer's."""
        torch._dynamo.graph_break()
        return super().forward(inputs)


@pytest.fixture(autouse=True)
def _anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No code of earlier tests or runs."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch.compiler.reset()
    with inductor.patch(fx_graph_cache=False):
        yield
    torch.compiler.reset()


@pytest.fixture
def models() -> tuple[Model, Model]:
    """The same weights, plain and compiled."""
    torch.manual_seed(0)
    plain = Model()
    compiled = copy.deepcopy(plain)
    compile_parts(compiled)
    return plain, compiled


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Logits and all gradients of a batch."""
    generator = torch.Generator().manual_seed(1)
    dense, ids = torch.randn(ROWS, 5, generator=generator), torch.randn(ROWS, 3, generator=generator)
    logits = model(dense, ids)
    return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


@pytest.mark.long
def test_logits_and_gradients_match_the_plain_model(
    models: tuple[Model, Model], caplog: pytest.LogCaptureFixture
) -> None:
    plain, compiled = models
    torch.testing.assert_close(gradients(compiled), gradients(plain), rtol=1e-6, atol=1e-6)
    assert "is not compiled" not in caplog.text
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_without_a_compiler_steps_run_eagerly_with_a_log_line(
    models: tuple[Model, Model], caplog: pytest.LogCaptureFixture
) -> None:
    plain, compiled = models
    with inductor.patch({"cpp.cxx": (None, "/nowhere/g++")}), caplog.at_level(logging.WARNING):
        assert all(map(torch.equal, gradients(compiled), gradients(plain)))
        first = caplog.text
        gradients(compiled)
    assert "dense_arch is not compiled" in first
    assert "No working C++ compiler" in first
    assert "apt-get install g++" in first
    assert caplog.text == first  # told once


@pytest.mark.long
def test_parts_that_are_not_one_graph_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    plain = Model()
    plain.over_arch = Breaking(4, 1)
    compiled = copy.deepcopy(plain)
    compile_parts(compiled)
    gradients(compiled)
    assert "over_arch is not compiled" in caplog.text
    assert "dense_arch is not compiled" not in caplog.text
    torch.testing.assert_close(gradients(compiled), gradients(plain), rtol=1e-6, atol=1e-6)


def test_evaluation_and_tracing_go_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise AssertionError("compiled")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    plain = Model()
    compiled = copy.deepcopy(plain)
    compile_parts(compiled)
    torch.fx.symbolic_trace(compiled)  # as the pipelines do
    plain.eval()
    compiled.eval()
    assert all(map(torch.equal, gradients(compiled), gradients(plain)))
    compiled.train()
    with pytest.raises(AssertionError, match="compiled"):
        gradients(compiled)
