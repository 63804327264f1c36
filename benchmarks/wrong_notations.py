"""Attacks by values in another notation, open orders and numbers that a type cannot hold, as in wrong_answers.py.

    python benchmarks/wrong_notations.py

The rows are drawn here. Prints a table; exits with 1 if an answer is wrong.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from wrong_answers import attack, finish, must

ROWS, NEW = 8000, 1000
TRAIN = "dlrm-train tables=dataset experiment=null trainer.epochs=2"
HEAD = "name: log\ndelimiter: ','\nquote: '\"'\nheader: true\ncolumns:\n  - {name: click, role: label}\n"


def describe(path: str, *columns: str, labels: str = "") -> str:
    """Writes a dataset's description of a CSV file with a label and ``columns``."""
    text = HEAD + "".join(f"  - {{{column}}}\n" for column in columns)
    Path(path).write_text(text + (f"labels: {labels}\n" if labels else ""), encoding="utf-8")
    return path


def log(num_rows: int) -> pd.DataFrame:
    chance = np.random.default_rng(1)
    member = chance.random(num_rows) < 0.5
    city = np.where(chance.random(num_rows) < 0.05, np.nan, chance.integers(0, 40, num_rows) + 1000.0)
    lists = [[int(i) for i in chance.integers(1, 200, chance.integers(0, 6))] for _ in range(num_rows)]
    taste = [float(np.mean([i % 7 / 3 - 1 for i in each])) if each else -1.0 for each in lists]
    strength = 3.0 * member + np.nan_to_num(city - 1000, nan=20) / 20 + np.array(taste) - 3
    click = (chance.random(num_rows) < 1 / (1 + np.exp(-strength))).astype(int)
    return pd.DataFrame({"click": click, "member": member, "city": city, "seen": lists})


def as_text(frame: pd.DataFrame, padding: str = "") -> pd.DataFrame:
    """The rows as CSV has them; lists are filled up to 6 elements with ``padding``, if there is one."""
    lists = [[padding] * (6 - len(each)) * bool(padding) + [*map(str, each)] for each in frame["seen"]]
    return frame.assign(seen=["|".join(each) for each in lists])


def same_scores(path: str) -> bool:
    return pq.read_table(path)["score"].equals(pq.read_table("right.parquet")["score"])


def attack_notations(frame: pd.DataFrame) -> None:
    new = frame[-NEW:]
    forms = {"as text": as_text(new), "padded": as_text(new, "0")}
    for name, rows in {
        **forms,
        "TRUE": as_text(new.assign(member=new["member"].map({True: "TRUE", False: "FALSE"}))),
    }.items():
        rows.to_csv(f"{name}.csv".replace(" ", "_"), index=False)
    new.to_parquet("as_Parquet.parquet")
    new.assign(city=new["city"].astype("Int64"), seen=[np.array(each) for each in new["seen"]]).to_parquet(
        "whole.parquet"
    )
    must("dlrm-predict model=run input=as_text.csv output=right.parquet")
    for file in ("padded.csv", "TRUE.csv", "as_Parquet.parquet", "whole.parquet"):
        line = f"dlrm-predict model=run input={file} output={file}.scores.parquet"
        attack(f"another notation: {file}", line, lambda file=file: same_scores(f"{file}.scores.parquet"))
    as_text(new.assign(member=new["member"].map({True: "yes", False: "no"}))).to_csv("words.csv", index=False)
    attack("other words", "dlrm-predict model=run input=words.csv output=words.parquet")
    as_text(new.assign(seen=[each * 60 for each in new["seen"]])).to_csv("long.csv", index=False)
    attack("lists 60 times as long", "dlrm-predict model=run input=long.csv output=long.parquet")
    as_text(new.assign(city=np.nan)).to_csv("lost.csv", index=False)
    attack("a lost column", "dlrm-predict model=run input=lost.csv output=lost.parquet")
    known = "dlrm-preprocess dataset=log.yaml encoding=from_dataset encoding.path=data"
    attack("other words, preprocessed", f"{known} input.test=words.csv output=words")
    must("dlrm-export checkpoint=run format=torchscript output=export max_auc_loss=1 judgement=ignore")
    attack(
        "an export scores other words", "dlrm-predict model=export input=words.csv output=exported.parquet"
    )


