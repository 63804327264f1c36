"""dlrm-export's job: what is in the folder, what it says, and what is refused. Compiled packages: test_package.py."""

import gc
import json
import pickle
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dlrm_app.config.export import ExportConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.inference import export, exported_model
from dlrm_app.inference.export import export_folder, held_out_split
from dlrm_app.inference.exported_model import open_export, read_reference
from dlrm_app.inference.formats import Forward, load_script, write_torchscript
from dlrm_app.inference.problems import check_export
from dlrm_app.inference.record import read_export
from dlrm_app.inference.scoring_model import CheckpointWeights, ScoringModel
from dlrm_app.inference.tables import QuantizedTables
from dlrm_app.runs.checkpoint import storage
from dlrm_app.runs.checkpoint.load import open_trained
from dlrm_app.tables.table import Table
from tests.composed import compose_config
from tests.inference.conftest import export_here, first_rows, predicted
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.refusals import find_problem, refused
from tests.small_run import SMALL, train_here


def test_the_export_scores_as_the_trained_model(script_export: Path) -> None:
    found = read_export(script_export).proofs[0]
    assert (found.split, found.rows, found.file) == ("test", 701, "model.ts")
    assert found.max_difference < 1e-6
    assert found.auc == pytest.approx(found.auc_trained, abs=1e-9)


def test_the_record_names_inputs_in_their_order(script_export: Path) -> None:
    record = read_export(script_export)
    assert record.dense == ["i0", "i1", "i2"]
    assert [(f.name, f.table, f.num_embeddings, f.multi_hot) for f in record.features] == [
        ("c0", "t_c0", 50, False),
        ("c1", "t_c1", 1000, False),
        ("m0", "t_bags", 30, True),
        ("m1", "t_bags", 30, True),
    ]
    assert {path for path in record.files if "/" not in path} == {"model.ts"}
    assert record.trained_bytes == 4 * 8 * 50 + 2 * 8 * 1000 + 4 * 8 * 30


def test_an_opened_export_scores_any_number_of_rows(script_export: Path, trained: Path) -> None:
    model = open_export(script_export)
    scores, logits = model.score(first_rows(trained, 701))
    assert scores.shape == (701,)
    assert torch.equal(scores, torch.sigmoid(logits))
    assert float(model.score(first_rows(trained, 1))[0][0]) == pytest.approx(float(scores[0]), abs=1e-6)


def test_opening_unpickles_nothing(script_export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    open_export(script_export)


def changed(export: Path, folder: Path, **values: Any) -> Path:
    """A copy of ``export`` whose export.json says other things."""
    shutil.copytree(export, folder)
    record = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**record, **values}))
    return folder


