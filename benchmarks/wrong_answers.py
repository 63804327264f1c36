"""Attacks that could give a wrong answer without a word, on real rows, by the commands as one types them.

    python benchmarks/wrong_answers.py FOLDER

FOLDER holds lines of Criteo Kaggle's train.txt as ``kaggle*.tsv``; 10,000 are used. An attack must be refused, warned of, or get
the right answer: the scores or metrics without it. Prints a table; exits with 1 if an answer is wrong.
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
WARNINGS = ("warning:", "are training rows", "are copies of others")
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
    warnings = [text for text in done.stderr.splitlines() if any(mark in text for mark in WARNINGS)]
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
    for what, day in {**damages, "the day before delivered again": days[2]}.items():
        write(3, day)
        output = f"of_{what.split()[-1]}"
        shutil.copytree("alive", output, symlinks=True)
        attack(f"days: {what}", go(4, output))
    write(3, days[3])
    shutil.copytree("alive", "good", symlinks=True)
    attack("days: a good day", go(4, "good"), lambda: Path("good/published").resolve().name == "2026-11-04")


def is_calibrated(run: str) -> bool:
    must(f"dlrm-evaluate checkpoint={run} split=train output={run}.json")
    result = json.loads(Path(f"{run}.json").read_text(encoding="utf-8"))
    return bool(abs(result["models"][0]["metrics"]["calibration"] - 1) < 0.01)


def attack_calibration() -> None:
    for run, end in (("c0", "evaluation.patience=1"), ("c1", "evaluation.target_auc=0.6")):
        keys = f"trainer.calibrate=true trainer.epochs=6 evaluation.every_steps=50 {end}"
        line = f"dlrm-train data.path=base {keys} output={run}"
        attack(f"calibrate, {end}", line, lambda run=run: is_calibrated(run))


def main() -> None:
    files = sorted(Path(sys.argv[1]).resolve().glob("kaggle*.tsv"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    rows = [line.split("\t") for line in text.splitlines()[:NUM_ROWS]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        columns = "".join(f"\n  - {{name: {name}, role: {ROLES[name[:3]]}}}" for name in NAMES)
        head = 'name: log\ndelimiter: ","\nheader: true\ncolumns:'
        Path("log.yaml").write_text(f"{head}{columns}\n", encoding="utf-8")
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
        attack_copies(rows)
        attack_days(rows)
    wrong = sum(outcome.startswith(WRONG) for _, outcome in results)
    print(f"\n{len(results)} attacks, {wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
