"""Grown tables begin with the rows that they had, under any plan; new and reused rows begin as drawn."""

import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.distributed.runtime import Runtime, start_runtime
from dlrm_app.errors import DataError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.inputs import named_axes
from dlrm_app.runs.checkpoint.inherit import Described, Kept, inherit_tensors
from dlrm_app.runs.checkpoint.load import load_tensors
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.progress import LossSums, Progress
from dlrm_app.runs.checkpoint.save import save_checkpoint
from dlrm_app.runs.checkpoint.storage import TensorReader
from dlrm_app.runs.checkpoint.tensors import Tensors, collect_tensors, create_states, local_pieces, table_name
from dlrm_app.tables.sparse_optimizers import optimizer_kinds
from dlrm_app.tables.table import Table
from dlrm_app.training.setup import Trainable
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES, Ids, draw, to_batch
from tests.ranks import on_ranks
from tests.refusals import refused
from tests.trainable import trainable_of

THEN = [*TABLES, Table("gone", 30, 8, ("f5",))]
NOW = [*(replace(table, rows=table.rows + 37) for table in TABLES), Table("new", 40, 8, ("f6",))]
GIVEN_AGAIN = {"bags": torch.tensor([0, 3, 25, 26, 49]), "long": torch.tensor([2, 10_100, 19_999])}
"""Rows on both sides of where they may be cut."""
LABELS = [LearntLabel("click"), LearntLabel("order", given="click")]
"""Of models with experts."""
DENSE = [f"i{number}" for number in range(NUM_DENSE)]
CASES = {
    "rows": ["optimizer=rowwise_adagrad", "sharding.types=[row_wise]"],
    "columns": ["optimizer=rowwise_adagrad", "sharding.types=[column_wise]"],
    "fp16": ["optimizer=adagrad", "sharding.types=[row_wise]", "sharding.kernels=[fused]"],
    "adam": ["optimizer=adam", "sharding.types=[column_wise]"],
    "whole": ["optimizer=sgd", "sharding.types=[table_wise]"],
    "ensemble": ["optimizer=partial_rowwise_adam", "sharding.types=[row_wise]", "model.ensemble_size=2"],
}


Built = tuple[Trainable, TrainConfig]


def build(
    tables: list[Table], overrides: list[str], seed: int, runtime: Runtime, dense: list[str] = DENSE
) -> tuple[Built, Described]:
    config = compose_train(*overrides, f"trainer.seed={seed}")
    labels = LABELS if config.model.tasks != "shared" else []
    trainable = trainable_of(config, tables, len(dense), runtime, labels=labels)
    create_states(trainable.optimizer)
    return (trainable, config), Described(ModelSpec(config.model, tables, len(dense), labels=labels), dense)


def tensors_of(trainable: Trainable, config: TrainConfig) -> Tensors:
    kinds = optimizer_kinds(trainable.tables, config.optimizer.sparse)
    return collect_tensors(trainable.model, trainable.optimizer, kinds)