def test_a_changed_byte_is_refused_by_the_name_of_its_file(script_export: Path, tmp_path: Path) -> None:
    copy = changed(script_export, tmp_path / "copy")
    data = bytearray((copy / "model.ts").read_bytes())
    data[len(data) // 2] ^= 1
    (copy / "model.ts").write_bytes(data)
    with refused(DataError, ".../copy/model.ts", "has other bytes than were written (checksum)"):
        open_export(copy)
    (copy / "model.ts").unlink()
    with refused(DataError, ".../copy/model.ts", "is missing"):
        open_export(copy)


def test_other_libraries_are_refused_by_name(script_export: Path, tmp_path: Path) -> None:
    versions = {**read_export(script_export).versions, "torch": "1.0.0", "fbgemm-gpu": "0.1"}
    with refused(DataError, "torch", "is ... here, the export was made with 1.0.0") as caught:
        open_export(changed(script_export, tmp_path / "copy", versions=versions))
    assert find_problem(caught.value, "fbgemm-gpu", "is ... here, the export was made with 0.1")


def test_other_scores_of_the_reference_rows_are_refused(
    script_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, load = exported_model.LOADERS["torchscript"]

    def load_other(path: Path) -> Forward:
        script = load(path)
        return lambda inputs: (script(inputs)[0] + 1e-5, script(inputs)[1])

    monkeypatch.setitem(exported_model.LOADERS, "torchscript", (file, load_other))
    with refused(
        DataError,
        ".../model.ts",
        "gives its reference rows other scores here than the model that it was made from (by...",
    ):
        open_export(script_export)


def test_a_damaged_file_is_refused_by_any_number_of_rows(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that it was made from scores the same rows; quantized tables are the same in both."""
    write_dataset(tmp_path / "few", rows={"train": 2000, "val": 500, "test": 12}, multi_hot=(30, 30))
    keys = [f"checkpoint={trained}/run", f"data.path={tmp_path}/few", "format=torchscript", "quantize=int8"]
    assert export_here(*keys, f"output={tmp_path}/whole").proofs[0].rows == 12
    file, load = exported_model.LOADERS["torchscript"]

    def load_damaged(path: Path) -> Forward:
        script = load(path)
        return lambda inputs: script((inputs[0] * 0.99, *inputs[1:]))

    monkeypatch.setitem(exported_model.LOADERS, "torchscript", (file, load_damaged))
    with refused(
        DataError,
        ".../.damaged....tmp/model.ts",
        "gives its reference rows other scores here than the model that it was made from (by...",
    ):
        export_here(*keys, "max_auc_loss=1", f"output={tmp_path}/damaged")
    assert not (tmp_path / "damaged").exists()


def test_rows_without_an_auc_verify_nothing(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path, rows={"train": 64, "val": 64, "test": 64})
    splits = {**manifest.splits, "test": replace(manifest.splits["test"], positives=1)}
    manifest = replace(manifest, splits=splits)
    assert held_out_split(None, manifest) == "val"
    with refused(
        DataError, str(tmp_path), "has no test split with two rows of each label, of a weight above 0, ..."
    ):
        held_out_split("test", manifest)


@pytest.mark.parametrize(
    ("wrong", "key", "rule"),
    [
        (lambda dense, values, lengths: (dense[:, :2], values, lengths), "dense", "must be [rows, 3]"),
        (lambda dense, values, lengths: (dense, values, lengths[:3]), "lengths", "must be [4, 64]"),
        (lambda dense, values, lengths: (dense, values[:-1], lengths), "lengths", "add up to ..."),
        (
            lambda dense, values, lengths: (dense, values.index_fill(0, torch.tensor([0]), 50), lengths),
            "feature c0",
            "has the id 50, outside its table of 50 rows",
        ),
        (
            lambda dense, values, lengths: (dense, values.index_fill(0, torch.tensor([64]), -1), lengths),
            "feature c1",
            "has the id -1, outside its table of 1,000 rows",
        ),
    ],
)
def test_wrong_inputs_are_refused_by_name(
    script_export: Path, trained: Path, wrong: Any, key: str, rule: str
) -> None:
    model = open_export(script_export)
    with refused(DataError, key, rule):
        model.score(wrong(*first_rows(trained, 64)))


def test_too_much_loss_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "export"
    keys = [f"checkpoint={trained}/run", "format=torchscript", "quantize=int2", f"output={output}"]
    keys.append("split=train")  # whose rows are enough to tell
    with refused(
        DlrmError,
        "",
        "...model.ts loses 0... of AUC on train...more than max_auc_loss=0...",
    ):
        export_here(*keys, "max_auc_loss=0")
    assert list(tmp_path.iterdir()) == []
    record = export_here(*keys, "max_auc_loss=1")
    assert {table.type for table in record.tables} == {"int2"}
    assert record.proofs[0].max_difference > 1e-4


def test_export_and_prediction_leave_a_gpu_alone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables may be larger than it; what is exported scores on CPUs, and so does dlrm-predict."""
    monkeypatch.setattr("dlrm_app.distributed.ranks.has_gpu", lambda _: True)
    keys = [f"checkpoint={trained}/run", "format=torchscript", f"output={tmp_path}/export"]
    assert export_here(*keys).proofs[0].max_difference < 1e-6
    rows = predicted(tmp_path / "scores.parquet", f"model={trained}/run", f"data.path={trained}/dataset")
    assert len(rows) == 701


@pytest.mark.parametrize("kind", ["aoti", "torchscript"])
def test_a_file_size_limit_is_explained(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Their writers abort the process, or raise errors of their own."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1000, 1000))
    with refused(
        DlrmError,
        "...",
        "cannot be written (...larger than ulimit -f allows (1 kB))",
        "fix that, then export again",
    ):
        export_here(f"checkpoint={trained}/run", f"format={kind}", f"output={tmp_path}/export")
    assert list(tmp_path.iterdir()) == []


WITHOUT_MLP = ("model.bottom_mlp=[]", "model.top_mlp=[]")


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=dcn", "model.ensemble_size=2", "model.dense_embedding_dim=3"],
        ["model=projection"],
        ["model=concat", "model.bottom_mlp=[]"],
        ["model=gdcn", "model.bottom_mlp=[]", "model.dense_knots=4"],
        ["model=gdcn_parallel", "model.bottom_mlp=[]", "model.dense_embedding_dim=3"],
        ["model=finalnet", "model.bottom_mlp=[]"],
        [*WITHOUT_MLP, "model=dcnv3", "model.num_heads=2", "model.batch_norm=true"],
        [*WITHOUT_MLP, "model=qnn", "model.num_heads=2", "model.ensemble_size=2"],
    ],
)
def test_every_architecture_exports(trained: Path, tmp_path: Path, overrides: list[str]) -> None:
    train_here(tmp_path / "run", f"data.path={trained}/dataset", "trainer.max_steps=3", *overrides)
    record = export_here(
        f"checkpoint={tmp_path}/run", "format=torchscript", "split=val", f"output={tmp_path}/export"
    )
    assert record.proofs[0].max_difference < 1e-6


def test_an_export_parses_the_index_twice_for_any_tables(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the tables to export, and once for the trained model to compare with."""
    parsed: list[object] = []
    parse = storage.parse_index
    monkeypatch.setattr(storage, "parse_index", lambda index: parsed.append(index) or parse(index))
    export_here(f"checkpoint={trained}/run", "format=torchscript", "split=val", f"output={tmp_path}/export")
    assert len(parsed) == 2


def test_formats_that_need_more_memory_than_there_is_are_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables of the run, in fp32, take 33 kB; twice that is too little for the three copies of the compiler."""
    monkeypatch.setattr(export, "machine_memory", lambda: 70_000)
    words = [f"checkpoint={trained}/run", "split=val", f"output={tmp_path}/export"]
    with refused(
        ConfigError,
        "format=aoti",
        "holds the tables 3 times while it writes them, 104 kB in all, and this machine has...",
    ):
        export_here(*words, "format=aoti")
    assert not (tmp_path / "export").exists()
    export_here(*words, "format=torchscript")


class OneTable(torch.nn.Module):
    """A model of one table of 1.3 MB, whose vectors are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse_arch = QuantizedTables(
            [Table("t", 10_000, 32, ("f",))], {"t": "fp32"}, lambda _: [torch.ones(10_000, 32)], stacked=True
        )

    def forward(self, dense: torch.Tensor, ids: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.sparse_arch(ids).sum(dim=2) + dense


def test_writing_torchscript_keeps_no_table_alive(tmp_path: Path) -> None:
    """torch keeps the constants of frozen code for the life of the process: a second copy of all tables."""
    model = ScoringModel(OneTable()).eval().requires_grad_(False)
    write_torchscript(tmp_path / "model.ts", model)
    table = weakref.ref(model.model.sparse_arch.weights_host)
    del model
    gc.collect()
    assert table() is None
    ids = torch.tensor([3, 4, 9_999], dtype=torch.int32), torch.tensor([[1, 2]], dtype=torch.int32)
    _, logits = load_script(tmp_path / "model.ts")((torch.zeros(2, 1), *ids))
    assert logits.tolist() == [32, 64]


def test_plain_weights_equal_the_checkpoints(trained: Path, tmp_path: Path) -> None:
    export_here(f"checkpoint={trained}/run", "format=parquet", f"output={tmp_path}/plain")
    with start_runtime(1) as runtime:
        weights = CheckpointWeights(open_trained(trained / "run", runtime))
    table = pq.read_table(tmp_path / "plain" / "tables" / "t_c1.parquet")
    assert table.column("id").to_pylist() == list(range(1000))
    expected = torch.cat([*weights.blocks(Table("t_c1", 1000, 8, ("c1",)), 300)]).float()
    assert np.array_equal(np.array(table.column("vector").to_pylist(), np.float32), expected.numpy())
    dense = pq.read_table(tmp_path / "plain" / "dense.parquet").to_pylist()
    expected_values = sorted(value.flatten().tolist() for value in weights.dense.values())
    assert sorted(row["values"] for row in dense) == expected_values
    with refused(DataError, ".../plain", "holds plain weights (parquet), which do not score by themselves"):
        open_export(tmp_path / "plain")


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["format=onnx"], "format", "must be one of aoti..."),
        (["quantize=int3"], "quantize", "must be one of fp32..."),
        (
            ["format=parquet", "quantize=int8"],
            "format=parquet",
            "holds plain weights, which are fp32 or fp16...",
        ),
        (["format=[aoti,aoti]"], "format", "must name each file once..."),
        (["quantize_tables={t_*: int9}"], "quantize_tables.t_*", "must be one of ..."),
        (["max_auc_loss=-1"], "max_auc_loss", "must be at least 0"),
        (["shards=2"], "shards", "is for format=torchscript only, not aoti"),
        (["shards=2", "format=torchscript"], "quantize", "must be int8, int4 or int2 in shards"),
        (["checkpoint=null"], "checkpoint", "is required and has no default"),
        (["base=b"], "base", "needs apply=DELTA..."),
        (["apply=a"], "apply", "needs base=EXPORT..."),
        (["apply=a", "base=b"], "checkpoint", "is not read where a delta is applied"),
        *[
            (
                ["apply=a", "base=b", word],
                word.partition("=")[0],
                "is not read where a delta is applied",
            )
            for word in (
                "since=c",
                "quantize=int4",
                "quantize=fp32",
                "data.path=d",
                "quantize_tables={t: int8}",
            )
        ],
    ],
)
def test_impossible_settings_are_refused_at_once(
    tmp_path: Path, overrides: list[str], key: str, rule: str
) -> None:
    words = [f"checkpoint={tmp_path}", f"output={tmp_path}/e", *overrides]
    with refused(ConfigError, key, rule):
        compose_config("export", ExportConfig, words, check_export)


def test_an_output_that_another_export_makes_is_left_to_it(tmp_path: Path) -> None:
    """And what one that was killed left beside it goes away."""
    left, anothers = tmp_path / ".export.0a1b2c3d.tmp", tmp_path / ".export.b.0a1b2c3d.tmp"
    left.mkdir()
    anothers.mkdir()
    output = tmp_path / "export"
    with (
        export_folder(output),
        refused(
            DlrmError, "", "another dlrm-export makes output=.../export: wait for it, or give another name"
        ),
        export_folder(output),
    ):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"export", anothers.name}
    with refused(ConfigError, "output=.../export", "exists"), export_folder(output):
        pass


@pytest.mark.long
def test_exports_do_not_depend_on_how_the_checkpoint_was_sharded(trained: Path, tmp_path: Path) -> None:
    """A rate at which nothing moves: three runs with the same weights, saved by 1, 2 and 4 ranks under other plans."""
    common = [*SMALL, f"data.path={trained}/dataset", "report.enabled=false", "trainer.max_steps=2"]
    common += ["optimizer.sparse.lr=1e-30", "optimizer.dense.lr=1e-30"]
    for ranks, kind in ((1, "table_wise"), (2, "row_wise"), (4, "table_wise")):
        train_on_ranks(ranks, *common, f"sharding.types=[{kind}]", f"output={tmp_path}/run{ranks}")
        export_here(
            f"checkpoint={tmp_path}/run{ranks}",
            "format=[parquet,torchscript]",
            "max_auc_loss=1",
            f"output={tmp_path}/export{ranks}",
        )
    first = tmp_path / "export1"
    for other in (tmp_path / "export2", tmp_path / "export4"):
        for name in ("tables/t_c1.parquet", "dense.parquet", "reference/rows.tsv", "reference/scores.tsv"):
            assert (other / name).read_bytes() == (first / name).read_bytes()


@pytest.mark.slow
def test_an_export_in_two_shards_scores_as_the_whole_one(shop: Path, tmp_path: Path) -> None:
    keys = [f"checkpoint={shop}/run", "format=torchscript", "quantize=int8", "max_auc_loss=1"]
    whole = export_here(*keys, f"output={tmp_path}/whole")
    sharded = export_here(*keys, "shards=2", f"output={tmp_path}/sharded")
    assert (whole.shards, sharded.shards) == (1, 2)
    inputs, expected = read_reference(tmp_path / "whole", len(whole.dense))
    torch.testing.assert_close(
        open_export(tmp_path / "sharded").score(inputs)[0], expected, rtol=0, atol=1e-6
    )
    assert b"IntNBit" in (tmp_path / "sharded" / "model.ts").read_bytes()  # torchrec's tables, not ours
