"""A manifest that was damaged, or made to do harm, is refused with what is wrong in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DataError
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "x"
    write_dataset(folder, 200, rows_per_group=100, rows_per_shard=100)
    return folder


def changed(dataset: Path, folder: Path, change: Change) -> Path:
    value = json.loads((dataset / "manifest.json").read_text())
    change(value)
    (folder / "manifest.json").write_text(json.dumps(value))
    return folder


WITHOUT_CHECKSUM = {"kind": "vocab", "file": "vocab/c0"}


def first_shard(value: dict[str, Any]) -> dict[str, Any]:
    shard: dict[str, Any] = value["splits"]["train"]["shards"][0]
    return shard


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda value: value.update(dense=None), "Expected `array`, got `null` - at `$.dense`"),
        (lambda value: value["sparse"].append("c9"), "Expected `object`, got `str` - at `$.sparse[...]`"),
        (
            lambda value: value["sparse"][0].update(num_embeddings=True),
            "Expected `int`, got `bool` - at `$.sparse[0].num_embeddings`",
        ),
        (lambda value: value["sparse"][0].update(encoding={}), "c0 has no kind"),
        (lambda value: value["dense"][0].update(transform={"kind": 1}), "i0 has no kind"),
        (lambda value: value["splits"]["train"].update(rows=201), "train has 201 rows, its shards 200"),
        (lambda value: value["splits"]["train"].update(positives=-1), "train has -1 positives in 200 rows"),
        (lambda value: first_shard(value).update(row_groups=[99]), "has 100 rows, its row groups"),
        (lambda value: value["sparse"][0].update(num_embeddings=0), "c0 has 0 ids"),
        (lambda value: value["dense"].append(value["dense"][0]), "i0 occurs 2 times"),
        (lambda value: value["splits"].update(val=value["splits"]["train"]), "train/... occurs 2 times"),
        (
            lambda value: first_shard(value).update(row_groups=[100, None]),
            "Expected `int`, got `null` - at `$.splits[...].shards[0].row_groups[1]`",
        ),
        (lambda value: value.pop("splits"), "Object missing required field `splits`"),
        (
            lambda value: first_shard(value).update(path="../y.parquet"),
            "'../y.parquet' is outside the folder",
        ),
        (lambda value: first_shard(value).update(path="train/../../y"), "is outside the folder"),
        (lambda value: first_shard(value).update(path="/etc/passwd"), "'/etc/passwd' is outside the folder"),
        (
            lambda value: value["sparse"][0].update(encoding={"kind": "vocab", "file": "../x.parquet"}),
            "'../x.parquet' is outside the folder",
        ),
        (lambda value: value["sparse"][0].update(encoding={"kind": "vocab"}), "None is not a file"),
        (lambda value: value["sparse"][0].update(encoding=WITHOUT_CHECKSUM), "'vocab/c0' has no checksum"),
    ],
)
def test_faults_of_a_manifest_are_named(dataset: Path, tmp_path: Path, change: Change, part: str) -> None:
    with refused(DataError, str(tmp_path / "manifest.json"), f"...{part}...") as caught:
        read_manifest(changed(dataset, tmp_path, change))
    assert "delete the folder and preprocess again" in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', '{"format": []}', "{"])
def test_json_that_is_not_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with refused(DataError, str(tmp_path / "manifest.json"), "is ..."):
        read_manifest(tmp_path)


def test_keys_that_later_versions_may_add_are_passed_over(dataset: Path, tmp_path: Path) -> None:
    folder = changed(dataset, tmp_path, lambda value: value.update(colour="red", path="/etc"))
    assert read_manifest(folder) == read_manifest(dataset)
    assert read_manifest(folder).folder == tmp_path
