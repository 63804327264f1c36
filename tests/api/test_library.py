"""The functions of ``import dlrm_app``: they do what the commands do, and leave the process as they found it."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import sympy  # noqa: F401 - torch imports it when it is first needed, and it adds a filter of warnings
import torch
import torch.distributed as dist
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from torch import multiprocessing

import dlrm_app as dlrm
from tests.commands import command
from tests.loader.dataset_fixture import write_dataset

SMALL = {
    "tables": "dataset",
    "tables.embedding_dim": 8,
    "model": {"bottom_mlp": [16], "top_mlp": [16]},
    "trainer": {"global_batch_size": 128, "threads": 1},
    "data.lanes": 8,
    "experiment": None,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "clicks"
    write_dataset(folder, rows={"train": 1000, "val": 300, "test": 300})
    return folder


@pytest.fixture(scope="module")
def auc(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The AUC on test of ``dlrm-train`` with the same settings."""
    folder = tmp_path_factory.mktemp("command")
    typed = ["tables=dataset", "tables.embedding_dim=8", "model.bottom_mlp=[16]", "model.top_mlp=[16]"]
    typed += ["trainer.global_batch_size=128", "trainer.threads=1", "data.lanes=8", "experiment=null"]
    subprocess.run(
        command("train", f"data.path={dataset}", *typed, "output=run"), cwd=folder, check=True, timeout=120
    )
    result = json.loads((folder / "run" / "result.json").read_text())
    found: float = result["evals"]["test"]["auc"]
    return found


def train(dataset: Path, output: Path) -> Any:
    return dlrm.train(SMALL, {"data.path": dataset}, output=output)


@contextmanager
def unchanged(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Fails if the block changes the process, prints, or leaves a handler."""
    logging.getLogger("dlrm_app").debug("made, if it was not")

    def state() -> dict[str, Any]:
        return {
            "argv": list(sys.argv),
            # torch names its cache when it is first needed
            "environment": {
                key: each for key, each in os.environ.items() if key != "TORCHINDUCTOR_CACHE_DIR"
            },
            "signals": {
                each: signal.getsignal(each)
                for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
            },
            "hook": sys.excepthook,
            "streams": (sys.stdout, sys.stderr),
            "loggers": [
                (name, logging.getLogger(name).level, len(logging.getLogger(name).handlers))
                for name in (
                    "",
                    "dlrm_app",
                    "torch",
                    "torchrec",
                    "fbgemm_gpu",
                    "torch.distributed",
                    "torch.fx._symbolic_trace",
                    "torchrec.distributed.utils",
                )
            ],
            "warnings": list(warnings.filters),
            "threads": (torch.get_num_threads(), pyarrow.cpu_count()),
            "random": torch.get_rng_state().tolist(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "group": dist.is_initialized(),
            "hydra": GlobalHydra.instance().hydra,
            "folder": Path.cwd(),
            "missing modules": [name for name, module in sys.modules.items() if module is None],
        }

    before = state()
    capfd.readouterr()
    yield
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_training_by_library_equals_the_command_to_the_bit(
    dataset: Path, auc: float, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Twice, and after an error of configuration."""
    for name in ("first", "second"):
        with unchanged(capfd):
            run = train(dataset, tmp_path / name)
            with pytest.raises(dlrm.ConfigError) as refused:
                dlrm.train(SMALL, {"data.path": dataset, "trainer.epochs": -1}, output=tmp_path / "bad")
        assert run.auc == auc
        assert any("trainer.epochs" in str(problem) for problem in refused.value.problems)
    assert not (tmp_path / "bad").exists()


def test_libraries_do_not_warn_of_kernels_that_fit(
    dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dlrm.train(
        SMALL, {"data.path": dataset, "optimizer": "adam", "trainer.max_steps": 1}, output=tmp_path / "run"
    )
    warned = {each.name.partition(".")[0] for each in caplog.records if each.levelno >= logging.WARNING}
    assert warned <= {"dlrm_app"}


def in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def in_event_loop(work: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return work()

    return asyncio.run(main())


@pytest.mark.parametrize("way", [in_thread, in_event_loop])
def test_a_training_works_anywhere_in_a_process(
    way: Callable[[Callable[[], Any]], Any],
    dataset: Path,
    auc: float,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with unchanged(capfd):
        assert way(lambda: train(dataset, tmp_path / "run")).auc == auc


def test_a_process_group_that_exists_is_used_and_kept(dataset: Path, auc: float, tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert train(dataset, tmp_path / "run").auc == auc
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def _train_on_rank(rank: int, address: str, dataset: Path, output: Path) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    run = train(dataset, output)
    (output.parent / f"auc-{rank}").write_text(repr(run.auc))
    dist.destroy_process_group()


@pytest.mark.long
def test_spawned_ranks_train_in_their_own_group(dataset: Path, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/store"
    multiprocessing.spawn(_train_on_rank, (address, dataset, tmp_path / "run"), nprocs=2)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["world_size"] == 2
    aucs = [float((tmp_path / f"auc-{rank}").read_text()) for rank in range(2)]
    assert aucs == [result["evals"]["test"]["auc"]] * 2


def test_a_hydra_application_keeps_its_own_configuration(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        dlrm.check({"data.path": dataset})
        assert compose("mine") == {"a": 1}


@pytest.mark.slow
def test_steps_from_log_to_scores_return_what_commands_print(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with unchanged(capfd):
        clicks = dlrm.generate(rows=3000, output=tmp_path / "clicks.tsv", threads=1)
        shares = {"split": {"val": 0.1, "test": 0.1}}
        data = dlrm.preprocess(
            "dataset=criteo_kaggle", shares, {"input.train": clicks.path}, output=tmp_path / "d"
        )
        run = dlrm.train(SMALL, {"data.path": data.path}, output=tmp_path / "run")
        result = dlrm.evaluate(checkpoint=run.path, split="test", threads=1)
        scores = dlrm.predict(
            {"data.path": data.path}, model=run.path, output=tmp_path / "s.parquet", threads=1
        )
        planned = dlrm.plan(SMALL, {"data.path": data.path}, topology="cpu_2")
        page = dlrm.report(run.path, run.path)
        export = dlrm.export(
            checkpoint=run.path, format="torchscript", output=tmp_path / "e", judgement="ignore", threads=1
        )
    assert result.models[0].metrics["auc"] == run.auc
    assert scores.rows == data.manifest.splits["test"].rows
    assert export.path == tmp_path / "e"
    events = run.events()
    assert events.num_rows == len((run.path / "metrics.jsonl").read_text().splitlines())
    assert {"event", "loss", "auc"} <= {*events.column_names}
    for each, part in (
        (clicks, "best reachable AUC"),
        (data, "positives"),
        (run, "samples/s while training"),
        (result, "95% interval"),
        (scores, "rows/s"),
        (planned, "sharding plan for"),
        (page, "report.html"),
        (export, "max difference"),
    ):
        assert part in str(each)
        assert "<" in each._repr_html_()


def test_every_name_is_documented_and_shown_to_completion() -> None:
    assert {*dlrm.__all__} <= {*dir(dlrm)}
    assert all(getattr(dlrm, name).__doc__ for name in dlrm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        dlrm.trian  # noqa: B018
