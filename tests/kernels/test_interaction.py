"""The compiled interaction beside the same in plain torch and float64."""

import pytest
import torch
from torch import fx
from torchrec.models.dlrm import InteractionArch

from dlrm_app.kernels.interaction import DotInteraction, PairwiseDots


def draw(rows: int, features: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    dense = torch.randn(rows, dim, generator=generator)
    return dense.requires_grad_(), torch.randn(rows, features, dim, generator=generator).requires_grad_()


@pytest.mark.parametrize("shape", [(64, 26, 32), (33, 5, 8), (1, 1, 4), (9, 17, 12), (0, 3, 4)])
def test_dots_and_gradients_equal_plain_torch(shape: tuple[int, int, int]) -> None:
    dense, sparse = draw(*shape)
    wide = [values.detach().double().requires_grad_() for values in (dense, sparse)]
    expected = InteractionArch(shape[1])(*wide)
    found = DotInteraction(shape[1])(dense, sparse)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    gradients = torch.autograd.grad(found, (dense, sparse), weights)
    for gradient, wanted in zip(
        gradients, torch.autograd.grad(expected, wide, weights.double()), strict=True
    ):
        torch.testing.assert_close(gradient, wanted.float(), rtol=1e-5, atol=1e-5)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    dense, sparse = draw(37, 26, 16)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        crossed = PairwiseDots.apply(dense, sparse)
        found.append([crossed, *torch.autograd.grad(crossed.square().sum(), (dense, sparse))])
    torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_nan_and_inf_are_seen() -> None:
    dense, sparse = draw(4, 3, 8)
    with torch.no_grad():
        dense[1, 0], sparse[2, 1, 5] = torch.nan, torch.inf
    plain = InteractionArch(3)(dense, sparse)
    found = DotInteraction(3)(dense, sparse)
    assert torch.equal(found.isfinite(), plain.isfinite())


def test_strided_and_other_dtypes_give_the_same_products() -> None:
    dense, sparse = (values.detach() for values in draw(16, 6, 8))
    expected = InteractionArch(3)(dense, sparse[:, ::2])
    torch.testing.assert_close(DotInteraction(3)(dense, sparse[:, ::2]), expected)
    torch.testing.assert_close(
        DotInteraction(3)(dense.double(), sparse[:, ::2].double()), expected.double(), rtol=1e-6, atol=1e-5
    )
    rounded = DotInteraction(3)(dense.bfloat16(), sparse[:, ::2])
    torch.testing.assert_close(rounded, InteractionArch(3)(dense.bfloat16().float(), sparse[:, ::2]))


def test_readers_of_the_model_see_plain_operators() -> None:
    dense, sparse = (values.detach() for values in draw(4, 3, 8))
    expected = InteractionArch(3)(dense, sparse)
    assert torch.equal(fx.symbolic_trace(DotInteraction(3))(dense, sparse), expected)
    exported = torch.export.export(DotInteraction(3), (dense, sparse))
    assert torch.equal(exported.module()(dense, sparse), expected)
    assert torch.equal(torch.jit.trace(DotInteraction(3), (dense, sparse))(dense, sparse), expected)
