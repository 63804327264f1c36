"""A run that is stopped, killed or moved to other ranks goes on as if nothing had happened."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.errors import ConfigError, DataError, DlrmError
from tests.commands import command, wait_until
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.refusals import refused
from tests.small_run import SMALL, events, final_bytes, losses, train_here


def train_command(dataset: Path, *overrides: str, ranks: int = 1) -> list[str]:
    threads = ["trainer.threads=1"] if ranks == 1 else []
    return command(
        "train", *threads, f"data.path={dataset}", *SMALL, "trainer.epochs=2", *overrides, ranks=ranks
    )


def train_in(folder: Path, dataset: Path, *overrides: str, ranks: int = 1) -> None:
    """As ``train``, with output=run."""
    keys = [f"data.path={dataset}", "trainer.epochs=2", *overrides]
    if ranks == 1:
        train_here(folder / "run", *keys)
    else:
        train_on_ranks(ranks, *SMALL, *keys, f"output={folder / 'run'}")


def kept(run: Path, kind: str, key: str) -> list[Any]:
    """``key`` of every event of ``kind``."""
    return [event[key] for event in events(run, kind)]


@pytest.fixture(scope="module")
def undisturbed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train_in(folder, dataset)
    return folder / "run"


@pytest.mark.slow
def test_a_signal_saves_the_run_and_says_how_to_resume(
    dataset: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """SIGTERM ends the run with code 75 after a step; resumed, its events and weights are the undisturbed run's."""
    stop_at_first_step(tmp_path, train_command(dataset, "output=run"), signal.SIGTERM, expect=75)
    train_in(tmp_path, dataset, "resume=auto")
    assert events(tmp_path / "run") == events(undisturbed)
    assert final_bytes(tmp_path / "run") == final_bytes(undisturbed)


def stop_at_first_step(folder: Path, arguments: list[str], number: signal.Signals, expect: int) -> None:
    """Sends ``number`` to the process once its first step is logged."""
    with subprocess.Popen(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_steps(folder / "run", 1, process)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == expect, stderr[-3000:]
    if expect == 75:
        assert "resume=auto" in stderr


def count_lines(run_folder: Path) -> int:
    log = run_folder / "metrics.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def wait_for_steps(run_folder: Path, count: int, process: subprocess.Popen[Any]) -> None:
    def is_there() -> bool:
        return process.poll() is not None or count_lines(run_folder) >= count

    wait_until(is_there, 120, f"step {count}", every=0.005)
    assert count_lines(run_folder) >= count, "the run ended before it could be stopped"


@pytest.fixture(scope="module")
def run_of_40_steps(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut")
    train_in(folder, dataset, "trainer.max_steps=40", "checkpoint.every_steps=10", "checkpoint.keep_last=9")
    return folder / "run"


@pytest.fixture
def cut_run(run_of_40_steps: Path, tmp_path: Path) -> Path:
    """A copy of a run of 40 steps with checkpoints at 10, 20, 30 and 40, and epoch 1's at 31."""
    return Path(shutil.copytree(run_of_40_steps, tmp_path / "run"))


def test_damage_is_named_and_only_auto_goes_back_past_it(
    dataset: Path, undisturbed: Path, cut_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped byte, a missing file and an interrupted save, in the three newest checkpoints."""
    saved = cut_run / "checkpoints"
    flip_a_byte(next((saved / "step-000000040").glob("*.tensors")))
    next((saved / "step-000000031").glob("*.tensors")).unlink()
    (saved / "step-000000030" / "complete.json").unlink()
    with refused(DataError, ".../run/checkpoints/step-000000040", "is damaged") as named:
        train_in(cut_run.parent / "other", dataset, f"resume={saved / 'step-000000040'}")
    assert "checksum" in str(named.value)
    caplog.set_level("INFO")
    train_in(cut_run.parent, dataset, "resume=auto")
    for words in ("step-000000040 is damaged", "is missing", "resuming from", "step-000000020"):
        assert words in caplog.text
    assert losses(cut_run) == losses(undisturbed)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_another_model_dataset_or_row_order_is_refused_by_name(
    dataset: Path, cut_run: Path, tmp_path: Path
) -> None:
    resume = f"resume={cut_run}"
    with refused(
        ConfigError,
        "model.top_mlp",
        "is [32], in .../run/checkpoints/step-000000040 [16]",
        cure="give model.top_mlp=[16], or start a new run",
    ):
        train_in(tmp_path / "a", dataset, resume, "model.top_mlp=[32]")
    with refused(ConfigError, "tables.t_c0.dim", "is 4, in ... 8", "give dim=8..."):
        train_in(tmp_path / "a", dataset, resume, "tables.embedding_dim=4")
    with pytest.raises(ConfigError) as order:
        train_in(tmp_path / "b", dataset, resume, "trainer.seed=5", "trainer.global_batch_size=256")
    assert "give trainer.seed=0" in str(order.value)
    assert "give trainer.global_batch_size=128" in str(order.value)
    write_dataset(tmp_path / "other", rows={"train": 4000, "val": 501}, seed=9)
    with refused(
        DlrmError,
        ".../run/checkpoints/step-000000040",
        "was trained on another dataset (... as it was then) than .../other is now",
    ):
        train_in(tmp_path / "c", tmp_path / "other", resume)


@pytest.mark.long
def test_old_checkpoints_go_and_the_best_stays(dataset: Path, tmp_path: Path) -> None:
    train_in(tmp_path, dataset, "checkpoint.every_steps=5", "checkpoint.keep_last=2")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    evals = [e for e in events(tmp_path / "run") if e["event"] == "eval" and e["split"] == "val"]
    best = max(evals, key=lambda event: event["auc"])["step"]
    assert set(names) == {"step-000000060", "step-000000062", f"step-{best:09d}"}
