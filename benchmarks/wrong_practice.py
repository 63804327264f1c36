"""Attacks on sampled negatives, weights, several labels and lists with counts, in the manner of wrong_answers.py.

    python benchmarks/wrong_practice.py

The rows are of ``dlrm-generate``. Prints a table; exits with 1 if an answer is wrong.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from wrong_answers import attack, finish, must

NUM_ROWS, NUM_TRAIN = 20_000, 16_000
CLICK, ORDER, LAST, BOUGHT, COUNTS, WEIGHT = 0, *range(40, 45)
ENCODED = "encoding=vocab encoding.min_count=5 encoding.shared=[[item,last_items]]"
PREPROCESS = "dlrm-preprocess dataset=log.tsv.yaml"
TRAIN = "dlrm-train tables=dataset tables.pooling=attention trainer.calibrate=true"
Row = list[str]


def write_tsv(path: str, rows: Sequence[Row]) -> str:
    Path(path).write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def changed(rows: Sequence[Row], field: int, change: Callable[[Row], str], every: int = 1) -> list[Row]:
    """The rows, of which every so many have another value of ``field``."""
    return [
        [*row[:field], change(row), *row[field + 1 :]] if number % every == 0 else row
        for number, row in enumerate(rows)
    ]


def always(value: str) -> Callable[[Row], str]:
    return lambda row: value


def is_calibrated(run: str) -> bool:
    must(f"dlrm-evaluate checkpoint={run} split=val output={run}.json")
    (model,) = models_of(f"{run}.json")
    return bool(abs(model["metrics"]["calibration"] - 1) < 0.1)


def models_of(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["models"]
    return found


def attack_samples(rows: Sequence[Row]) -> None:
    """A log whose negatives were sampled before."""
    half = [row for number, row in enumerate(rows) if row[CLICK] == "1" or number % 2]
    path = write_tsv("half.tsv", half)
    line = f"{PREPROCESS} {ENCODED} dataset.negatives_kept={{train:0.5}} input.train={path}"
    must(f"{line} input.val=new.tsv sampling.negatives=0.5 output=quarter")
    attack(
        "sampled before, and again",
        f"{TRAIN} data.path=quarter output=of_quarter",
        lambda: is_calibrated("of_quarter"),
    )
    attack("val cut from a log of which train was sampled", f"{line} split.val=0.1 output=cut")
    shutil.copytree("run", "more")
    attack("sampled rows of the same log: resumed", f"{TRAIN} data.path=quarter resume=auto output=more")
    must("dlrm-predict model=of_quarter data.path=quarter split=train output=sampled.parquet")
    table = pq.read_table("sampled.parquet")
    lines = table.drop_columns(["shard", "row"]).add_column(0, "line", [np.arange(1, len(table) + 1)])
    pq.write_table(lines.add_column(0, "file", [["half.tsv"] * len(table)]), "lines.parquet")
    attack(
        "scores of a sampled split by line",
        "dlrm-evaluate scores=[lines.parquet] data.path=quarter split=train",
    )


def attack_weights(train: Sequence[Row], new: Sequence[Row]) -> None:
    """The same rows with weights of other rows, or with weights that are none."""
    known = f"{PREPROCESS} encoding=from_dataset encoding.path=base"
    for name, rows in (("train", train), ("val", new)):
        weights = [row[WEIGHT] for row in reversed(rows)]
        write_tsv(f"{name}_swapped.tsv", [[*row[:WEIGHT], w] for row, w in zip(rows, weights, strict=True)])
    must(f"{known} input.train=train_swapped.tsv input.val=val_swapped.tsv output=swapped")
    must(f"{TRAIN} data.path=swapped trainer.max_steps=20 output=of_swapped")
    line = "dlrm-evaluate checkpoint=run against=of_swapped split=val output=compared.json"
    whole = sum(float(row[WEIGHT]) for row in new)
    attack(
        "a model of other weights compared",
        line,
        lambda: np.allclose([model["metrics"]["weight"] for model in models_of("compared.json")], whole),
    )
    shutil.copytree("run", "heavier")
    attack("other weights: resumed", f"{TRAIN} data.path=swapped trainer.epochs=2 resume=auto output=heavier")
    for what, weight in (("negative", "-1"), ("NaN", "nan"), ("missing", ""), ("infinite", "1e999")):
        path = write_tsv(f"{what}.tsv", changed(train, WEIGHT, always(weight), 20))
        attack(f"{what} weights", f"{PREPROCESS} {ENCODED} input.train={path} output={what}")
    write_tsv("bare.tsv", [row[:WEIGHT] for row in new])
    must("dlrm-predict model=run input=new.tsv output=right.parquet")
    right = pq.read_table("right.parquet")["score"]
    line = "dlrm-predict model=run input=bare.tsv output=bare.parquet"
    attack(
        "predict: lines without a weight", line, lambda: pq.read_table("bare.parquet")["score"].equals(right)
    )


def attack_labels(train: Sequence[Row], new: Sequence[Row]) -> None:
    """A model of clicks and orders, and rows whose labels are in another order, or contradict each other."""
    files = "input.train=train.tsv input.val=new.tsv"
    must(f"{PREPROCESS} {ENCODED} dataset.labels=[order,click] {files} output=turned")
    shutil.copytree("run", "turned_run")
    for what, line in {
        "evaluated": "dlrm-evaluate checkpoint=run data.path=turned split=val",
        "predicted": "dlrm-predict model=run data.path=turned split=val output=turned.parquet",
        "warm start": f"{TRAIN} data.path=turned warm_start.checkpoint=run output=warm",
        "resumed": f"{TRAIN} data.path=turned resume=auto trainer.epochs=2 output=turned_run",
        "target columns": f"{PREPROCESS} dataset.labels=[order,click] encoding=from_dataset encoding.path=base "
        "input.val=new.tsv output=chained",
    }.items():
        attack(f"labels in another order: {what}", line)
    path = write_tsv("orders.tsv", changed(train, ORDER, always("1"), 50))
    attack("orders without a click", f"{PREPROCESS} {ENCODED} input.train={path} output=orders")
    path = write_tsv("twos.tsv", changed(train, ORDER, always("2"), 20))
    attack("an order of 2", f"{PREPROCESS} {ENCODED} input.train={path} output=twos")
    path = write_tsv("unknown.tsv", changed(new, ORDER, always("")))
    line = f"{PREPROCESS} encoding=from_dataset encoding.path=base input.val={path} output=unknown"
    must(line)
    attack(
        "no order known in val",
        "dlrm-evaluate checkpoint=run data.path=unknown split=val output=unknown.json",
        lambda: [each["metrics"]["auc"] for each in models_of("unknown.json")[0]["labels"]] == [None],
    )


def attack_lists(train: Sequence[Row]) -> None:
    """Counts that are not those of the list."""
    path = write_tsv("short.tsv", changed(train, COUNTS, lambda row: row[COUNTS][2:], 10))
    attack("a count less than items", f"{PREPROCESS} {ENCODED} input.train={path} output=short")
    path = write_tsv("signs.tsv", changed(train, COUNTS, lambda row: row[COUNTS].replace("1", "-1"), 10))
    attack("negative counts", f"{PREPROCESS} {ENCODED} input.train={path} output=signs")
    form = Path("log.tsv.yaml").read_text(encoding="utf-8")
    Path("other.yaml").write_text(
        form.replace("weights_of: bought", "weights_of: last_items"), encoding="utf-8"
    )
    keys = f"{ENCODED} input.train=train.tsv input.val=new.tsv"
    attack("counts of another list", f"dlrm-preprocess dataset=other.yaml {keys} output=other")
    Path("uncounted.yaml").write_text(
        form.replace("role: element_weights, weights_of: bought", "role: ignore"), encoding="utf-8"
    )
    known = "encoding=from_dataset encoding.path=base input.train=train.tsv input.val=new.tsv"
    attack("known ids, without counts", f"dlrm-preprocess dataset=uncounted.yaml {known} output=uncounted")
    must(f"dlrm-preprocess dataset=uncounted.yaml {keys} output=plain")
    attack(
        "a model of counts, rows without: evaluated", "dlrm-evaluate checkpoint=run data.path=plain split=val"
    )
    line = "dlrm-predict model=run data.path=plain split=val output=plain.parquet"
    attack("a model of counts, rows without: predicted", line)
    line = f"{TRAIN} data.path=plain warm_start.checkpoint=run output=uncounted_run"
    attack("a model of counts, rows without: warm start", line)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        given = "max_cardinality=500 orders.rate=0.3 weights=0.5 histories.length=5"
        must(f"dlrm-generate rows={NUM_ROWS} {given} output=log.tsv")
        lines = Path("log.tsv").read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        train, new = rows[:NUM_TRAIN], rows[NUM_TRAIN:]
        write_tsv("train.tsv", train)
        write_tsv("new.tsv", new)
        must(f"{PREPROCESS} {ENCODED} input.train=train.tsv input.val=new.tsv output=base")
        must(f"{TRAIN} data.path=base trainer.max_steps=100 output=run")
        print("| attack | what happened |\n|---|---|")
        attack_samples(train)
        attack_weights(train, new)
        attack_labels(train, new)
        attack_lists(train)
    sys.exit(finish())


if __name__ == "__main__":
    main()
