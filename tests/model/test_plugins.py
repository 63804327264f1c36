"""Architectures of a user's own: registered, recorded with their file's checksum, and never executed unasked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dlrm_app as dlrm
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ARCHITECTURES
from dlrm_app.model.plugins import load_plugins
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused

MINE = """
import dlrm_app as dlrm
from dlrm_app.model.dlrm import build_dlrm

@dlrm.architecture("{name}")
def build(config, bags, num_dense, bottom, top):
    return build_dlrm(config, bags, num_dense, bottom, top)
"""


@pytest.fixture(autouse=True)
def _registered_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(ARCHITECTURES)
    monkeypatch.setattr("dlrm_app.model.architectures.ARCHITECTURES", ARCHITECTURES)
    yield  # type: ignore[misc]
    ARCHITECTURES.clear()
    ARCHITECTURES.update(before)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    write_dataset(folder, rows={"train": 600, "val": 200})
    return folder


def train(dataset: Path, output: Path, kind: str, *words: str, **more: Any) -> Any:
    small = {"model.bottom_mlp": [8], "model.top_mlp": [8], "tables.embedding_dim": 4, "trainer.threads": 1}
    sizes = {"trainer.global_batch_size": 64, "data.lanes": 8, "experiment": None, "report.enabled": False}
    return dlrm.train(
        {**small, **sizes, "data.path": dataset, "model.kind": kind}, *words, output=output, **more
    )


def test_a_run_wants_the_file_that_it_was_made_with(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE.format(name="wanted"))
    with refused(ConfigError, "model.kind", "must be one of dlrm, dcn, ...", cure="...plugins=[FILE.py]"):
        train(dataset, tmp_path / "run", "wanted")
    run = train(dataset, tmp_path / "run", "wanted", plugins=[file])
    (recorded,) = yaml.safe_load((run.path / "config.yaml").read_text())["plugins"]
    assert recorded.startswith(f"{file}@sha256:")
    again = train(dataset, tmp_path / "run", "wanted", "trainer.epochs=2", plugins=[file], resume="auto")
    assert again.result.steps == 2 * run.result.steps
    other = tmp_path / "moved.py"
    other.write_bytes(file.read_bytes())
    assert (
        dlrm.evaluate(checkpoint=run.path, split="val", plugins=[other], threads=1).models[0].metrics["auc"]
        > 0
    )
    file.write_text(MINE.format(name="wanted") + "# changed\n")
    with refused(ConfigError, ".../run/checkpoints/step-000000018", "...another file registers it now..."):
        dlrm.evaluate(checkpoint=run.path, split="val", plugins=[file], threads=1)
    with refused(ConfigError, "plugins", "names a file that has changed: it is..."):
        dlrm.evaluate(checkpoint=run.path, split="val", plugins=[recorded], threads=1)


@pytest.mark.long
def test_the_files_that_a_run_names_are_not_executed_unasked(dataset: Path, tmp_path: Path) -> None:
    file, mark = tmp_path / "mine.py", tmp_path / "executed"
    file.write_text(MINE.format(name="handed"))
    run = train(dataset, tmp_path / "run", "handed", plugins=[file])
    file.write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n")
    code = f"import dlrm_app as dlrm; dlrm.evaluate(checkpoint={str(run.path)!r}, split='val')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert f"add plugins=[{file}]" in done.stderr
    assert not mark.exists()


def test_an_architecture_registered_in_python_needs_no_file(dataset: Path, tmp_path: Path) -> None:
    """It is the built-in one by another name: the same weights give the same evaluation."""

    @dlrm.architecture("imported")
    def build(config: Any, bags: Any, num_dense: int, bottom: list[int], top: list[int]) -> Any:
        from dlrm_app.model.dlrm import build_dlrm

        return build_dlrm(config, bags, num_dense, bottom, top)

    own, built_in = (train(dataset, tmp_path / kind, kind) for kind in ("imported", "dlrm"))
    assert own.auc == built_in.auc
    assert dlrm.load(own.path).scorer.features
    with pytest.raises(ValueError, match="is built in"):
        dlrm.architecture("dlrm")(build)


def test_a_package_names_its_architectures(dataset: Path, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    (folder / "theirs-1.0.dist-info").mkdir(parents=True)
    (folder / "theirs-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n"
    )
    points = "[dlrm_app.architectures]\ntheirs = theirs_model:build\n"
    (folder / "theirs-1.0.dist-info/entry_points.txt").write_text(points)
    (folder / "theirs_model.py").write_text(MINE.format(name="theirs"))
    sys.path.insert(0, str(folder))
    try:
        assert train(dataset, tmp_path / "run", "theirs").result.steps > 0
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize(
    ("content", "name", "rule"),
    [
        (None, "nowhere.py", "must be local Python files"),
        ("x = 1", "mine.txt", "must be local Python files"),
        ("x = 1\ny = x / 0\n", "mine.py", "...mine.py:2: ZeroDivisionError..."),
        ("x = = 1", "mine.py", "...SyntaxError..."),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    content: str | None, name: str, rule: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with refused(ConfigError, "plugins", rule):
        load_plugins([str(tmp_path / name)])


def test_a_built_in_architecture_has_no_settings_of_ones_own(dataset: Path, tmp_path: Path) -> None:
    with refused(ConfigError, "model.settings={'scale': 2}", "is not a setting of model.kind=dlrm"):
        train(dataset, tmp_path / "run", "dlrm", **{"model.settings": {"scale": 2}})
