"""dataset.html: whole, of itself, and no reason to fail."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dlrm_app.check.check_dataset import check_dataset
from dlrm_app.dataset.manifest import read_manifest, write_manifest
from dlrm_app.reports.dataset import write_page
from tests.loader.dataset_fixture import write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "dataset", 3000, one_hot=(50, 1000), multi_hot=(30,))
    return tmp_path / "dataset"


class Tags(HTMLParser):
    """Collects what a page refers to, and whether its elements are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "path", "rect", "circle", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect", "circle"):
            assert self.open.pop() == tag


def test_the_page_is_whole_needs_nothing_from_elsewhere_and_escapes_names(folder: Path) -> None:
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, dataset="<script>alert(1)</script>"))
    findings = check_dataset(folder)
    findings.problems.append("shard <3> is missing")
    write_page(findings)
    page = (folder / "dataset.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert (tags.references, tags.open) == ([], [])
    assert "<script>alert" not in page
    assert "http" not in page
    assert "shard &lt;3&gt; is missing" in page
    assert page.count("<svg") == 1  # click rate


def test_a_page_that_cannot_be_written_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "dataset.html").mkdir()
    write_page(check_dataset(folder))
    assert "dataset.html was not written" in caplog.text
