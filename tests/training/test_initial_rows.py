"""Tables with initial vectors have them at their values' ids, under any plan; the rest is as drawn."""

import logging
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.encoding.sparse import hash_ids
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.model.initial_weights import draw_block, init_tables
from dlrm_app.tables.table import Table
from dlrm_app.training.initial_rows import init_vectors, vector_problems
from tests.make_log import make_log
from tests.preprocessing.running import run
from tests.refusals import is_like, refused
from tests.small_run import losses, train_here

COLUMNS = [
    "{name: bought, role: label}",
    "{name: age, role: dense, kind: float}",
    "{name: city, role: sparse, kind: string}",
    "{name: item, role: sparse, kind: integer}",
    "{name: device, role: sparse, kind: hex}",
]
ROWS = 600
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "city": (pa.string(), ["Kyōto", "Oslo", "nowhere"]),
    "item": (pa.int64(), [-3, 5, 6, 999_999]),
    "device": (pa.string(), ["0a", "1F", "2", "ffff"]),
}
"""Of each column: values with vectors, the last of which occurs in no row."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    numbers = np.arange(ROWS)
    rows = {
        "bought": numbers % 3 == 0,
        "age": numbers % 7,
        "city": np.array(["Kyōto", "Oslo", "Lima"])[numbers % 3],
        "item": numbers % 11 - 3,
        "device": [f"{number % 50:x}" for number in numbers],
    }
    keys = make_log(folder, COLUMNS, rows)
    run(folder / "vocab", *keys, "encoding=vocab", "encoding.min_count=1")
    run(folder / "hash", *keys, "encoding=hash", "encoding.num_embeddings=20")
    return folder


def vectors_of(values: list[Any], dim: int) -> np.ndarray:
    return np.random.default_rng(len(values)).normal(size=(len(values), dim)).astype(np.float32)


def write_vectors(path: Path, kind: pa.DataType, values: list[Any], vectors: np.ndarray) -> Path:
    columns = {"value": pa.array(values, kind), "vector": pa.array(list(vectors), pa.list_(pa.float32()))}
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def make(folder: Path, manifest: Manifest, name: str, dim: int = 8, **options: Any) -> Table:
    kind, values = VALUES[name]
    path = write_vectors(
        folder / f"{name}.parquet", kind, values, vectors_of(values, options.pop("width", dim))
    )
    rows = next(column.num_embeddings for column in manifest.sparse if column.name == name)
    return Table(f"t_{name}", rows, dim, (name,), init_from=str(path), **options)


def begun(tables: list[Table], manifest: Manifest, num_models: int = 1) -> list[torch.Tensor]:
    bags = {table.name: torch.nn.EmbeddingBag(table.rows, table.dim) for table in tables}
    for table in tables:
        bags[table.name].weight.data.copy_(draw_block(table, 1, 0))
        bags[table.name].to(torch.float16 if table.data_type == "fp16" else torch.float32)
    init_vectors(
        torch.nn.ModuleDict({"embedding_bags": torch.nn.ModuleDict(bags)}), tables, manifest, num_models
    )
    return [bag.weight.detach() for bag in bags.values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("data_type", ["fp32", "fp16"])
def test_a_vocabularys_values_have_their_vectors(
    name: str, data_type: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = read_manifest(folder / "vocab")
    table = make(tmp_path, manifest, name, data_type=data_type)
    with caplog.at_level(logging.INFO):
        (weights,) = begun([table], manifest)
    _, values = VALUES[name]
    expected = draw_block(table, 1, 0).to(weights.dtype)
    known = pq.read_table(folder / f"vocab/vocab/{name}.parquet").to_pydict()
    ids = dict(zip(map(str, known["value"]), known["id"], strict=True))
    number = {"device": lambda value: str(int(value, 16))}.get(name, str)
    for value, vector in zip(values[:-1], vectors_of(values, 8)[:-1], strict=True):
        expected[ids[number(value)]] = torch.from_numpy(vector).to(weights.dtype)
    assert torch.equal(weights, expected)
    assert f"t_{name} begins with vectors of {tmp_path}/{name}.parquet, 1 value unknown" in caplog.text


def test_hashed_values_that_share_an_id_begin_with_their_mean(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder / "hash")
    values = [*range(60)]
    vectors = vectors_of(values, 8)
    path = write_vectors(tmp_path / "many.parquet", pa.int64(), values, vectors)
    table = Table("t_item", 20, 8, ("item",), init_from=str(path))
    (weights,) = begun([table], manifest)
    by_id = defaultdict(list)
    for value, vector in zip(values, vectors, strict=True):
        by_id[int(hash_ids(np.array([value], np.uint64), 20)[0])].append(vector)
    expected = draw_block(table, 1, 0)
    for number, shared in by_id.items():
        expected[number] = torch.from_numpy(np.mean(shared, axis=0))
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_each_model_of_an_ensemble_begins_with_its_own_vectors(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder / "vocab")
    table = make(tmp_path, manifest, "city", width=4)
    (weights,) = begun([table], manifest, num_models=2)
    changed = (weights != draw_block(table, 1, 0)).all(dim=1)
    assert changed.sum() == 2
    assert torch.equal(weights[changed][:, :4], weights[changed][:, 4:])


WRONG = {
    "other width": (
        {"vector": pa.array([[1.0] * 5, [2.0] * 5])},
        "must have 8 numbers in each vector...",
    ),
    "ragged": ({"vector": pa.array([[1.0] * 8, [2.0] * 7])}, "has vectors of 7 and 8 numbers"),
    "nan": ({"vector": pa.array([[1.0] * 8, [float("nan")] * 8])}, "holds NaN or inf"),
    "null": ({"value": pa.array([None, 5], pa.int64())}, "has vectors without a value"),
    "no number": ({"value": pa.array(["5", "five"])}, "...'five'..."),
}


@pytest.mark.parametrize("case", WRONG)
def test_values_that_are_not_vectors_are_refused(case: str, folder: Path, tmp_path: Path) -> None:
    columns, rule = WRONG[case]
    right = {"value": pa.array([5, 6]), "vector": pa.array([[1.0] * 8] * 2)}
    pq.write_table(pa.table({**right, **columns}), tmp_path / "wrong.parquet")
    table = Table("t_item", 13, 8, ("item",), init_from=str(tmp_path / "wrong.parquet"))
    with refused(DataError, f"init_from={table.init_from} of table t_item", rule):
        begun([table], read_manifest(folder / "vocab"))


def test_an_unusable_file_of_vectors_is_refused_before_any_work(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifest(folder / "vocab")
    pq.write_table(pa.table({"value": [1], "vector": [2.0]}), tmp_path / "flat.parquet")
    shutil.copy(folder / "log.csv", tmp_path / "text.parquet")
    files = {
        "flat": "must have the columns value and vector, a list of floats, it has value: int64...",
        "text": "cannot be read (...",
        "none": "cannot be read (...",
    }
    for name, rule in files.items():
        table = Table("t_item", 13, 8, ("item",), init_from=f"{tmp_path}/{name}.parquet")
        (found,) = vector_problems([table], manifest)
        assert is_like(found, f"init_from={tmp_path}/{name}.parquet of table t_item", rule)
    specs = f"[{{name:t,rows:20,dim:8,features:[item],init_from:{tmp_path}/none.parquet}}]"
    keys = [f"data.path={folder}/vocab", "tables.from_dataset=false", f"tables.specs={specs}"]
    with refused(ConfigError, "init_from=...none.parquet of table t", "cannot be read (...No such file..."):
        train_here(tmp_path / "run", *keys)


def test_a_run_begins_with_them(folder: Path, tmp_path: Path) -> None:
    path = write_vectors(tmp_path / "items.parquet", pa.int64(), [5, 6], vectors_of([5, 6], 8))
    keys = [f"data.path={folder}/vocab", "tables.from_dataset=false", "trainer.max_steps=1"]
    spec = "name:t,rows:20,dim:8,features:[item]"
    for name, given in {"with": f",init_from:{path}", "without": ""}.items():
        train_here(tmp_path / name, *keys, f"tables.specs=[{{{spec}{given}}}]")
    assert losses(tmp_path / "with") != losses(tmp_path / "without")


@pytest.mark.parametrize("init", ["uniform", "normal"])
def test_a_row_is_drawn_by_its_generation_and_by_no_others(init: str) -> None:
    table = Table("t", 20_000, 8, ("item",), init=init)
    generations = torch.zeros(20_000, dtype=torch.int32)
    drawn = [draw_block(table, 3, block) for block in range(3)]
    assert all(torch.equal(draw_block(table, 3, block, generations), drawn[block]) for block in range(3))
    generations[[5, 8_191, 8_192, 19_999]] = torch.tensor([1, 1, 2, 300], dtype=torch.int32)
    bag = torch.nn.EmbeddingBag(20_000, 8)
    init_tables(
        torch.nn.ModuleDict({"embedding_bags": torch.nn.ModuleDict({"t": bag})}),
        [table],
        3,
        {"t": generations},
    )
    is_other = (bag.weight.detach() != torch.cat(drawn)).any(dim=1)
    assert is_other.nonzero().squeeze(1).tolist() == [5, 8_191, 8_192, 19_999]
    alone = torch.zeros(20_000, dtype=torch.int32)
    alone[8_192] = 2
    assert torch.equal(draw_block(table, 3, 1, alone)[0], bag.weight[8_192])
    alone[8_192] = 1
    assert not torch.equal(draw_block(table, 3, 1, alone)[0], bag.weight[8_192])
