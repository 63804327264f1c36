"""Attacks that could give a wrong answer without a word, on real rows, by the commands as one types them.

    python benchmarks/wrong_answers.py FOLDER

FOLDER holds lines of Criteo Kaggle's train.txt as ``kaggle*.tsv``; 10,000 are used. An attack must be refused, warned
of, or get the right answer: the scores or metrics without it. Prints a table; exits with 1 if an answer is wrong.
``wrong_practice.py`` has more, on weights, labels and lists; ``wrong_notations.py`` on values in another notation.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS, NUM_TRAIN = 10_000, 8_000
NAMES = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]
ROLES = {"lab": "label", "int": "dense, kind: integer", "cat": "sparse, kind: hex"}
WARNINGS = (
    "warning:",
    "are training rows",
    "are copies of others",
    "differ from the rows that the model was validated on",
)
WRONG = "WRONG"
HELD = 3
"""The exit code of dlrm-days for a day that is held back."""
NEW = "input.train=train.csv encoding=vocab encoding.min_count=2 dense.target_columns=all"
results: list[tuple[str, str]] = []


def command(line: str) -> subprocess.CompletedProcess[str]:
    """Runs one of this environment's commands."""
    path = Path(sys.executable).with_name(line.split()[0])
    return subprocess.run([path, *line.split()[1:]], capture_output=True, text=True, check=False)


def must(line: str) -> None:
    assert not (done := command(line)).returncode, f"{line}\n{done.stderr}"


def attack(what: str, line: str, is_right: Callable[[], bool] = lambda: False) -> None:
    """Runs the command and notes what happened; ``is_right`` looks at what it leaves, if there is a right answer."""
    done = command(line)
    said = done.stderr.partition("error: ")[2].removeprefix("1 problem in the configuration:\n  - ").strip()
    said = re.sub(r":\n  - ", ": ", re.sub(r"^\d problems .*:\n  - ", "", said)).partition("\n")[0]
    shown = f"{done.stdout}\n{done.stderr}".splitlines()
    warnings = [text for text in shown if any(mark in text for mark in WARNINGS)]
    held = re.search(r"held back: (.*?);", done.stderr)
    if done.returncode == HELD and held:
        outcome = f"held back: {held[1]}"
    elif done.returncode:
        is_refused = said and "Traceback (most recent call last)" not in done.stderr
        outcome = f"refused: {said}" if is_refused else f"{WRONG}: {done.stderr[-100:]!r}"
    else:
        warned = f"warned: {warnings[0].removeprefix('warning: ')}" if warnings else WRONG
        outcome = "right answer" if is_right() else warned
    results.append((what, outcome if len(outcome) <= 150 else f"{outcome[:150]}…"))
    print("| {} | {} |".format(*results[-1]), flush=True)


