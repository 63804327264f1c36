"""docs/extending.md: what it says is enough for a new architecture, optimizer or format is enough."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.loader.dataset_fixture import write_dataset
from tests.pages import ROOT, blocks_of
from tests.small_run import losses


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the package and its configuration, with a small dataset where `make demo` leaves one."""
    for name in ("dlrm_app", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_dataset(tmp_path / "demo" / "dataset", rows=50_000, rows_per_group=4096, rows_per_shard=65_536)
    return tmp_path


def follow(heading: str, folder: Path) -> None:
    for block in blocks_of("extending.md", heading):
        block.do(folder)


def printed_by(code: str, folder: Path) -> object:
    """What Python ``code`` that runs in ``folder`` prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of a user's own, with a small dataset where `make demo` leaves one."""
    write_dataset(tmp_path / "demo" / "dataset", rows=50_000, rows_per_group=4096, rows_per_shard=65_536)
    return tmp_path


@pytest.mark.long
def test_a_new_architecture_trains_and_sums_all_pair_products(elsewhere: Path) -> None:
    follow("A new architecture", elsewhere)
    assert losses(elsewhere / "out/nfm")
    assert pq.read_metadata(elsewhere / "out/nfm_scores.parquet").num_rows > 0
    code = """
import json, torch
from itertools import combinations
from nfm import BiInteraction
x = torch.randn(5, 7, 3, dtype=torch.float64)
pairs = sum(x[:, i] * x[:, j] for i, j in combinations(range(7), 2))
print(json.dumps((BiInteraction()(x) - pairs).abs().max().item()))
"""
    assert printed_by(code, elsewhere) < 1e-12


def test_the_architecture_with_branches_is_the_packages_own() -> None:
    blocks = [block.text for block in blocks_of("extending.md", "An architecture with branches")]
    files = [ROOT / "dlrm_app/model" / name for name in ("dcnv3.py", "architectures.py")]
    assert all(text in path.read_text() for text, path in zip(blocks, files, strict=True))


@pytest.mark.long
def test_a_new_optimizer_trains_and_its_first_step_is_right(clone: Path) -> None:
    follow("A new sparse optimizer", clone)
    assert losses(clone / "out/lars")
    code = """
import json, torch
from dlrm_app.config.optimizer import SparseSettings
from dlrm_app.tables.lars import TRUST, lars
weights, gradient = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
step = lars(weights, gradient, {"momentum": torch.zeros_like(weights)}, 1, SparseSettings("lars", 1.0))
print(json.dumps((step.norm(dim=1) - TRUST * weights.norm(dim=1)).abs().max().item()))
"""
    assert printed_by(code, clone) < 1e-12


@pytest.mark.long
def test_new_formats_are_read(tmp_path: Path) -> None:
    (tmp_path / "dlrm_app").symlink_to(ROOT / "dlrm_app")  # with the machine code that it has already
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    follow("A new dataset format", tmp_path)
    assert losses(tmp_path / "out/news_run")
    assert losses(tmp_path / "out/ratings_run")
    manifest = json.loads((tmp_path / "out/news/manifest.json").read_text())
    assert sum(split["rows"] for split in manifest["splits"].values()) == 1000
