"""Every architecture with branches or gates, with attention and weights of elements, in the C++ program."""

from pathlib import Path

import numpy as np
import pytest

from dlrm_app import load
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.exported_model import open_export, to_lines
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.loader.batch import EvalBatches
from tests.inference.conftest import export_here
from tests.inference.mixed import TEST, rows_with_carts
from tests.inference.test_cpp import run
from tests.inference.test_export import WITHOUT_MLP
from tests.small_run import train_here

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=gdcn", "model.bottom_mlp=[]", "model.dense_knots=4"],
        ["model=finalnet", "model.bottom_mlp=[]", "model.batch_norm=true"],
        [*WITHOUT_MLP, "model=dcnv3", "model.num_heads=2"],
        [*WITHOUT_MLP, "model=qnn", "model.num_heads=2", "model.ensemble_size=2"],
    ],
    ids=["gdcn", "finalnet", "dcnv3", "qnn"],
)
def test_an_architecture_scores_as_in_python(
    built: Path, mixed: Path, tmp_path: Path, overrides: list[str]
) -> None:
    """The reference rows, and the rows of test as the trained model scores them from raw values."""
    data = [f"data.path={mixed}/data", f"tables={mixed}/tables.yaml", "trainer.global_batch_size=64"]
    train_here(tmp_path / "run", *data, "trainer.max_steps=30", *overrides)
    export_here(f"checkpoint={tmp_path}/run", "format=aoti", f"output={tmp_path}/export")
    done = run(built / "dlrm_score", f"{tmp_path}/export", "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("64 reference rows, largest difference ")
    features = open_export(tmp_path / "export").features
    with EvalBatches(read_manifest(mixed / "data"), "test", features, batch_size=TEST) as batches:
        lines = to_lines(to_inputs(next(iter(batches))))
    done = run(built / "dlrm_score", f"{tmp_path}/export", rows="\n".join(lines))
    expected = load(tmp_path / "run").predict(rows_with_carts()[-TEST:].drop_columns(["clicked"]))
    np.testing.assert_allclose(np.array(done.stdout.split(), np.float32), expected, rtol=0, atol=1e-5)
    assert len(np.unique(expected)) > TEST / 2