@torch.no_grad()
def save_any(folder: Path, tensors: Tensors, runtime: Runtime, scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Saves a checkpoint of other values; gives each tensor as it was saved."""
    for (name, begin), piece in local_pieces(tensors).items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}{begin}".encode()))
        piece.copy_(torch.rand(piece.shape, generator=generator) * scale)
    save(folder, tensors, runtime)
    reader = TensorReader(folder)
    whole = {name: torch.empty(saved.size, dtype=saved.dtype) for name, saved in reader.tensors.items()}
    for name, tensor in whole.items():
        load_tensors(reader, {name: tensor})  # alone: states are not fitted to weights that are not cut
    return whole


def save(folder: Path, tensors: Tensors, runtime: Runtime) -> None:
    marker = Marker(Progress(), LossSums([], 0, 0, 0, []), "", "", {}, {}, runtime.world_size, {}, 0, {}, "")
    save_checkpoint(folder, tensors, local_pieces(tensors), marker, runtime, None)


def by_hand(then: torch.Tensor, drawn: torch.Tensor, begin: tuple[int, ...], table: Table) -> torch.Tensor:
    """A piece of a table's tensor now: the rows of ``then`` copied into what was ``drawn``, but those given again."""
    rows_then = next(each.rows for each in THEN if each.name == table.name)
    expected, again = drawn.clone(), set(GIVEN_AGAIN.get(table.name, torch.tensor([])).tolist())
    for row in range(len(drawn)):
        part, number = divmod(begin[0] + row, table.rows) if drawn.dim() == 1 else (0, begin[0] + row)
        if number >= rows_then or number in again:
            continue
        columns = slice(begin[1], begin[1] + drawn.shape[1]) if drawn.dim() == 2 else None
        expected[row] = then[part * rows_then + number] if columns is None else then[number, columns]
    return expected


def inherit_all(folder: Path, runtime: Runtime) -> list[str]:
    """What is not as by hand; where one rank holds all pieces, two cases say it."""
    return [
        f"{case}: {difference}"
        for case, overrides in CASES.items()
        if runtime.world_size > 1 or case in ("columns", "ensemble")
        for difference in differences(folder / case, case, overrides, runtime)
    ]


def differences(folder: Path, case: str, overrides: list[str], runtime: Runtime) -> list[str]:
    kind = "fp16" if case == "fp16" else "fp32"
    tables_then, tables_now = (
        [replace(table, data_type=kind, sharding={"min_partition": 4}) for table in each]
        for each in (THEN, NOW)
    )
    built, then = build(tables_then, overrides, 1, runtime)
    tensors = tensors_of(*built)
    stored = save_any(folder / "step-000000001", tensors, runtime)
    built, now = build(tables_now, overrides, 2, runtime)
    tensors = tensors_of(*built)
    drawn = {place: piece.clone() for place, piece in local_pieces(tensors).items()}
    kept = inherit_tensors(folder / "step-000000001", tensors, then, now, GIVEN_AGAIN, may_differ=True).tables
    found = []
    for (name, begin), piece in local_pieces(tensors).items():
        table = now.tables.get(table_name(name) or "")
        if table is None:
            continue
        before = drawn[name, begin]
        expected = before if table.name == "new" else by_hand(stored[name], before, begin, table)
        found += [] if torch.equal(piece, expected) else [f"{name} at {begin}"]
    expected_kept = {
        "shared": Kept(100, 37),
        "bags": Kept(45, 37, 5),
        "long": Kept(19_997, 37, 3),
        "new": Kept(0, 40),
        "gone": Kept(dropped=30),
    }
    return found + ([] if kept == expected_kept else [f"{kept}"])


@pytest.mark.parametrize(
    "num_ranks", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.long)]
)
def test_rows_equal_those_copied_by_hand(num_ranks: int, tmp_path: Path) -> None:
    """Weights and optimizer states, to the bit, of tables split by rows and by columns; one rank holds all pieces."""
    assert on_ranks(partial(inherit_all, tmp_path), num_ranks) == [[]] * num_ranks


WITHOUT_MLP = ("model.bottom_mlp=[]", "model.top_mlp=[]")
ARCHITECTURES = {
    "dlrm": [],
    "dcn": ["model=dcn", "model.dcn_low_rank_dim=4"],
    "dcn_parallel": ["model=dcn_parallel", "model.bottom_mlp=[]"],
    "projection": ["model=projection"],
    "concat": ["model=concat", "model.bottom_mlp=[]"],
    "strided": ["model=concat", "model.bottom_mlp=[]", "model.stride=4"],
    "gdcn": ["model=gdcn", "model.bottom_mlp=[]"],
    "gdcn_parallel": ["model=gdcn_parallel", "model.bottom_mlp=[]"],
    "finalnet": ["model=finalnet", "model.bottom_mlp=[]", "model.top_mlp=[16,8]"],
    # a layer norm is over all features, so new ones change what it gives
    "dcnv3": [*WITHOUT_MLP, "model=dcnv3", "model.num_heads=2", "model.dcnv3_layer_norm=false"],
    "qnn": [*WITHOUT_MLP, "model=qnn", "model.batch_norm=true"],
    "embedded": ["model.dense_embedding_dim=3"],
    "polylines": ["model=dcn_parallel", "model.bottom_mlp=[]", "model.dense_knots=4"],
    "ensemble": ["model=dcn", "model.dcn_low_rank_dim=4", "model.ensemble_size=2"],
    "experts": ["model.tasks=ple", "model.experts.levels=2"],
}
WIDE = [replace(TABLES[0], features=("f1", "f2", "f7")), *TABLES[1:], Table("new", 40, 8, ("f6",))]
"""A table that one more feature reads, and a new one."""
MORE = ["i9", "i4", "i3", "i2", "i1", "i0"]
"""A new dense column, and the others in another order."""


