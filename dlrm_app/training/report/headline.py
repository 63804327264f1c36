"""The numbers that a run is judged by, large, and every evaluation as a table."""

import math
from html import escape
from typing import Any

from dlrm_app.display.duration import format_duration
from dlrm_app.display.html_table import table
from dlrm_app.display.numbers import NONE, data, fixed, short
from dlrm_app.training.report.run_record import Event, RunRecord

METRICS = {"auc": ("AUC", 5), "logloss": ("log loss", 5), "ne": ("NE", 4), "calibration": ("calibration", 4)}
PLACES = ("event", "split", "epoch", "step", "time")
MAX_EVALS = 60


def headline(record: RunRecord) -> str:
    """Tiles: metrics of the last evaluation on test (or val), throughput, time, steps."""
    event = record.main_eval
    best = record.dataset.get("best") or {}
    tiles = []
    if event:
        for key, (name, decimals) in METRICS.items():
            remark = f"best reachable {best[key]:.{decimals}f}" if key in best else _remark(key)
            value = event.get(key)
            tiles.append(_tile(f"{event['split']} {name}", data(value, fixed(value, decimals)), remark))
        tiles += _best_tile(record)
    return f'<div class="tiles">{"".join([*tiles, *_cost_tiles(record)])}</div>'


def _best_tile(record: RunRecord) -> list[str]:
    """The highest AUC on val, where there were several evaluations and it was not the last."""
    val = [event for event in record.of_kind("eval") if event["split"] == "val"]
    best = max(val, key=lambda event: -1.0 if math.isnan(event["auc"]) else event["auc"], default=None)
    if best is None or best is val[-1]:
        return []
    return [_tile("best val AUC", data(best["auc"], fixed(best["auc"], 5)), f"after step {best['step']:,}")]


def _cost_tiles(record: RunRecord) -> list[str]:
    tiles = []
    train = record.of_kind("train")
    if record.result:
        speed, seconds = record.result["samples_per_second"], record.result["train_seconds"]
        tiles.append(_tile("throughput", data(speed, short(speed)), "samples/s of training"))
        tiles.append(
            _tile("training time", data(seconds, format_duration(seconds)), _wall_time(record.result))
        )
    elif train:
        speed = train[-1]["samples_per_second"]
        tiles.append(_tile("throughput", data(speed, short(speed)), "samples/s of the last steps"))
    if record.last_step:
        loss = train[-1]["loss"] if train else None
        remark = f"last training loss {fixed(loss, 5)}" if train else ""
        if skipped := len(record.of_kind("skip")):
            remark = f"{skipped:,} step{'s' * (skipped != 1)} skipped; {remark}"
        tiles.append(_tile("steps", data(record.last_step, f"{record.last_step:,}"), remark))
    return tiles


def _wall_time(result: dict[str, Any]) -> str:
    seconds = result.get("wall_seconds")
    return f"the last start took {format_duration(seconds)} in all" if seconds else ""


def _remark(key: str) -> str:
    return {
        "auc": "0.5 is chance",
        "logloss": "nats a row",
        "ne": "1 is the mean rate alone",
        "calibration": "predicted over observed clicks",
    }[key]


def _tile(name: str, value: str, remark: str) -> str:
    return (
        f'<div class="tile"><h3>{escape(name)}</h3><p class="value">{value}</p><p>{escape(remark)}</p></div>'
    )


def evaluations(record: RunRecord) -> str:
    """All evaluations, the latest MAX_EVALS of them where there are more, with every number they have."""
    events = record.of_kind("eval")
    if not events:
        return ""
    shown = events[-MAX_EVALS:]
    known = {**METRICS, "num_samples": ("rows", 0), "positives": ("positives", 0), "seconds": ("seconds", 2)}
    others = {
        key: (key.replace("_", " "), 5)
        for event in shown
        for key, value in event.items()
        if key not in known and key not in PLACES and _is_number(value)
    }
    columns = {**known, **others}
    rows = [
        [
            f"{escape(event['split'])}, step {event['step']:,}",
            *(_number(event, key, decimals) for key, (_, decimals) in columns.items()),
        ]
        for event in shown
    ]
    left_out = f"<p>The last {MAX_EVALS} of {len(events)}.</p>" if len(events) > MAX_EVALS else ""
    return f"<h2>Evaluations</h2>{left_out}{table(['split', *(name for name, _ in columns.values())], rows)}"


def _number(event: Event, key: str, decimals: int) -> str:
    value = event.get(key)
    return data(value, fixed(value, decimals)) if _is_number(value) else NONE


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not (isinstance(value, float) and math.isinf(value))
    )


def status(record: RunRecord) -> str:
    """One sentence: how far the run has come, and on what."""
    environment = record.environment
    ranks = environment.get("world_size", 1)
    device = environment.get("device", "an unknown device")
    where = f"{ranks} rank{'s' * (ranks != 1)} on {device}"
    started = str(environment.get("started", ""))[:16].replace("T", " ")
    begun = f", started {started}" if started else ""
    if record.result:
        return f"Finished after {record.last_step:,} step{'s' * (record.last_step != 1)}; {where}{begun}."
    return f"Not finished: the last event is of step {record.last_step:,}; {where}{begun}."
