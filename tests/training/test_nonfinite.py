"""trainer.on_nonfinite=skip: a step whose loss is no finite number changes nothing, is counted, and is bounded."""

import json
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import DlrmError
from dlrm_app.reports.run_page import write_report
from dlrm_app.runs.events import RunResult
from dlrm_app.training.train import train
from tests.loader.dataset_fixture import set_value, write_dataset
from tests.small_run import events, final_bytes

BATCH = 64
IN_FILE_ORDER = ["data.shuffle=false", "data.lanes=1", "evaluation.batch_size=64"]
SMALL = [
    *IN_FILE_ORDER,
    f"trainer.global_batch_size={BATCH}",
    "tables=dataset",
    "tables.embedding_dim=4",
    "model.bottom_mlp=[8]",
    "model.top_mlp=[8]",
    "trainer.threads=1",
    "trainer.log_every_steps=1",
    "trainer.on_nonfinite=skip",
]


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """12 batches of training rows, each a shard of its own."""
    folder = tmp_path / "clean"
    sizes = {"rows_per_group": BATCH, "rows_per_shard": BATCH}
    write_dataset(folder, rows={"train": 12 * BATCH, "val": 100}, **sizes)
    return folder


def without(folder: Path, batches: list[int]) -> None:
    """Drops the shards of ``batches`` from the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    split = manifest["splits"]["train"]
    kept = [shard for number, shard in enumerate(split["shards"]) if number not in batches]
    split["shards"], split["rows"] = kept, BATCH * len(kept)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def run(dataset: Path, output: Path, *overrides: str) -> RunResult:
    keys = [f"data.path={dataset}", f"output={output}", *SMALL, *overrides]
    return train(compose_config("train", TrainConfig, keys))


@pytest.mark.parametrize(
    ("optimizer", "pipeline"),
    [("rowwise_adagrad", "sparse_dist"), ("adam", "base")],
)
def test_a_skipped_step_leaves_the_model_as_if_its_rows_were_not_there(
    clean: Path, tmp_path: Path, optimizer: str, pipeline: str
) -> None:
    """Weights, moments and step counts to the bit, fused tables and torch's optimizers alike."""
    for value, batch in ((float("nan"), 0), (float("inf"), 4), (float("-inf"), 5), (float("nan"), 11)):
        set_value(clean, "i1", 5, value, shard=batch)
    keys = [f"optimizer={optimizer}", "optimizer.dense.kind=adam", f"trainer.pipeline={pipeline}"]
    keys.append("model.initial_bias=random")  # the base rates of the two datasets differ
    result = run(clean, tmp_path / "skipping", *keys)
    assert result.skipped_steps == [1, 5, 6, 12]
    without(clean, [0, 4, 5, 11])
    result = run(clean, tmp_path / "shorter", *keys)
    assert result.skipped_steps == []
    assert final_bytes(tmp_path / "skipping") == final_bytes(tmp_path / "shorter")


def test_every_skipped_step_is_told_with_its_rows_and_columns(
    clean: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_value(clean, "i1", 5, float("nan"), shard=7)
    run(clean, tmp_path / "run")
    (skipped,) = events(tmp_path / "run", "skip")
    assert (skipped["step"], skipped["epoch"], skipped["columns"]) == (8, 0, ["i1"])
    assert skipped["rows"] == ["train/part-00007.parquet (row group 0)"]
    assert "step 8 (epoch 1) skipped" in caplog.text
    assert [event["step"] for event in events(tmp_path / "run", "train")] == [*range(1, 8), *range(9, 13)]
    assert "1 step skipped" in write_report(tmp_path / "run").read_text()


def test_a_run_cut_beside_a_skipped_step_goes_on_to_the_bit(clean: Path, tmp_path: Path) -> None:
    for batch in (3, 8):
        set_value(clean, "i1", 5, float("nan"), shard=batch)
    keys = ["optimizer=adam", "optimizer.dense.kind=adam"]
    run(clean, tmp_path / "whole", *keys)
    for cut in (3, 4):
        folder = tmp_path / f"cut-{cut}"
        run(clean, folder, *keys, f"trainer.max_steps={cut}")
        result = run(clean, folder, *keys, "resume=auto")
        assert result.skipped_steps == [4, 9]
        assert final_bytes(folder) == final_bytes(tmp_path / "whole")


def test_more_skipped_steps_than_allowed_end_the_run(clean: Path, tmp_path: Path) -> None:
    for batch in (2, 5, 6):
        set_value(clean, "i1", 5, float("nan"), shard=batch)
    keys = ["trainer.max_skipped=2", "checkpoint.every_steps=1"]
    with pytest.raises(DlrmError) as refusal:
        run(clean, tmp_path / "run", *keys)
    for words in ("3 steps were skipped", "the last at step 7", "trainer.max_skipped=2", "dense column i1"):
        assert words in str(refusal.value)
    assert max((tmp_path / "run" / "checkpoints").iterdir()).name == "step-000000006"


@pytest.mark.parametrize("mode", ["stop", "skip"])
def test_weights_that_are_no_numbers_end_the_run_and_are_never_saved(
    clean: Path, tmp_path: Path, mode: str
) -> None:
    """A finite loss whose update is none: too late to skip, so that skipping must not go on for ever either."""
    too_much = ["optimizer=sgd", "optimizer.dense.lr=1e38", "optimizer.dense.weight_decay=1e38"]
    keys = [f"data.path={clean}", *SMALL, *too_much, "checkpoint.every_steps=1", f"output={tmp_path}/run"]
    config = compose_config("train", TrainConfig, keys)
    config.trainer.on_nonfinite = mode
    with pytest.raises(
        DlrmError, match="step-000000001 is not saved, for what is not finite in it"
    ) as refusal:
        train(config)
    assert "dense_arch" in str(refusal.value)
    assert "The weights diverged" in str(refusal.value)
    assert not (tmp_path / "run" / "checkpoints").exists()
    config.checkpoint.every_steps, config.output = None, str(tmp_path / "later")
    with pytest.raises(DlrmError, match="diverged"):
        train(config)
    assert len(events(tmp_path / "later", "skip")) == (mode == "skip")


def test_a_model_that_no_longer_gives_numbers_is_not_skipped_for_ever(clean: Path, tmp_path: Path) -> None:
    """Weights so large that their products overflow, though they are finite themselves."""
    keys = ["optimizer=sgd", "optimizer.dense.lr=1e38", "trainer.max_skipped=3"]
    with pytest.raises(DlrmError, match="4 steps were skipped") as refusal:
        run(clean, tmp_path / "run", *keys)
    assert "its inputs are finite, so the weights diverged" in str(refusal.value)
    assert "optimizer.dense.lr (1e+38)" in str(refusal.value)