def write_csv(path: str, rows: Sequence[Sequence[str]], names: Sequence[str] = NAMES, begin: str = "") -> str:
    lines = [*([names] if names else []), *rows]
    Path(path).write_text(begin + "".join(",".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_tables(path: str, features: dict[int, str]) -> None:
    """Tables of 5,000 rows each, t_0 and so on, by the features that they read."""
    specs = (f"  - {{name: t_{i}, rows: 5000, features: [{reads}]}}\n" for i, reads in features.items())
    Path(path).write_text(f"embedding_dim: 16\nspecs:\n{''.join(specs)}", encoding="utf-8")


def scores_are(expected: pa.Table, path: str, first_line: int) -> bool:
    """True if every row of the file has the score that it should, and its line, counted from ``first_line``."""
    scored, lines = pq.read_table(path), range(first_line, first_line + len(expected))
    return scored["line"].to_pylist() == [*lines] and np.allclose(scored["score"], expected["score"])


def last_metrics(run: str) -> list[float]:
    metrics = json.loads(Path(run, "result.json").read_text(encoding="utf-8"))["evals"]["val"]
    return [metrics[key] for key in ("auc", "logloss", "calibration")]


def attack_raw_rows(rows: Sequence[Sequence[str]]) -> None:
    new = rows[NUM_TRAIN:]
    must("dlrm-predict model=run input=new.csv output=right.parquet")
    right = pq.read_table("right.parquet")
    files = {
        "columns in another order": write_csv("turned.csv", [row[::-1] for row in new], NAMES[::-1]),
        "unlabelled, without header": write_csv("bare.csv", [row[1:] for row in new], ()),
        "labelled, without header": write_csv("no_header.csv", new, ()),
        "byte order mark": write_csv("mark.csv", new, begin="\ufeff"),
        "names in upper case": write_csv("upper.csv", new, [name.upper() for name in NAMES]),
        "a name twice": write_csv("twice.csv", new, [*NAMES[:-1], NAMES[-2]]),
    }
    for what, path in files.items():
        line = f"dlrm-predict model=run input={path} output={path}.parquet"
        attack(f"predict: {what}", line, lambda path=path: scores_are(right, f"{path}.parquet", 2))
    values = {name: pa.array([row[i] or None for row in new]) for i, name in enumerate(NAMES)}
    columns = {n: v if n[:3] == "cat" else v.cast(pa.int64()) for n, v in values.items()}
    for what, names in (("in order", NAMES), ("columns in another order", NAMES[::-1])):
        pq.write_table(pa.table(columns).select(names), "new.parquet", row_group_size=700)
        line = f"dlrm-predict model=run input=new.parquet output={(path := f'of_{names[0]}.parquet')}"
        attack(f"line of Parquet rows, {what}", line, lambda path=path: scores_are(right, path, 1))
    attack("raw training rows scored", "dlrm-predict model=run input=train.csv output=own.parquet")
    for share in (0.05, 0.4):
        mixed = [*rows[: int(len(new) * share)], *new[int(len(new) * share) :]]
        write_csv("mixed.csv", mixed)
        line = f"dlrm-predict model=run input=mixed.csv output=mixed_{share}.parquet"
        attack(f"raw rows scored, {share:.0%} of them training rows", line)
        write_csv("mixed.csv", [row[1:] for row in mixed], NAMES[1:])
        attack(f"the same, {share:.0%}, without labels", line.replace("mixed_", "bare_"))
    line = "dlrm-train data.path=base distillation.scores=own.parquet output=taught"
    attack("distillation.scores of raw training rows", line)


def attack_tables(features: dict[int, str]) -> None:
    shutil.copytree("run", "resumed")
    resume = "trainer.epochs=2 resume=auto"
    still = "warm_start.checkpoint=run optimizer.sparse.lr=1e-30 optimizer.dense.lr=1e-30"
    must(f"dlrm-train data.path=base tables=tables.yaml {resume} output=resumed")
    write_tables("turned.yaml", dict(reversed(features.items())))
    write_tables("swapped.yaml", {**features, 3: "cat_5", 5: "cat_3"})
    for what, tables in (("tables in another order", "turned"), ("features swapped", "swapped")):
        shutil.copytree("run", f"resumed_{tables}")
        for act, keys, like in (("warm", still, "run"), ("resumed", resume, "resumed")):
            run = f"{act}_{tables}"
            line = f"dlrm-train data.path=base tables={tables}.yaml {keys} output={run}"
            attack(f"{act}, {what}", line, lambda a=run, b=like: last_metrics(a) == last_metrics(b))
    write_tables("shared.yaml", {i: name for i, name in {**features, 3: "cat_3, cat_5"}.items() if i != 5})
    attack("two vocabularies in one table", "dlrm-train data.path=base tables=shared.yaml output=shared")


def attack_encoding_files() -> None:
    target, vocab = "target/cat_2.parquet", "vocab/cat_2.parquet"
    clicks, values = (pq.read_table(f"base/{name}") for name in (target, vocab))
    at, odds = clicks.column_names.index("log_odds"), clicks["log_odds"].to_numpy()
    damages = {
        "altered target values": (target, clicks.set_column(at, "log_odds", pa.array(-odds))),
        "NaN target values": (target, clicks.set_column(at, "log_odds", pa.array(odds * np.float32("nan")))),
        "short target": (target, clicks.slice(0, len(odds) // 2)),
        "missing target": (target, None),
        "reversed vocab": (vocab, values.take(np.arange(len(values))[::-1])),
        "short vocab": (vocab, values.slice(0, len(values) // 2)),
        "missing vocab": (vocab, None),
    }
    for number, (what, (name, damaged)) in enumerate(damages.items()):
        whole = shutil.move(f"base/{name}", "whole")
        if damaged is not None:
            pq.write_table(damaged, f"base/{name}")
        attack(f"{what}: predict", f"dlrm-predict model=run input=new.csv output=d{number}.parquet")
        keys = "dataset=log.yaml input.train=new.csv encoding=from_dataset encoding.path=base"
        attack(f"{what}: preprocess", f"dlrm-preprocess {keys} output=d{number}")
        attack(f"{what}: export", f"dlrm-export checkpoint=run split=val output=e{number}")
        attack(f"{what}: check", "dlrm-check data.path=base")
        shutil.move(whole, f"base/{name}")


def attack_training_files(rows: Sequence[Sequence[str]]) -> None:
    files = [write_csv("copy.csv", rows[:NUM_TRAIN]), "copy.csv.gz", write_csv("less.csv", rows[1:NUM_TRAIN])]
    Path(files[1]).write_bytes(gzip.compress(Path(files[0]).read_bytes()))
    known = "encoding=from_dataset encoding.path=base"
    for number, path in enumerate([*files, write_csv("half.csv", rows[: NUM_TRAIN // 2])]):
        line = f"dlrm-preprocess dataset=log.yaml output=again{number}"
        attack(f"{path} as val beside train", f"{line}a {NEW} input.val={path}")
        attack(f"{path} as train, from_dataset", f"{line}b {known} input.train={path} input.val=new.csv")
        attack(f"{path} as val, from_dataset", f"{line}c {known} input.val={path}")


def attack_copies(rows: Sequence[Sequence[str]]) -> None:
    twice = [*rows[:NUM_TRAIN], *rows[: NUM_TRAIN * 3 // 10]]
    write_csv("twice_rows.csv", twice)
    keys = NEW.replace("train.csv", "twice_rows.csv")
    attack("30% of the rows twice", f"dlrm-preprocess dataset=log.yaml {keys} input.val=new.csv output=twice")


def attack_days(rows: Sequence[Sequence[str]]) -> None:
    """Three good days of real rows, which must be published, and a fourth that is damaged."""
    size = NUM_ROWS // 4
    days = [[*rows[number * size : (number + 1) * size]] for number in range(4)]
    folders = [Path(f"days/dt=2026-11-0{number}") for number in (1, 2, 3, 4)]
    for folder in folders:
        folder.mkdir(parents=True)

    def write(number: int, day: Sequence[Sequence[str]]) -> None:
        write_csv(f"{folders[number]}/clicks.csv", day)

    def go(last: int, output: str) -> str:
        window = f"days.from=2026-11-01 days.to=2026-11-0{last}"
        return f"dlrm-days input.days=days/dt={{day}}/* dataset=log.yaml output={output} {window}"

    for number in range(3):
        write(number, days[number])
    must(go(3, "alive"))
    lost = [[("0" if n % 10 < 7 else row[0]), *row[1:]] for n, row in enumerate(days[3])]
    null = [[*row[:20], "", "", *row[22:]] for row in days[3]]
    dear = [[*row[:5], row[5] and f"{100 * int(row[5])}", *row[6:]] for row in days[3]]
    damages = {"70% of the clicks lost": lost, "two columns null": null, "a number x 100": dear}
    again = {"the day before delivered again": days[2], "its own rows delivered twice": days[3] * 2}
    for what, day in {**damages, **again}.items():
        write(3, day)
        output = f"of_{what.split()[-1]}"
        shutil.copytree("alive", output, symlinks=True)
        attack(f"days: {what}", go(4, output))
    write(3, days[3])
    shutil.copytree("alive", "good", symlinks=True)
    attack("days: a good day", go(4, "good"), lambda: Path("good/published").resolve().name == "2026-11-04")
    write(2, [[*row[:5], row[5] and f"{100 * int(row[5])}", *row[6:]] for row in days[2]])
    must(f"{go(3, 'odd')} days.accept=[2026-11-03]")
    line = go(4, "odd")
    attack(
        "days: a good day after an odd one",
        line,
        lambda: Path("odd/published").resolve().name == "2026-11-04",
    )
    write(2, days[2])
    hashed = f"{go(2, 'hashed')} preprocess.encoding=hash"
    attack("days: hashed ids", hashed, lambda: Path("hashed/published").resolve().name == "2026-11-02")
    for number in (0, 1):
        mixed = np.random.default_rng(number).permutation(size)
        write(number, [[days[number][i][0], *row[1:]] for i, row in zip(mixed, days[number], strict=True)])
    attack("days: labels shuffled on every day", go(2, "noise"))


def is_calibrated(run: str) -> bool:
    must(f"dlrm-evaluate checkpoint={run} split=train output={run}.json")
    result = json.loads(Path(f"{run}.json").read_text(encoding="utf-8"))
    return bool(abs(result["models"][0]["metrics"]["calibration"] - 1) < 0.01)


def attack_calibration() -> None:
    for run, end in (("c0", "evaluation.patience=1"), ("c1", "evaluation.target_auc=0.6")):
        keys = f"trainer.calibrate=true trainer.epochs=6 evaluation.every_steps=50 {end}"
        line = f"dlrm-train data.path=base {keys} output={run}"
        attack(f"calibrate, {end}", line, lambda run=run: is_calibrated(run))


def attack_labels(rows: Sequence[Sequence[str]], form: str) -> None:
    """A model of clicks, and datasets of the same rows whose label is another column."""
    names = [*NAMES, "order"]
    for path, some in (("labels.csv", rows[:NUM_TRAIN]), ("later.csv", rows[NUM_TRAIN:])):
        write_csv(path, [[*row, str(int(row[0] == "1" and len(row[1]) % 2))] for row in some], names)
    Path("labels.yaml").write_text(f"{form}  - {{name: order, role: label}}\n", encoding="utf-8")
    keys = "dlrm-preprocess dataset=labels.yaml encoding=vocab"
    for label in ("label", "order"):
        line = f"{keys} dataset.label={label} dense.target_columns=all input.train=labels.csv input.val=later.csv"
        must(f"{line} output={label}_all")
    must(
        "dlrm-preprocess dataset=labels.yaml dataset.label=label input.unlabelled=[test] input.test=later.csv "
        "encoding=from_dataset encoding.path=label_all output=bare_all"
    )
    tables = "tables=dataset trainer.max_steps=20"
    must(f"dlrm-train data.path=label_all {tables} output=of_clicks")
    for what, line in {
        "evaluated": "dlrm-evaluate checkpoint=of_clicks split=val data.path=order_all",
        "predicted": "dlrm-predict model=of_clicks split=val data.path=order_all output=orders.parquet",
        "warm start": f"dlrm-train warm_start.checkpoint=of_clicks {tables} data.path=order_all output=warm_orders",
        "resumed": f"dlrm-train resume=auto {tables} data.path=order_all output=of_clicks",
        "target columns": "dlrm-preprocess dataset=labels.yaml dataset.label=order encoding=from_dataset "
        "encoding.path=label_all input.val=later.csv output=mixed",
        "target columns through rows without labels": "dlrm-preprocess dataset=labels.yaml dataset.label=order "
        "encoding=from_dataset encoding.path=bare_all input.val=later.csv output=chained",
    }.items():
        attack(f"a model of clicks, rows of orders: {what}", line)


def attack_ranks() -> None:
    """Tables whose rows do not reach for every rank, of several widths, by one rank and by four."""
    must(
        "dlrm-preprocess dataset=log.yaml input.train=train.csv input.val=new.csv encoding=hash "
        "encoding.num_embeddings=5 dense.bucket_columns=null dense.target_columns=null output=few"
    )
    specs = "".join(
        f"  - {{name: t_{n}, rows: 5, dim: {8 * (n % 3 + 1)}, features: [cat_{n}]}}\n" for n in range(26)
    )
    Path("few.yaml").write_text(f"embedding_dim: 8\nspecs:\n{specs}", encoding="utf-8")
    keys = (
        "data.path=few tables=few.yaml experiment=null model=concat model.top_mlp=[16,1] trainer.max_steps=20"
    )
    keys += " trainer.global_batch_size=256 optimizer=sgd optimizer.sparse.lr=30 sharding.types=[row_wise]"
    must(f"dlrm-train {keys} output=one")

    def is_like_one() -> bool:
        return bool(np.allclose(last_metrics("four"), last_metrics("one"), rtol=1e-4))

    line = f"torchrun --standalone --nproc-per-node 4 -m dlrm_app.cli train {keys} output=four"
    attack("tables of 5 rows on 4 ranks, row_wise", line, is_like_one)


def judged(line: str, run: str) -> str:
    """Trains, and gives the verdict on val with the first cause."""
    done = command(f"{line} output={run}")
    if done.returncode:
        return done.stderr.partition("error: ")[2].partition("next:")[0].replace("\n", " ")
    result = json.loads(Path(run, "result.json").read_text(encoding="utf-8"))
    judgement = result["evals"]["val"]["judgement"]
    return ", ".join([judgement["verdict"], *(cause["name"] for cause in judgement["causes"][:1])])


def attack_learning(rows: Sequence[Sequence[str]]) -> None:
    """Runs that learn nothing, or too much, on rows of which four columns are learnt."""
    names = ["label", "int_0", "int_2", "cat_1", "cat_2"]
    at = [NAMES.index(name) for name in names]
    columns = "".join(f"\n  - {{name: {name}, role: {ROLES[name[:3]]}}}" for name in names)
    head = 'name: few\ndelimiter: ","\nheader: true\ncolumns:'
    Path("few.yaml").write_text(f"{head}{columns}\n", encoding="utf-8")
    few = [[row[i] for i in at] for row in rows]
    labels = [row[0] for row in few]
    mixed = [labels[i] for i in np.random.default_rng(0).permutation(len(labels))]
    plain = "dense.transform=log1p dense.bucket_columns=null dense.target_columns=null encoding.crosses=null"
    hashed, raw = "encoding=hash encoding.num_embeddings=20000", plain.replace("log1p", "none")
    small = "experiment=null tables=dataset trainer.global_batch_size=128 optimizer.sparse.lr=0.05"
    sgd = "optimizer=sgd optimizer.sparse.lr=15 optimizer.dense.kind=sgd optimizer.dense.lr=15"
    adam = "optimizer.sparse.kind=adam optimizer.sparse.lr=1 optimizer.dense.kind=adam optimizer.dense.lr=1"

    def relabelled(new: Sequence[str]) -> list[list[str]]:
        return [[label, *row[1:]] for label, row in zip(new, few, strict=True)]

    inverted = [*labels[:NUM_TRAIN], *(str(1 - int(label)) for label in labels[NUM_TRAIN:])]
    leaked = [[row[0], str(1000 * int(row[0])), *row[2:]] for row in few]
    large = [[*row[:2], str(10**9 * int(row[2] or 0)), *row[3:]] for row in few]
    cases = {
        "as it is": (few, plain, hashed, "", "learnt"),
        "labels shuffled": (
            relabelled(mixed),
            plain,
            hashed,
            "",
            "no better than a constant, labels shuffled",
        ),
        "labels of val inverted": (relabelled(inverted), plain, hashed, "", "inverted"),
        "train labels of one class": (
            relabelled(["0"] * NUM_TRAIN + labels[NUM_TRAIN:]),
            plain,
            hashed,
            "",
            "labels constant",
        ),
        "SGD at rate 15": (few, plain, hashed, sgd, "the weights diverged"),
        "Adam at rate 1": (few, plain, hashed, adam, "learning rate too high"),
        "one step": (few, plain, hashed, "trainer.max_steps=1 optimizer.dense.lr=1e-5", "too few steps"),
        "a leaked outcome": (leaked, plain, hashed, "trainer.epochs=3", "too good, leaked column"),
        "a dense column of scale 1e9": (large, raw, hashed, "", "scale of a dense column"),
    }
    for number, (what, (data, dense, encoding, keys, expected)) in enumerate(cases.items()):
        train = write_csv(f"few{number}.csv", data[:NUM_TRAIN], names)
        val = write_csv(f"few{number}v.csv", data[NUM_TRAIN:], names)
        must(
            f"dlrm-preprocess dataset=few.yaml input.train={train} input.val={val} {dense} {encoding} "
            f"output=few{number}"
        )
        found = judged(f"dlrm-train data.path=few{number} {small} {keys}", f"learnt{number}")
        outcome = f"said: {found[:150]}" if expected in found else f"{WRONG}: {found}, not {expected}"
        results.append((f"judgement, {what}", outcome))
        print("| {} | {} |".format(*results[-1]), flush=True)
        if Path(f"learnt{number}", "result.json").is_file() and expected != "learnt":
            line = f"dlrm-export checkpoint=learnt{number} split=val output=export{number}"
            attack(f"export, {what}", line)


def attack_scores() -> None:
    """Scores of other rows, without labels."""
    must("dlrm-predict model=run data.path=base split=val output=s.parquet")
    must("dlrm-predict model=run data.path=base split=train output=t.parquet")
    own, train = (pq.read_table(path).drop_columns(["label"]) for path in ("s.parquet", "t.parquet"))
    half = len(own) // 2
    files = {
        "of train": train.slice(0, len(own)),
        "of one half, twice": pa.concat_tables([own.slice(0, half)] * 2),
        "with a row twice": pa.concat_tables([own.slice(0, len(own) - 1), own.slice(0, 1)]),
    }
    for number, (what, table) in enumerate(files.items()):
        pq.write_table(table, f"s{number}.parquet")
        line = f"dlrm-evaluate scores=[s{number}.parquet] data.path=base split=val"
        attack(f"scores {what}, without labels", line)
    must("dlrm-predict model=run input=train.csv output=l.parquet")
    lines = pq.read_table("l.parquet").drop_columns(["label"]).slice(0, len(own))
    pq.write_table(lines, "lines.parquet")
    line = "dlrm-evaluate scores=[lines.parquet] data.path=base split=val"
    attack("scores of other lines, without labels", line)
    attack("scores by shard and by line, without a dataset", "dlrm-evaluate scores=[s.parquet,lines.parquet]")
    known = "dlrm-preprocess dataset=log.yaml encoding=from_dataset encoding.path=base"
    must(f"{known} input.train=new.csv split.val=0.3 split.by=content output=dealt")
    must("dlrm-predict model=run input=new.csv output=new_lines.parquet")
    every = pq.read_table("new_lines.parquet").drop_columns(["label"])
    num_val = json.loads(Path("dealt/manifest.json").read_text(encoding="utf-8"))["splits"]["val"]["rows"]
    pq.write_table(every.slice(len(every) - num_val), "last.parquet")
    line = "dlrm-evaluate scores=[last.parquet] data.path=dealt split=val"
    attack("scores of the last lines, rows dealt by content", line)


def attack_groups(rows: Sequence[Sequence[str]]) -> None:
    """GAUC by a column whose values are hashed or rare."""
    for kind, encoding in (
        ("hashed", "hash encoding.num_embeddings=500"),
        ("rare", "vocab encoding.min_count=20"),
    ):
        keys = f"input.train=train.csv input.val=new.csv encoding={encoding}"
        for keep in ("", "keep=[cat_2]"):
            data = f"group_{kind}{bool(keep):d}"
            must(f"dlrm-preprocess dataset=log.yaml {keys} {keep} output={data}")
            small = "experiment=null tables=dataset trainer.global_batch_size=128 evaluation.group_by=cat_2"
            attack(
                f"GAUC by {kind} values" + ", kept" * bool(keep),
                f"dlrm-train data.path={data} {small} output={data}_run",
                lambda data=data: is_true_gauc(data, [row[NAMES.index("cat_2")] for row in rows[NUM_TRAIN:]]),
            )


def is_true_gauc(data: str, groups: Sequence[str]) -> bool:
    """True if the run's GAUC is that of its scores by the raw values ``groups``."""
    must(f"dlrm-predict model={data}_run data.path={data} split=val output={data}.parquet")
    scored = pq.read_table(f"{data}.parquet")
    score, label, group = scored["score"].to_numpy(), scored["label"].to_numpy(), np.array(groups)
    total = weight = 0.0
    for value in {*groups} - {""}:
        p, n = (score[(group == value) & (label == one)] for one in (1, 0))
        if len(p) and len(n):
            wins = (p[:, None] > n).mean() + (p[:, None] == n).mean() / 2
            total, weight = total + wins * (len(p) + len(n)), weight + len(p) + len(n)
    result = json.loads(Path(f"{data}_run", "result.json").read_text(encoding="utf-8"))
    return bool(abs(result["evals"]["val"]["gauc"] - total / weight) < 1e-6)


def attack_one_class(rows: Sequence[Sequence[str]]) -> None:
    """A val split without a click."""
    write_csv("none.csv", [["0", *row[1:]] for row in rows[NUM_TRAIN:]])
    must(
        "dlrm-preprocess dataset=log.yaml input.train=train.csv input.val=none.csv encoding=hash output=none"
    )
    for key in ("evaluation.patience=1", "evaluation.target_auc=0.7"):
        attack(f"val of one class, {key}", f"dlrm-train data.path=none tables=dataset {key} output=none_run")
    space = "tune.space=[{key:optimizer.dense.lr,low:0.001,high:0.01}]"
    attack(
        "val of one class, dlrm-tune", f"dlrm-tune data.path=none tables=dataset {space} output=none_study"
    )


def same_rows(output: str, expected: str) -> bool:
    """True if both datasets have the same rows of train in the same order."""
    tables = [
        pa.concat_tables([pq.ParquetFile(shard).read() for shard in sorted(Path(folder).glob("train/*"))])
        for folder in (output, expected)
    ]
    return bool(tables[0].equals(tables[1]))


def attack_formats(rows: Sequence[Sequence[str]], form: str) -> None:
    """One log as CSV and as Parquet: null words, lists and zones; folders with links, tables and keys."""
    few = rows[:NUM_TRAIN]
    words = '[NA, "-1", "0", "05db9164", "2026-03-02T05:00:00+09:00"]'
    more = "  - {name: l, role: sparse, kind: hex, separator: '|'}\n  - {name: t, role: time, kind: iso}\n"
    more += "  - {name: day, role: sparse, kind: integer}\nderived:\n  - {name: hour, kind: hour, of: t}\n"
    Path("nulls.yaml").write_text(f"{form}{more}null_values: {words}\n", encoding="utf-8")
    hours = np.arange(len(few)) % 1000 + 493_149  # from 2026-04-05 on, in hours since 1970
    names = [*NAMES, "l", "t", "day"]
    lists = [[row[15], row[16], "05db9164"][: 1 + number % 3] for number, row in enumerate(few)]
    texts = [np.datetime64(int(hour) * 3600, "s").astype(str) for hour in hours]
    beside = zip(lists, texts, hours // 24, strict=True)
    lines = [
        [*row, "|".join(items), f"{text}Z", str(day)]
        for row, (items, text, day) in zip(few, beside, strict=True)
    ]
    write_csv("nulls.csv", lines, names)
    keys = "encoding=vocab dense.target_columns=all"
    must(f"dlrm-preprocess dataset=nulls.yaml {keys} input.train=nulls.csv output=of_csv")
    columns = {n: pa.array([row[i] or None for row in few]) for i, n in enumerate(NAMES)}
    columns = {n: v if n[:3] == "cat" else v.cast(pa.int64()) for n, v in columns.items()}
    for zone in ("UTC", "Asia/Tokyo", "America/St_Johns"):
        times = pa.array(hours * 3_600_000).cast(pa.timestamp("ms", zone))
        path = f"nulls_{zone[-3:]}.parquet"
        pq.write_table(pa.table({**columns, "l": pa.array(lists), "t": times, "day": times}), path)
        line = f"dlrm-preprocess dataset=nulls.yaml {keys} input.train={path} output={path[:-8]}"
        attack(
            f"null words, lists and zone {zone}, Parquet", line, lambda to=path[:-8]: same_rows(to, "of_csv")
        )
    point = [
        [f"{v}.0" if v and n[:3] == "int" else v for n, v in zip(NAMES, row, strict=True)] for row in few
    ]
    floats = form.replace("dense, kind: integer", "dense, kind: float")
    Path("floats.yaml").write_text(f"{floats}null_values: {words}\n", encoding="utf-8")
    must(
        f"dlrm-preprocess dataset=floats.yaml {keys} input.train={write_csv('whole.csv', few)} output=of_whole"
    )
    line = f"dlrm-preprocess dataset=floats.yaml {keys} input.train={write_csv('point.csv', point)} output=of_point"
    attack("-1.0 where -1 is a null word", line, lambda: same_rows("of_point", "of_whole"))
    for folder in ("disk", "log"):
        Path(folder).mkdir()
    write_csv("log/part-0.csv", few[: NUM_TRAIN // 2])
    write_csv("disk/part-1.csv", few[NUM_TRAIN // 2 :])
    Path("log/part-1").symlink_to("../disk")
    must(
        f"dlrm-preprocess dataset=log.yaml {keys} input.train=[log/part-0.csv,disk/part-1.csv] output=of_files"
    )
    line = f"dlrm-preprocess dataset=log.yaml {keys} input.train=log output=of_log"
    attack("a linked folder below the input", line, lambda: same_rows("of_log", "of_files"))
    line = "dlrm-predict model=run input=log output=of_log.parquet"
    attack("predict: a linked folder", line, lambda: pq.read_metadata("of_log.parquet").num_rows == NUM_TRAIN)
    Path("disk/loop").symlink_to("../log")
    attack("a loop of links", f"dlrm-preprocess dataset=log.yaml {keys} input.train=log output=of_loop")
    half = pa.table(columns).slice(0, NUM_TRAIN // 2)
    for name in ("table/part-0", "table/_delta_log/0", "keys/cat_3=a/part-0", "keys/cat_3=a/part-1"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(half.drop_columns(["cat_3"]) if name.endswith("part-1") else half, f"{name}.parquet")
    for what, path in (("the folder of a Delta table", "table"), ("a key that some files have too", "keys")):
        attack(what, f"dlrm-preprocess dataset=log.yaml {keys} input.train={path} output=of_{path}")


def finish() -> bool:
    """Prints the number of attacks; True if an answer is wrong."""
    wrong = sum(outcome.startswith(WRONG) for _, outcome in results)
    print(f"\n{len(results)} attacks, {wrong} wrong")
    return wrong > 0


def main() -> None:
    files = sorted(Path(sys.argv[1]).resolve().glob("kaggle*.tsv"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    rows = [line.split("\t") for line in text.splitlines()[:NUM_ROWS]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        columns = "".join(f"\n  - {{name: {name}, role: {ROLES[name[:3]]}}}" for name in NAMES)
        head = 'name: log\ndelimiter: ","\nheader: true\ncolumns:'
        form = f"{head}{columns}\n"
        Path("log.yaml").write_text(form, encoding="utf-8")
        write_tables("tables.yaml", features := {i: f"cat_{i}" for i in range(26)})
        write_csv("train.csv", rows[:NUM_TRAIN])
        write_csv("new.csv", rows[NUM_TRAIN:])
        must(f"dlrm-preprocess dataset=log.yaml {NEW} input.val=new.csv output=base")
        must("dlrm-train data.path=base tables=tables.yaml output=run")
        print("| attack | what happened |\n|---|---|")
        attack_raw_rows(rows)
        attack_tables(features)
        attack_encoding_files()
        attack_training_files(rows)
        attack_calibration()
        attack_labels(rows, form)
        attack_ranks()
        attack_scores()
        attack_groups(rows)
        attack_one_class(rows)
        attack_learning(rows)
        attack_formats(rows, form)
        attack_copies(rows)
        attack_days(rows)
    sys.exit(finish())


if __name__ == "__main__":
    main()
