"""Losses of branches: equal to those written out in float64, whatever else a loss has to count."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.config.train import ModelConfig
from dlrm_app.errors import ConfigError
from dlrm_app.loader.supervision import Supervision
from dlrm_app.model.architectures import ARCHITECTURES, ModelSpec, architecture
from dlrm_app.model.branches import BRANCH_LOSSES, BranchHeads
from dlrm_app.model.build import build_model
from dlrm_app.model.loss import ClickLoss
from dlrm_app.tables.table import Table
from tests.model.test_labels import LABELS, ROWS, SHARE, draw_others, with_branches_by_hand
from tests.model.test_parity import MODELS
from tests.model.test_weighted_loss import draw_weights
from tests.plain_branches import training_loss
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES
from tests.refusals import refused

KINDS = {"self_distillation": "finalnet", "tri_bce": "dcnv3"}
CPU = torch.device("cpu")


def draw_logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


def draw_labels() -> torch.Tensor:
    return (torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) < 0.3).float()


@pytest.mark.parametrize(("name", "num_pieces"), [*product(BRANCH_LOSSES, [1, 4])])
def test_loss_and_gradient_match_the_written_out_formula(name: str, num_pieces: int) -> None:
    """Of one label, in equal pieces, each a batch of its own."""
    logits, labels = draw_logits(ROWS, 1, 3), draw_labels()
    loss = ClickLoss(num_pieces, branch_loss=name)
    found = loss(logits[..., 0], Supervision.unweighted(labels[None]), logits[..., 1:])
    pieces = zip(logits[:, 0].double().chunk(num_pieces), labels.double().chunk(num_pieces), strict=True)
    expected = torch.stack([training_loss(KINDS[name], *piece) for piece in pieces]).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(each, logits)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "share", "is_weighted"), [*product(BRANCH_LOSSES, [1.0, SHARE], [True, False])]
)
def test_branches_of_several_labels_match_the_written_out_formula(
    name: str, share: float, is_weighted: bool
) -> None:
    """With labels that are missing or given others, weights, and negatives that were sampled."""
    logits, others = draw_logits(ROWS, 4, 3), draw_others(1)
    weights = draw_weights(2) if is_weighted else torch.ones(ROWS)
    loss = ClickLoss(labels=LABELS, kept_share=share, branch_loss=name)
    taught = Supervision(torch.cat([draw_labels()[None], others]), weights, is_weighted)
    found = loss(logits[..., 0], taught, logits[..., 1:])
    expected = with_branches_by_hand(
        KINDS[name], logits.permute(2, 0, 1), draw_labels(), others, weights, share
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = [torch.autograd.grad(each, logits)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-8)


def test_a_branch_that_is_not_worse_than_the_score_adds_nothing() -> None:
    """Tri-BCE: the loss is the score's to the bit, and better branches get no gradient."""
    labels = draw_labels()
    score = (8 * labels - 4).unsqueeze(1).requires_grad_()
    branches = (score.detach() * 2).unsqueeze(2).expand(-1, -1, 2).clone().requires_grad_()
    loss = ClickLoss(branch_loss="tri_bce")(score, Supervision.unweighted(labels[None]), branches)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(score.flatten(), labels))
    loss.backward()
    assert branches.grad is not None
    assert branches.grad.abs().max() == 0


def test_the_score_learns_nothing_from_its_branches() -> None:
    """Self-distillation: its own gradient is that of its cross-entropy."""
    logits, labels = draw_logits(ROWS, 1, 3), draw_labels()
    loss = ClickLoss(branch_loss="self_distillation")
    found = loss(logits[..., 0], Supervision.unweighted(labels[None]), logits[..., 1:])
    alone = F.binary_cross_entropy_with_logits(logits[:, 0, 0], labels)
    gradients = [torch.autograd.grad(each, logits)[0][..., 0] for each in (found, alone)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-9)


def test_logits_without_a_named_loss_are_refused() -> None:
    taught = Supervision.unweighted(draw_labels()[None])
    with refused(ConfigError, "model.kind", "gives 3 times as many logits...", cure="...branch_loss..."):
        ClickLoss()(draw_logits(ROWS, 3).reshape(-1, 1), taught)


@pytest.mark.parametrize("kind", ["gdcn", "gdcn_parallel", "finalnet", "dcnv3", "qnn", "dcn_parallel"])
@pytest.mark.parametrize("num_dense", [0, NUM_DENSE])
def test_evaluation_gives_the_score_alone_with_or_without_dense_columns(kind: str, num_dense: int) -> None:
    model = build_model(ModelSpec(compose_train(*MODELS[kind]).model, TABLES, num_dense), CPU)
    num_features = sum(len(table.features) for table in TABLES)
    model.sparse_arch = nn.Identity()
    inputs = torch.randn(6, num_dense), torch.randn(6, num_features, TABLES[0].dim)
    assert model.eval()(*inputs).shape == (6, 1)
    branches = 2 if ARCHITECTURES[kind].branch_loss else 0
    assert model.train()(*inputs).shape == (6, 1 + branches)
    assert all(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("kind", "overrides", "words"),
    [
        (
            "dcnv3",
            ["model.num_heads=3"],
            ("model.num_heads=3", "needs tables whose width is a multiple of 6..."),
        ),
        (
            "qnn",
            ["model.num_heads=8", "model.ensemble_size=2"],
            ("model.num_heads=8", "...multiple of 16..."),
        ),
        ("finalnet", ["model.finalnet_mlp2=[7]"], ("model.finalnet_mlp2", "needs even widths...")),
        ("gdcn", ["model.num_heads=2"], ("model.num_heads=2", "is not a setting of model.kind=gdcn")),
        ("qnn", ["model.top_mlp=[8]"], ("model.top_mlp=[8]", "is not a setting of model.kind=qnn")),
        (
            "dcnv3",
            ["model.dcnv3_num_linear_layers=null"],
            ("model.dcnv3_num_linear_layers", "is needed by..."),
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(kind: str, overrides: list[str], words: tuple[str, str]) -> None:
    config = compose_train(*MODELS[kind], *overrides).model
    with refused(ConfigError, *words):
        build_model(ModelSpec(config, TABLES, NUM_DENSE), CPU)


def test_an_architecture_of_a_user_may_have_branches() -> None:
    """Its file names the loss, one of the package's or its own."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse_arch = nn.Identity()
            self.over_arch = BranchHeads([8, 8])

        def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.over_arch([sparse[:, 0], sparse[:, 1]])
            return logits

    try:

        @architecture("twice", needs_dense=False, branch_loss="tri_bce")
        def build(config: ModelConfig, *_: object) -> nn.Module:
            return Twice()

        spec = ModelSpec(compose_train("model.kind=twice").model, [Table("t", 9, 8, ("a", "b"))], 0)
        assert spec.branch_loss == "tri_bce"
        logits = build_model(spec, CPU)(torch.empty(5, 0), torch.randn(5, 2, 8))
        assert logits.shape == (5, 3)
        torch.testing.assert_close(logits[:, 0], logits[:, 1:].mean(1))
    finally:
        ARCHITECTURES.pop("twice", None)
