"""What is said of a dataset that is encoded in another way than a model's own."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.dataset.columns import (
    attention_problems,
    column_problems,
    describe_columns,
    read_as_known,
    repeated_columns,
    sharing_problems,
)
from dlrm_app.dataset.manifest import Manifest, SparseColumn
from dlrm_app.encoding.dense import is_target
from dlrm_app.errors import Problem
from dlrm_app.tables.table import Attention, Table
from tests.labelled_log import describe_labels, draw_labelled
from tests.loader.dataset_fixture import write_dataset
from tests.make_log import write_csv
from tests.preprocessing.running import run
from tests.refusals import is_like


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("x") / "x", {"train": 256}, num_dense=6)


def problems_with(manifest: Manifest, names: list[str]) -> list[Problem]:
    """Of the same dataset with the dense columns ``names``."""
    known = {column.name: column for column in manifest.dense}
    dense = [known.get(name, replace(manifest.dense[0], name=name)) for name in names]
    return column_problems(describe_columns(manifest), replace(manifest, dense=dense), ["c0"])


def test_other_dense_columns_or_another_order_of_them_are_named(manifest: Manifest) -> None:
    names = [column.name for column in manifest.dense]
    assert problems_with(manifest, names) == []
    for given in (names[:1], ["a", *names[1:], "b"], names[::-1]):
        assert problems_with(manifest, given) == [
            Problem("dense", f"columns are {', '.join(given)}, the model's i0, i1, i2, i3, i4, i5")
        ]


def test_changes_of_the_meaning_of_values_are_named(manifest: Manifest) -> None:
    c0, *others = manifest.sparse
    dense = [replace(manifest.dense[0], transform={"kind": "log"}), *manifest.dense[1:]]
    hashed = replace(manifest, dense=dense, sparse=[replace(c0, encoding={"kind": "hash"}), *others])
    problems = column_problems(describe_columns(manifest), hashed, ["c0", "c1"])
    found = [(problem.key, problem.rule.split()[1]) for problem in problems]
    assert found == [("i0", "transform"), ("c0", "encoding")]


def test_a_vocabulary_of_other_values_is_named(manifest: Manifest) -> None:
    vocab = {"kind": "vocab", "file": "vocab/c0.parquet", "checksum": "sha256:1"}
    mine, theirs = (
        replace(manifest, sparse=[replace(manifest.sparse[0], encoding={**vocab, "checksum": checksum})])
        for checksum in ("sha256:1", "sha256:2")
    )
    assert column_problems(describe_columns(mine), mine, ["c0"]) == []
    assert column_problems(describe_columns(mine), theirs, ["c0"]) == [
        Problem("c0", "has other values in its vocab/c0.parquet")
    ]
    others = replace(
        mine, sparse=[replace(mine.sparse[0], encoding={**vocab, "derived": {"of": ["user", "hour"]}})]
    )
    (problem,) = column_problems(describe_columns(mine), others, ["c0"])
    assert is_like(problem, "c0", "has encoding ...'of': ['user', 'hour']...")


def test_lists_of_one_vocabulary_with_a_column_are_found(manifest: Manifest) -> None:
    def column(name: str, by: str) -> SparseColumn:
        kind = {"kind": "hash"} if by == "hash" else {"kind": "vocab", "checksum": by}
        return SparseColumn(name, 9, kind, multi_hot=name.startswith("list"))

    rules = {
        "list_a": "x",
        "list_h": "hash",
        "item": "x",
        "home": "y",
        "away": "y",
        "list_b": "x",
        "shop": "hash",
    }
    sparse = [column(name, by) for name, by in rules.items()]
    assert repeated_columns(replace(manifest, sparse=sparse)) == [("item", "list_a", "list_b")]


def test_lists_cannot_be_attended_to(manifest: Manifest) -> None:
    sparse = [SparseColumn(name, 9, {"kind": "raw"}, multi_hot=name != "item") for name in ("item", "a", "b")]
    mine = replace(manifest, sparse=sparse)

    def problems(target: str, *others: str) -> list[Problem]:
        return attention_problems([Table("t", 9, 4, (target, *others), Attention(target))], mine)

    assert problems("item", "a", "b") == []
    (problem,) = problems("a", "item", "b")
    assert is_like(problem, "table t", "pools by attention to a, which is a list", "...one value a row: item")
    (problem,) = problems("a", "b")
    assert problem.cure == "use pooling: mean"


def test_features_with_other_ids_may_not_share_a_table(manifest: Manifest) -> None:
    def problems(*rules: tuple[str, int]) -> list[Problem]:
        """Of one table that is read by columns with these (checksum of a vocabulary or hash, number of ids)."""
        sparse = [
            SparseColumn(
                f"f{n}", size, {"kind": "hash"} if by == "hash" else {"kind": "vocab", "checksum": by}
            )
            for n, (by, size) in enumerate(rules)
        ]
        table = Table("t", 99, 4, tuple(column.name for column in sparse))
        return sharing_problems([table], replace(manifest, sparse=sparse))

    assert problems(("a", 9), ("a", 9)) == problems(("hash", 9), ("hash", 9)) == problems(("hash", 9)) == []
    for other in (("b", 9), ("hash", 9)):
        (problem,) = problems(("a", 9), ("a", 9), other)
        assert is_like(problem, "table t", "is read by f0 and f2...", "...encoding.shared=[[f0, f2]]")
    (problem,) = problems(("hash", 9), ("hash", 8))
    assert problem.cure.endswith("one encoding.num_embeddings for f0 and f1")


def test_labels_in_another_order_are_the_same_encoding(tmp_path: Path) -> None:
    """The files of target columns are named by the places of labels, their checksums say what they hold."""
    given = [f"dataset={describe_labels(tmp_path)}", f"input.train={tmp_path}/log.csv", "encoding=vocab"]
    write_csv(tmp_path / "log.csv", draw_labelled(3000)[0])
    orders = ["[clicked,{order:{given:clicked}},like]", "[clicked,like,{order:{given:clicked}}]"]
    first, second = (
        run(tmp_path / str(number), *given, "dense.target_columns=[shop]", f"dataset.labels={order}")
        for number, order in enumerate(orders)
    )
    files = [{c.name: c.transform["file"] for c in made.dense if is_target(c)} for made in (first, second)]
    assert files[0].keys() == files[1].keys()
    assert files[0] != files[1]
    rows = read_as_known(describe_columns(first), second, ["shop", "user"], first.path, "")
    assert [column.name for column in rows.dense] == [column.name for column in first.dense]
