"""dlrm-train from a dataset folder to a run folder, by hand and under torchrun."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from dlrm_app.errors import ConfigError, DlrmError
from tests.commands import command, run
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, losses, train_here
from tests.training.run_fixture import read_report

RATES = ["optimizer.dense.lr=0.005", "optimizer.sparse.lr=0.05"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "dataset"
    write_dataset(folder, rows={"train": 4000, "val": 1001, "test": 1003})
    return folder


def start(folder: Path, *overrides: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs a small training in ``folder``."""
    return run(command("train", *SMALL, *RATES, *overrides, ranks=ranks), folder)


@pytest.fixture(scope="module")
def one_rank(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    done = start(folder, f"data.path={dataset}", "trainer.epochs=3", "trainer.threads=1", "output=run")
    assert done.returncode == 0, done.stderr
    (folder / "run" / "stdout.txt").write_text(done.stdout)
    return folder / "run"


def test_a_run_folder_holds_all_that_happened(one_rank: Path) -> None:
    """Steps and epochs add up, every row is evaluated, and the result repeats the last evaluations."""
    train, evals = events(one_rank, "train"), events(one_rank, "eval")
    assert [event["step"] for event in train] == list(range(1, 94))  # 3 epochs of 4000 // 128 = 31 steps
    assert [(e["split"], e["epoch"], e["num_samples"]) for e in evals] == [
        ("val", 0, 1001),
        ("val", 1, 1001),
        ("val", 2, 1001),
        ("test", 2, 1003),
    ]
    result = json.loads((one_rank / "result.json").read_text())
    assert result["evals"]["test"]["auc"] == evals[-1]["auc"]
    assert result["steps"] == 93
    assert yaml.safe_load((one_rank / "config.yaml").read_text())["trainer"]["epochs"] == 3
    assert set(yaml.safe_load((one_rank / "plan.yaml").read_text())["tables"]) == {"t_c0", "t_c1", "t_m0"}
    assert json.loads((one_rank / "environment.json").read_text())["world_size"] == 1


def test_it_ends_by_naming_a_report_of_the_same_numbers(one_rank: Path) -> None:
    """Every metric of every evaluation stands in report.html as it does in metrics.jsonl."""
    assert f"report: {one_rank / 'report.html'}" in (one_rank / "stdout.txt").read_text()
    report = read_report(one_rank / "report.html")
    shown = {float(value) for value, _ in report.numbers if value}
    evals, health = events(one_rank, "eval"), events(one_rank, "health")
    assert [event["split"] for event in health] == [event["split"] for event in evals]
    for event in evals:
        assert {event[key] for key in ("auc", "logloss", "ne", "calibration", "num_samples")} <= shown
    for table in health[-1]["tables"].values():
        assert {table[key] for key in ("rows_touched", "weight_norm", "norm_growth", "top10_share")} <= shown
    curves = json.loads((one_rank / "curves.json").read_text())
    assert sum(curves["test"]["reliability"]["count"]) == 1003
    assert report.num_charts == 6


def test_it_learns_what_the_data_holds(one_rank: Path) -> None:
    """The test AUC rises well above chance, and the closing table shows it beside the best reachable one."""
    result = json.loads((one_rank / "result.json").read_text())
    assert result["evals"]["test"]["auc"] > 0.70
    assert result["train_loss"][2] < result["train_loss"][0]
    printed = (one_rank / "stdout.txt").read_text()
    for words in ("epoch 3", "best reachable", f"{result['evals']['test']['auc']:.5f}", "run folder"):
        assert words in printed


def test_the_same_seed_gives_the_same_losses_to_the_bit(
    dataset: Path, one_rank: Path, tmp_path: Path
) -> None:
    train_here(tmp_path / "run", *RATES, f"data.path={dataset}", "trainer.epochs=3")
    assert losses(one_rank) == losses(tmp_path / "run")
    assert [e["auc"] for e in events(one_rank, "eval")] == [
        e["auc"] for e in events(tmp_path / "run", "eval")
    ]


def test_two_ranks_see_the_same_batches_and_repeat_themselves(
    dataset: Path, one_rank: Path, tmp_path: Path
) -> None:
    """Two ranks follow one rank's losses to float tolerance, and a second run of two to the bit."""
    keys = [f"data.path={dataset}", "trainer.epochs=3", "trainer.threads=1"]
    done = start(tmp_path, *keys, "output=first", ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    train_on_ranks(2, *SMALL, *RATES, *keys, f"output={tmp_path}/again")
    assert losses(tmp_path / "first") == losses(tmp_path / "again")
    assert losses(tmp_path / "first") == pytest.approx(losses(one_rank), abs=1e-4)
    for found, expected in zip(events(tmp_path / "first", "eval"), events(one_rank, "eval"), strict=True):
        assert found["num_samples"] == expected["num_samples"]
        assert found["auc"] == pytest.approx(expected["auc"], abs=1e-3)


@pytest.mark.long
def test_four_ranks_see_the_same_batches(dataset: Path, one_rank: Path, tmp_path: Path) -> None:
    done = start(tmp_path, f"data.path={dataset}", "trainer.epochs=3", "output=run", ranks=4)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses(tmp_path / "run") == pytest.approx(losses(one_rank), abs=1e-4)
    assert events(tmp_path / "run", "eval")[-1]["auc"] == pytest.approx(
        events(one_rank, "eval")[-1]["auc"], abs=1e-3
    )


def test_a_finished_run_is_not_overwritten(dataset: Path, one_rank: Path) -> None:
    before = (one_rank / "metrics.jsonl").read_bytes()
    with pytest.raises(DlrmError, match="already holds a run"):
        train_here(one_rank, f"data.path={dataset}")
    assert (one_rank / "metrics.jsonl").read_bytes() == before


def test_every_misfit_with_the_data_is_named_before_work_starts(dataset: Path, tmp_path: Path) -> None:
    spec = tmp_path / "mine.yaml"
    spec.write_text("embedding_dim: 8\nspecs:\n  - {name: t, rows: 10, features: [c0, nothing]}\n")
    with pytest.raises(ConfigError) as refused:
        train_here(
            tmp_path / "run", f"data.path={dataset}", f"tables={spec}", "trainer.global_batch_size=100"
        )
    for words in ("3 problems", "multiple of data.lanes (8), got 100", "feature nothing", "rows: 50"):
        assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_an_id_outside_its_table_ends_every_rank(tmp_path: Path) -> None:
    """One rank meets the bad shard; both end, soon, and the message names table, id and row count."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "dataset"
    write_dataset(folder, rows={"train": 2048, "val": 256})
    shard = sorted((folder / "train").glob("*.parquet"))[0]
    table = pq.read_table(shard)
    ids = table["c0"].to_numpy().copy()
    ids[7] = 50
    place = table.column_names.index("c0")
    table = table.set_column(place, "c0", pa.array(ids.astype(np.int32)))
    size = shard.stat().st_size
    groups = [
        pq.ParquetFile(shard).metadata.row_group(i).num_rows
        for i in range(pq.ParquetFile(shard).num_row_groups)
    ]
    pq.write_table(table, shard, row_group_size=groups[0])
    manifest = json.loads((folder / "manifest.json").read_text())
    for entry in manifest["splits"]["train"]["shards"]:
        if entry["bytes"] == size and (folder / entry["path"]) == shard:
            entry["bytes"] = shard.stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = start(tmp_path, f"data.path={folder}", "data.shuffle=false", "output=run", ranks=2)
    assert done.returncode != 0
    assert "column c0: 1 ids are outside its table of 50 rows, such as 50" in done.stderr
    assert "terminate called" not in done.stderr
