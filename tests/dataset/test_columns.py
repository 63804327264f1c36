"""What is said of a dataset that is encoded in another way than a model's own."""

import logging
from dataclasses import replace

import pytest

from dlrm_app.dataset.columns import column_problems, describe_columns
from dlrm_app.dataset.manifest import Manifest
from tests.loader.dataset_fixture import write_dataset


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("x") / "x", {"train": 256}, num_dense=6)


def problems_with(manifest: Manifest, names: list[str]) -> list[str]:
    """Of the same dataset with the dense columns ``names``."""
    known = {column.name: column for column in manifest.dense}
    dense = [known.get(name, replace(manifest.dense[0], name=name)) for name in names]
    return column_problems(describe_columns(manifest), replace(manifest, dense=dense), ["c0"])


def test_other_dense_columns_or_another_order_of_them_are_named(manifest: Manifest) -> None:
    names = [column.name for column in manifest.dense]
    assert problems_with(manifest, names) == []
    for given in (names[:1], ["a", *names[1:], "b"], names[::-1]):
        assert problems_with(manifest, given) == [
            f"its dense columns are {', '.join(given)}, the model's i0, i1, i2, i3, i4, i5"
        ]


def test_what_would_give_values_another_meaning_is_named(manifest: Manifest) -> None:
    c0, *others = manifest.sparse
    dense = [replace(manifest.dense[0], transform={"kind": "log"}), *manifest.dense[1:]]
    hashed = replace(manifest, dense=dense, sparse=[replace(c0, encoding={"kind": "hash"}), *others])
    problems = column_problems(describe_columns(manifest), hashed, ["c0", "c1"])
    assert [problem.partition(" is")[0] for problem in problems] == ["i0: transform", "c0: encoding"]


def test_vocabularies_that_cannot_be_compared_are_told_where_both_have_one(
    manifest: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    known = describe_columns(manifest)
    vocab = {"kind": "vocab", "file": "vocab/c0.parquet"}
    known["sparse"][0]["encoding"] = vocab
    with caplog.at_level(logging.WARNING):
        assert any("encoding is" in problem for problem in column_problems(known, manifest, ["c0"]))
        assert caplog.messages == []  # it is another encoding, which is said
        sparse = [replace(manifest.sparse[0], encoding=vocab), *manifest.sparse[1:]]
        assert column_problems(known, replace(manifest, sparse=sparse, path=None), ["c0"]) == []
    assert caplog.messages == [
        "the vocabularies of c0 are missing: whether their ids are the model's is not checked"
    ]
