"""dlrm-train from a dataset folder to a run folder, and under torchrun."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from dlrm_app.reports.run_page import write_report
from dlrm_app.training.train import train
from tests.commands import command, run
from tests.loader.dataset_fixture import set_value, write_dataset
from tests.small_run import SMALL, events, small_config
from tests.training.run_fixture import read_report

RATES = ["optimizer.dense.lr=0.005", "optimizer.sparse.lr=0.05"]


def start(folder: Path, *overrides: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs a small training in ``folder``."""
    return run(command("train", *SMALL, *RATES, *overrides, ranks=ranks), folder)


@pytest.fixture(scope="module")
def one_rank(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    keys = [*RATES, f"data.path={dataset}", "trainer.epochs=3", "report.enabled=true"]
    run = train(small_config(*keys, f"output={folder}/run"), write_report)
    (run.path / "shown.txt").write_text(str(run))
    return run.path


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


def test_the_last_line_names_a_report_of_the_same_numbers(one_rank: Path) -> None:
    assert f"report: {one_rank / 'report.html'}" in (one_rank / "shown.txt").read_text()
    report = read_report(one_rank / "report.html")
    assert {f"{event['auc']:.5f}" for event in events(one_rank, "eval")} <= {*report.numbers}
    assert report.num_charts == 7
    curves = json.loads((one_rank / "curves.json").read_text())
    assert sum(curves["test"]["reliability"]["count"]) == 1003


def test_it_learns_what_the_data_holds(one_rank: Path) -> None:
    """The test AUC rises well above chance, and the closing table shows it beside the best reachable one."""
    result = json.loads((one_rank / "result.json").read_text())
    assert result["evals"]["test"]["auc"] > 0.70
    assert result["train_loss"][2] < result["train_loss"][0]
    printed = (one_rank / "shown.txt").read_text()
    for words in ("epoch 3", "best reachable", f"{result['evals']['test']['auc']:.5f}", "run folder"):
        assert words in printed


@pytest.mark.long
def test_an_id_outside_its_table_ends_every_rank(tmp_path: Path) -> None:
    """One rank meets the bad shard; both end, soon, and the message names table, id and row count."""
    folder = tmp_path / "dataset"
    write_dataset(folder, rows={"train": 2048, "val": 256})
    set_value(folder, "c0", row=7, value=50)
    done = start(tmp_path, f"data.path={folder}", "data.shuffle=false", "output=run", ranks=2)
    assert done.returncode != 0
    assert "column c0: 1 ids are outside its table of 50 rows, such as 50" in done.stderr
    assert "terminate called" not in done.stderr


@pytest.mark.long
def test_a_refusal_is_one_message_for_all_ranks(dataset: Path, tmp_path: Path) -> None:
    keys = [f"data.path={dataset}", "data.lanes=64", "trainer.global_batch_size=192", "output=run"]
    done = start(tmp_path, *keys, ranks=3)
    assert done.returncode != 0
    assert (
        done.stderr.count(
            "data.lanes=64 is not a multiple of the 3 ranks: use a number of ranks that divides it"
        )
        == 1
    )
    assert not (tmp_path / "run").exists()
