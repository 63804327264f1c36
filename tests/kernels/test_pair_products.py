"""The interaction for compiled exports gives what torchrec's gives."""

import pytest
import torch
from torchrec.models.dlrm import InteractionArch

from dlrm_app.kernels.pair_products import PairProducts


@pytest.mark.parametrize(("features", "dim"), [(1, 4), (5, 8), (26, 3)])
def test_the_products_are_torchrecs(features: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(features)
    dense = torch.randn(7, dim, generator=generator)
    sparse = torch.randn(7, features, dim, generator=generator)
    torch.testing.assert_close(
        PairProducts(features)(dense, sparse), InteractionArch(features)(dense, sparse), rtol=0, atol=1e-5
    )
