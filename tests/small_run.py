"""A run that is small enough for a test: what it is asked for, and what it leaves in its folder."""

import json
from pathlib import Path
from typing import Any

from dlrm_app.config.evaluate import EvaluateConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.evaluation.evaluate_checkpoints import EvaluationResult, evaluate_checkpoints
from dlrm_app.reports.run_page import write_report
from dlrm_app.runs.events import RunResult
from dlrm_app.training.train import train
from tests.composed import compose_config

SMALL = [
    "experiment=null",
    "tables=dataset",
    "tables.embedding_dim=8",
    "model.bottom_mlp=[16]",
    "model.top_mlp=[16]",
    "trainer.global_batch_size=128",
    "trainer.log_every_steps=1",
    "data.lanes=8",
]
CLOCK = ("samples_per_second", "seconds", "step_ms", "time")


def small_config(*overrides: str) -> TrainConfig:
    """SMALL with ``overrides``, on one thread and without a report."""
    return compose_config(
        "train", TrainConfig, [*SMALL, "trainer.threads=1", "report.enabled=false", *overrides]
    )


def train_here(output: Path, *overrides: str) -> RunResult:
    """What ``dlrm-train`` does, in this process and on one thread."""
    return train(small_config(*overrides, f"output={output}"), write_report).result


def evaluate_here(*overrides: str) -> EvaluationResult:
    """What ``dlrm-evaluate`` does, in this process and on one thread."""
    return evaluate_checkpoints(compose_config("evaluate", EvaluateConfig, ["threads=1", *overrides]))


def events(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """All events, or those of ``kind``, without what a clock decides."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in event.items() if key not in CLOCK}
        for event in found
        if kind in (None, event["event"])
    ]


def losses(run: Path) -> list[float]:
    """Of every logged step."""
    return [event["loss"] for event in events(run, "train")]


def final_bytes(run: Path) -> dict[str, bytes]:
    """The last checkpoint's tensor files: every weight and optimizer state, bit for bit."""
    last = max((run / "checkpoints").glob("step-*"))
    return {path.name: path.read_bytes() for path in sorted(last.glob("*.tensors"))}
