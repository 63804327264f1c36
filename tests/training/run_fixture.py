"""A run folder as dlrm-train writes it, without training; and a reader of the report made from it."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

VOID = {"meta", "br", "link", "img", "input", "hr"}


def write_run(
    folder: Path, *, num_steps: int = 40, splits: tuple[str, ...] = ("val", "test"), finished: bool = True
) -> list[dict[str, Any]]:
    """Writes a run of ``num_steps`` log events with an evaluation every tenth; gives its events."""
    folder.mkdir(parents=True)
    events = list(make_events(num_steps, splits))
    lines = [json.dumps(event) for event in events]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n" if lines else "")
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"trainer": {"epochs": 1, "global_batch_size": 1}, "output": "<run> & more"})
    )
    write_json(folder / "environment.json", ENVIRONMENT)
    write_json(folder / "dataset.json", {**DATASET, "best": {"auc": 0.8, "logloss": 0.4}})
    write_json(folder / "curves.json", {split: curves_of(num_steps) for split in splits})
    if finished:
        result = {"steps": num_steps, "train_seconds": 12.5, "samples_per_second": 4321.5}
        write_json(folder / "result.json", result)
    return events


def make_events(num_steps: int, splits: tuple[str, ...]) -> Any:
    for step in range(1, num_steps + 1):
        lr = {"sparse": 0.01, "dense": 0.001}
        speed = 1000.0 + step
        yield {
            "event": "train",
            "epoch": 0,
            "step": step,
            "loss": 0.7 / step + 0.1,
            "samples_per_second": speed,
            "lr": lr,
            "time": 1.7e9 + step,
        }
        if "val" in splits and step % 10 == 0:
            yield evaluation("val", step)
    if "test" in splits:
        yield evaluation("test", num_steps)


def evaluation(split: str, step: int, auc: float | None = None) -> dict[str, Any]:
    score = 0.7 + 0.00123 * step if auc is None else auc
    place = {"split": split, "epoch": 0, "step": step, "time": 1.7e9 + step}
    numbers = {"auc": score, "logloss": 0.51234567, "ne": 0.87654321, "calibration": 1.01234567}
    counts = {"num_samples": 1000, "positives": 250, "seconds": 0.37}
    return {"event": "eval", **place, **numbers, **counts}


def curves_of(step: int) -> dict[str, Any]:
    return {
        "epoch": 0,
        "step": step,
        "num_samples": 1000,
        "roc": {
            "false_positive_rate": [0.0, 0.2, 1.0],
            "true_positive_rate": [0.0, 0.6, 1.0],
            "threshold": [0.9, 0.4, 0.1],
        },
        "reliability": {
            "low": [0.1, 0.2],
            "high": [0.2, 0.9],
            "count": [500, 500],
            "positives": [50, 200],
            "mean_prediction": [0.15, 0.45],
        },
    }


ENVIRONMENT = {
    "command": ["/opt/bin/dlrm-train", "data.path=clicks", "model.top_mlp=[16]", "output=run"],
    "folder": "/home/me",
    "started": "2026-01-02T03:04:05+0000",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0"},
    "machine": {"system": "Linux", "cores": 8},
    "device": "cpu",
    "world_size": 2,
    "threads_per_rank": 4,
}
DATASET = {
    "dataset": "criteo_kaggle",
    "path": "clicks",
    "fingerprint": "0123456789abcdef",
    "num_dense": 13,
    "splits": {
        "train": {"rows": 8000, "positives": 2000, "rejects": 3, "bytes": 123456},
        "test": {"rows": 1000, "positives": None, "rejects": 0, "bytes": 999},
    },
    "sparse": [{"name": "a", "num_embeddings": 100}],
    "best": None,
}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@dataclass
class Report:
    """What a page shows: its text, that of tiles and cells of tables, hover texts, tags left open."""

    text: str = ""
    numbers: list[str] = field(default_factory=list)
    tips: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    num_charts: int = 0


def read_report(path: Path) -> Report:
    """Parses the page; every tag must be closed by its own end."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open_tags == []
    return reader.report


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.report = Report()
        self.open_tags: list[str] = []
        self._is_number = False

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self.open_tags.append(tag)

    def _note(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.report.addresses += [v for k in ("src", "href", "action") if (v := attributes.get(k))]
        self.report.num_charts += tag == "svg"
        if tip := attributes.get("data-tip"):
            self.report.tips.append(tip)
        self._is_number = tag == "td" or attributes.get("class") == "value"

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open_tags or "script" in self.open_tags:
            return
        self.report.text += data
        if self._is_number:
            self.report.numbers.append(data)
            self._is_number = False
