"""The serving tables against torch.nn.EmbeddingBag over rows that are quantized by the textbook's formula."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, strategies
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.inference.plain_tables import PlainTables
from dlrm_app.inference.sharded_tables import ShardedTables
from dlrm_app.inference.tables import QuantizedTables, table_types
from dlrm_app.tables.table import Table
from tests.refusals import refused

QUANTIZED = [
    Table("one", 40, 8, ("a",)),
    Table("shared", 30, 16, ("b", "c"), pooling="mean"),
    Table("last", 20, 8, ("d",)),
]
BITS = {"int8": 8, "int4": 4, "int2": 2}


def weights_of(table: Table) -> torch.Tensor:
    generator = torch.Generator().manual_seed(table.rows)
    return torch.randn(table.rows, table.dim, generator=generator)


def rounded(rows: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows as ``kind`` can hold them, by how much at most another rounding may differ from this one)."""
    if kind not in BITS:
        return (rows.half().float() if kind == "fp16" else rows), torch.zeros(len(rows), 1)
    low, high = rows.min(1, keepdim=True).values, rows.max(1, keepdim=True).values
    low = low.half().float() if kind != "int8" else low
    step = (high - low) / (2 ** BITS[kind] - 1)
    levels = ((rows - low) / step).round()
    # scale and offset are kept in fp16: 11 bits of each
    slack = (levels.amax() * step + low.abs()) * 2.0**-10 + 0.02 * step
    return levels * step + low, slack