def attack_orders(frame: pd.DataFrame) -> None:
    """Orders that are missing without a click, and that are still open in half of the clicked rows."""
    chance = np.random.default_rng(2)
    orders = frame["click"] * (chance.random(len(frame)) < 0.27)
    logs = {
        "zeros": orders,
        "missing": orders.where(frame["click"] == 1),
        "open": orders.where((frame["click"] == 0) | (chance.random(len(frame)) < 0.5)),
    }
    columns = "name: order, role: label", "name: member, role: sparse, kind: string"
    path = describe("orders.yaml", *columns, labels="[click, {order: {given: click}}]")
    for name, values in logs.items():
        rows = frame[["click", "member"]].assign(order=values.astype("Int64"))
        rows.to_csv(f"{name}.csv", index=False)
        must(
            f"dlrm-preprocess dataset={path} input.train={name}.csv split.val=.125 split.test=.125 output={name}"
        )
        must(f"{TRAIN} data.path={name} output={name}_run trainer.epochs=4 trainer.calibrate=true")
        line = f"dlrm-predict model={name}_run input=zeros.csv output={name}.parquet"

        def is_right(name: str = name) -> bool:
            found, expected = (
                pq.read_table(f"{each}.parquet")["score_order"].to_numpy().mean() for each in (name, "zeros")
            )
            return bool(abs(found / expected - 1) < 0.1)

        attack(f"orders: {name}", line, is_right)


def attack_types() -> None:
    vectors = np.random.default_rng(3).normal(0, 0.1, (2, 8)).tolist()
    vectors[1][0] = 1e5
    pd.DataFrame({"value": ["true", "false"], "vector": vectors}).to_parquet("vectors.parquet")
    table = "{name: t, rows: 10, features: [member], init_from: vectors.parquet}"
    Path("tables.yaml").write_text(f"embedding_dim: 8\nspecs:\n  - {table}\n", encoding="utf-8")
    must("dlrm-train tables=tables.yaml experiment=null data.path=zeros output=large trainer.max_steps=1")
    line = "dlrm-export checkpoint=large format=torchscript judgement=ignore max_auc_loss=1"
    attack("a vector of 1e5 in fp16", f"{line} quantize=fp16 output=fp16")
    rows = pd.DataFrame({"click": [0, 1] * 500, "id": [9007199254740993.0, 5.5] * 500})
    rows.to_parquet("floats.parquet")
    path = describe("floats.yaml", "name: id, role: sparse, kind: integer")
    attack(
        "ids of floats beyond 2^53",
        f"dlrm-preprocess dataset={path} input.train=floats.parquet output=floats",
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        frame = log(ROWS)
        columns = ["name: member, role: sparse, kind: string", "name: city, role: sparse, kind: integer"]
        seen = "name: seen, role: sparse, kind: integer, separator: '|', padding: '0'"
        describe("log.yaml", *columns, seen)
        as_text(frame, "0").to_csv("log.csv", index=False)
        keys = "encoding=vocab encoding.min_count=1 split.val=0.1 split.test=0.1"
        must(f"dlrm-preprocess dataset=log.yaml input.train=log.csv {keys} output=data")
        must(f"{TRAIN} data.path=data output=run")
        result = json.loads(Path("run", "result.json").read_text(encoding="utf-8"))["evals"]["test"]
        print(f"AUC on test {result['auc']:.4f}\n\n| attack | what happened |\n|---|---|")
        attack_notations(frame)
        attack_orders(log(3 * ROWS))
        attack_types()
    sys.exit(finish())


if __name__ == "__main__":
    main()
