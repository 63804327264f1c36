"""A row of which a model computes nan is named, and no nan is written, returned or answered."""

from pathlib import Path

import pytest
import torch

import dlrm_app as dlrm
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DataError, DlrmError
from dlrm_app.evaluation.label_rows import MAIN
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.inference.exported_model import ExportedModel
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.serve.request import RequestError
from dlrm_app.inference.serve.scoring import open_served
from dlrm_app.inference.verification import score_split
from dlrm_app.loader.batch import Batch, EvalBatches
from tests.inference.conftest import predicted
from tests.inference.serve.test_server import json_rows
from tests.inference.shop import HEADER, body_of
from tests.refusals import refused

RULE = "has no score: the model computes nan..."
BAD = 2


@pytest.fixture
def nan_for_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export computes nan for row BAD of each batch."""
    score = ExportedModel.score

    def score_badly(export: ExportedModel, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        scores = score(export, inputs)
        for each in scores:
            each[BAD:][:1] = float("nan")
        return scores

    monkeypatch.setattr(ExportedModel, "score", score_badly)


@pytest.mark.usefixtures("nan_for_one_row")
def test_the_row_is_named(shop: Path, tmp_path: Path) -> None:
    with refused(DataError, f"{shop}/test.csv:{BAD + 2}", RULE):  # the first line has the names
        predicted(tmp_path / "scores.parquet", f"model={shop}/export", f"input={shop}/test.csv")
    assert not (tmp_path / "scores.parquet").exists()
    model = dlrm.load(shop / "export")
    rows = [{name: row.get(name) for name in HEADER} for row in json_rows()]
    with refused(DataError, f"row {BAD}", RULE):
        model.predict(rows)
    assert len(model.predict(rows[:BAD])) == BAD


@pytest.mark.usefixtures("nan_for_one_row")
def test_its_request_alone_is_refused(shop: Path) -> None:
    served, rows = open_served(shop / "export"), json_rows()
    requests = [served.requests.read(body_of(part), 512) for part in (rows[:2], rows[2:4], rows[4:5])]
    first, second, third = served.score(requests)
    assert isinstance(first, dict)
    assert isinstance(third, dict)
    assert isinstance(second, RequestError)
    assert second.status == 422
    assert str(second).startswith("row 0: has no score: the model computes nan")


def test_a_verification_with_nan_fails(shop: Path) -> None:
    def score(batch: Batch) -> torch.Tensor:
        logits = torch.zeros(len(batch.dense_features), 1)
        logits[BAD] = float("nan")
        return logits

    features = dlrm.load(shop / "export").scorer.features
    batches = EvalBatches(read_manifest(shop / "dataset"), "test", features, batch_size=1 << 10)
    with refused(DlrmError, "verify it", "gives no number (nan) for 1 of the..."):
        score_split(score, batches, {MAIN: ClickMetrics("test")}, "verify it")
