"""Runs in Weights & Biases, offline, read back from the run's own file."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import TrainEvent
from dlrm_app.runs.tracking import Tracking, run_ids_in

BLOCK = 32 * 1024


def records(run: Path) -> Iterator[Any]:
    """The records that a run has written for the server."""
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb")):
        for data in logged(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record


def finished_records(run: Path) -> list[Any]:
    """All records, once the library's own process has written the last one."""
    for _ in range(200):
        found = list(records(run))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.1)
    raise TimeoutError("the file of the run does not end")


def logged(content: bytes) -> Iterator[bytes]:
    """The entries of a file in LevelDB's log format, behind a header of 7 bytes: blocks of 32 KiB with parts of entries,
    each with a checksum, its length and its kind (1 whole, 2 first, 3 middle, 4 last).
    """
    at, entry = 7, b""
    while at + 7 <= len(content):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left  # too short for a part
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        entry += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield entry
            entry = b""


@pytest.mark.slow
def test_a_run_is_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "shop" / "run"
    run.mkdir(parents=True)
    (run / "report.html").write_text("page")
    tracker = Tracking(["wandb"])
    tracker.begin(run, {"trainer": {"epochs": 2}}, {"path": "data", "fingerprint": "f00"}, 100)
    tracker.add(TrainEvent(0, 105, 0.5, 1000.0, {"sparse": 0.02}))
    tracker.add(Evaluation("val", 0, 107, {"auc": 0.75}))
    tracker.end([run / "report.html"], is_finished=True)
    history, begun, exit_codes = [], [], []
    for record in finished_records(run):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            history.append(
                {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
            )
        elif kind == "run":
            begun.append(record.run)
        elif kind == "exit":
            exit_codes.append(record.exit.exit_code)
    (first, *_) = begun
    assert (first.run_id, first.display_name, list(first.tags)) == (
        run_ids_in(run)["wandb"],
        "shop/run",
        ["resumed"],
    )
    config = {item.key: json.loads(item.value_json) for item in first.config.update}
    assert config["trainer.epochs"] == 2
    assert config["dlrm.dataset_fingerprint"] == "f00"
    train, val = history
    assert {key: train[key] for key in ("step", "train/loss", "train/lr/sparse")} == {
        "step": 105,
        "train/loss": 0.5,
        "train/lr/sparse": 0.02,
    }
    assert (val["step"], val["val/auc"]) == (107, 0.75)
    assert exit_codes == [0]
    assert (run / "wandb").is_dir()