def logits_of(trainable: Trainable, step: tuple[torch.Tensor, Ids, torch.Tensor]) -> torch.Tensor:
    trainable.model.eval()
    return trainable.model(to_batch(*step))[1][1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_new_features_change_no_score_and_can_be_dropped_again(name: str, tmp_path: Path) -> None:
    """Features, a table and a dense column come and go: weights and states of the rest stay equal to the bit."""
    overrides = ARCHITECTURES[name]
    dense, ids, labels = draw(0, 50, WIDE)
    reordered = torch.cat([torch.rand(50, 1), dense.flip(1)], dim=1)
    narrow_ids = {feature: ids[feature] for table in TABLES for feature in table.features}
    with start_runtime(num_threads=1) as runtime:
        narrow, then = build(TABLES, overrides, 1, runtime)
        wide, now = build(WIDE, overrides, 2, runtime, MORE)
        again, _ = build(TABLES, overrides, 3, runtime)
        of_narrow, of_wide, of_again = (tensors_of(*each) for each in (narrow, wide, again))
        before = save_any(tmp_path / "step-000000001", of_narrow, runtime, scale=0.1)
        found = inherit_tensors(tmp_path / "step-000000001", of_wide, then, now, {}, may_differ=True)
        assert found.tables["new"] == Kept(new=40)
        assert {name for name, kept in found.layers.items() if kept.new} == {
            name for name, kept in found.layers.items() if name in named_axes(now.spec, MORE)
        } - ({"over_arch.model.0._mlp.0._linear.weight"} if name == "projection" else set())
        scores = [
            logits_of(narrow[0], (dense, narrow_ids, labels)),
            logits_of(wide[0], (reordered, ids, labels)),
        ]
        torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-6)
        save(tmp_path / "step-000000002", of_wide, runtime)
        inherit_tensors(tmp_path / "step-000000002", of_again, now, then, {}, may_differ=True)
        after = {place: piece.clone() for place, piece in local_pieces(of_again).items()}
    assert {name for name, _ in after} == before.keys()
    assert [name for (name, _), piece in after.items() if not torch.equal(piece, before[name])] == []


def test_layers_of_another_shape_are_drawn(tmp_path: Path) -> None:
    with start_runtime(num_threads=1) as runtime:
        former, then = build(TABLES, ["model.bottom_mlp=[24]", "model.top_mlp=[16,12]"], 1, runtime)
        trainable, now = build(TABLES, ["model.bottom_mlp=[16]", "model.top_mlp=[16]"], 2, runtime)
        before = save_any(tmp_path / "step-000000001", tensors_of(*former), runtime)
        tensors = tensors_of(*trainable)
        drawn = {name: piece.clone() for (name, _), piece in local_pieces(tensors).items()}
        with refused(
            DataError,
            "model/model.dense_arch.model._mlp.0._linear.weight",
            "has size (24, 5) in it, the model wants (16, 5)",
        ):
            inherit_tensors(tmp_path / "step-000000001", tensors, then, now, {}, may_differ=False)
        found = inherit_tensors(tmp_path / "step-000000001", tensors, then, now, {}, may_differ=True).layers
        after = {name: piece.clone() for (name, _), piece in local_pieces(tensors).items()}
    kept = [name for name in after if name in before and after[name].shape == before[name].shape]
    assert len(kept) > len(after) // 2
    assert all(torch.equal(after[name], before[name]) for name in kept)
    assert all(torch.equal(after[name], drawn[name]) for name in after if name not in kept)
    assert found["dense_arch.model._mlp.0._linear.weight"] == Kept(new=16 * 5, dropped=24 * 5)
    assert found["over_arch.model.0._mlp.1._linear.weight"] == Kept(dropped=12 * 16)
