"""dataset.html: whole, of itself, and no reason to fail."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.check.check_dataset import check_dataset
from dlrm_app.dataset.manifest import read_manifest, write_manifest
from dlrm_app.reports.dataset import write_page
from tests.loader.dataset_fixture import write_dataset
from tests.training.run_fixture import read_report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "dataset", 3000, one_hot=(50, 1000), multi_hot=(30,))
    return tmp_path / "dataset"


def test_the_page_is_whole_needs_nothing_from_elsewhere_and_escapes_names(folder: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, dataset="<script>alert(1)</script>"))
    findings = check_dataset(folder)
    findings.problems.append("shard <3> is missing")
    write_page(findings)
    page = (folder / "dataset.html").read_text()
    assert read_report(folder / "dataset.html").addresses == []
    assert "<script>alert" not in page
    assert "http" not in page
    assert "shard &lt;3&gt; is missing" in page
    assert page.count("<svg") == 1  # click rate


def test_a_page_that_cannot_be_written_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "dataset.html").mkdir()
    write_page(check_dataset(folder))
    assert "dataset.html was not written" in caplog.text