def pooled(ids: dict[str, list[list[int]]], types: dict[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(what EmbeddingBag gives [B, W], by how much it may differ)."""
    vectors, slacks = [], []
    for table in QUANTIZED:
        rows, slack = rounded(weights_of(table), types[table.name])
        for feature in table.features:
            bags = ids[feature]
            flat = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
            offsets = torch.tensor([0, *[len(bag) for bag in bags][:-1]]).cumsum(0)
            bag = torch.nn.EmbeddingBag.from_pretrained(rows, mode=table.pooling)
            vectors.append(bag(flat, offsets))
            worst = max(len(bag) for bag in bags) if table.pooling == "sum" else 1
            slacks.append((slack.max() * worst + 1e-6).expand(table.dim))
    return torch.cat(vectors, dim=1), torch.cat(slacks)


def as_inputs(ids: dict[str, list[list[int]]], features: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    values = [i for name in features for bag in ids[name] for i in bag]
    lengths = [[len(bag) for bag in ids[name]] for name in features]
    return torch.tensor(values, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)


IDS = {
    "a": [[3], [39], [0]],
    "b": [[1, 2, 29], [], [7]],
    "c": [[], [5, 5], [0]],
    "d": [[19], [], [2, 4, 6, 8]],
}


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "int4", "int2", "several"])
def test_pooled_vectors_match_an_embedding_bag(kind: str) -> None:
    by_pattern = {"*": "int8", "shared": "fp32"} if kind == "several" else {}
    types = table_types(QUANTIZED, "int4" if kind == "several" else kind, by_pattern)
    actual = QuantizedTables(QUANTIZED, types, lambda table: [weights_of(table)], stacked=False)(
        as_inputs(IDS, ["a", "b", "c", "d"])
    )
    expected, slack = pooled(IDS, types)
    assert actual.shape == (3, 8 + 16 + 16 + 8)
    assert bool(((actual - expected).abs() <= slack).all())


def test_tables_of_one_width_are_stacked() -> None:
    same = [Table("one", 40, 8, ("a",)), Table("two", 20, 8, ("b", "c"))]
    tables = QuantizedTables(
        same, {"one": "fp32", "two": "fp32"}, lambda table: [weights_of(table)], stacked=True
    )
    vectors = tables(as_inputs({"a": [[3], [4]], "b": [[1], []], "c": [[2, 3], [5]]}, ["a", "b", "c"]))
    assert vectors.shape == (2, 3, 8)
    assert torch.equal(vectors[0, 2], weights_of(same[1])[2] + weights_of(same[1])[3])


PLAIN = {
    "one width": [Table("one", 40, 8, ("a", "b")), Table("two", 20, 8, ("c",), pooling="mean")],
    "several": [Table("x", 9, 8, ("a",)), Table("y", 9, 4, ("b",)), Table("z", 9, 8, ("c",), pooling="mean")],
}


@pytest.mark.parametrize("tables", PLAIN)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_tables_in_plain_torch_pool_as_fbgemm(tables: str, is_weighted: bool) -> None:
    """Also empty lists, weights of elements, and rows that were fp16; single rows too."""
    chosen = PLAIN[tables]
    types = {table.name: "fp16" if number else "fp32" for number, table in enumerate(chosen)}
    quantized = QuantizedTables(
        chosen, types, lambda table: [weights_of(table)], stacked=tables == "one width"
    )
    plain = PlainTables(quantized)
    ids = as_inputs({"a": [[3, 8], [], [1]], "b": [[], [5, 5], [0]], "c": [[1], [2, 3], []]}, ["a", "b", "c"])
    weights = [torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0, 0.25, 1.0, 1.5, 0.1])] if is_weighted else []
    torch.testing.assert_close(plain((*ids, *weights)), quantized((*ids, *weights)), rtol=0, atol=1e-6)
    some = torch.tensor([4, 0, 4], dtype=torch.int32)
    for feature in range(3):
        assert torch.equal(plain.rows(feature, some), quantized.rows(feature, some))


def test_rows_of_two_bits_must_be_whole_pairs_of_bytes() -> None:
    tables = [Table(name, 5, 12, (name,)) for name in "abcde"]
    with refused(
        ConfigError, "quantize=int2", "needs tables whose dim is a multiple of 8, but that of a, b is not"
    ):
        table_types(tables, "fp16", {"[ab]": "int2"})


TABLES = [
    Table("first", 40, 8, ("a",)),
    Table("second", 70, 8, ("b", "c"), pooling="mean"),
    Table("third", 30, 8, ("d",)),
]


@pytest.mark.parametrize("kind", ["int8", "int4", "int2"])
@pytest.mark.parametrize("stacked", [True, False])
def test_shards_give_what_whole_tables_give(kind: str, stacked: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    types = {t.name: kind for t in TABLES}
    whole = QuantizedTables(TABLES, types, lambda table: weights[table.name].split(3), stacked=stacked)
    sharded = ShardedTables(TABLES, types, lambda table: weights[table.name].split(3), 2, stacked=stacked)
    assert set(sharded.shard_of.values()) == {0, 1}
    chance = np.random.default_rng(0)
    lengths = chance.integers(0, 4, (4, 9))
    rows = [40, 70, 70, 30]
    values = np.concatenate([chance.integers(0, rows[f], lengths[f].sum()) for f in range(4)])
    ids = torch.from_numpy(values.astype(np.int32)), torch.from_numpy(lengths.astype(np.int32))
    torch.testing.assert_close(sharded(ids), whole(ids), rtol=0, atol=1e-6)


def edges(kind: str) -> tuple[list[float], list[float]]:
    """(a row with the largest numbers that ``kind`` holds, one with numbers that are larger)."""
    if kind == "fp16":
        return [65504.0] * 8, [1.0] * 7 + [1e5]
    steps = 2 ** BITS[kind] - 1
    return [-65504.0] * 4 + [65504.0 * (steps - 1)] * 4, [0.0] * 7 + [66000.0 * steps]


@pytest.mark.parametrize(
    ("kind", "is_sharded"), [("fp16", False), *((kind, each) for kind in BITS for each in (False, True))]
)
def test_rows_that_a_type_cannot_hold_are_refused(kind: str, is_sharded: bool) -> None:
    fitting, too_large = edges(kind)

    def make(last_row: list[float]) -> QuantizedTables | ShardedTables:
        rows = weights_of(TABLES[0])
        rows[-1] = torch.tensor(last_row)
        given = TABLES[:1], {"first": kind}, lambda table: rows.split(7)
        return (
            ShardedTables(*given, 1, stacked=False) if is_sharded else QuantizedTables(*given, stacked=False)
        )

    ids = torch.tensor([39], dtype=torch.int32), torch.tensor([[1]], dtype=torch.int32)
    assert bool(make(fitting)(ids).isfinite().all())
    with refused(DataError, "table first", f"has rows that {kind} cannot hold: row 39 goes from 0..."):
        make([0.0, *too_large[1:]])
    for lost in (float("nan"), float("inf"), -float("inf")):
        with refused(DataError, "table first", "has nan or inf in row 39"):
            make([lost] + [0.0] * 7)


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "int4", "int2"])
@given(rows=arrays(np.float32, (5, 8), elements=strategies.floats(width=32)))
def test_vectors_of_accepted_rows_are_numbers(kind: str, rows: NDArray[np.float32]) -> None:
    table = Table("one", 5, 8, ("a",))
    try:
        tables = QuantizedTables([table], {"one": kind}, lambda _: [torch.from_numpy(rows)], stacked=False)
    except DataError:
        return
    ids = torch.arange(5, dtype=torch.int32), torch.ones(1, 5, dtype=torch.int32)
    assert bool(tables(ids).isfinite().all())
