"""The peers of ``benchmarks/logs.py``, each a process: ``logs_peers.py NAME LOG_FOLDER SEED THREADS SCORES.npy``."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pacsv

Array = np.ndarray[Any, Any]
SMOOTHING, FOLDS = 20.0, 5


def read(log: Path) -> tuple[Array, dict[str, Array], dict[str, Array], dict[str, list[list[str]]]]:
    """Labels; numbers with NaN for missing; ids counted from 0; lists of texts. Criteo's lines have no log.yaml."""
    criteo = not (log / "log.yaml").exists()
    names = ["click", *(f"i{n}" for n in range(13)), *(f"c{n}" for n in range(26))] if criteo else None
    table = pacsv.read_csv(
        log / "log.csv",
        pacsv.ReadOptions(column_names=names),
        pacsv.ParseOptions(delimiter="\t" if criteo else ",", quote_char=False),
        pacsv.ConvertOptions(strings_can_be_null=True),
    )
    text = "" if criteo else (log / "log.yaml").read_text()
    numbers, ids, lists = {}, {}, {}
    for name in table.column_names[1:]:
        column = table[name]
        if name.startswith("i") if criteo else f"name: {name}, role: dense" in text:
            numbers[name] = column.cast("float64").to_numpy()
        elif name.startswith("list"):
            lists[name] = [each.split("|") if each else [] for each in column.to_pylist()]
        else:
            codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
            ids[name] = codes.to_numpy().astype(np.int64)
    return table["click"].to_numpy(), numbers, ids, lists


def flat(lists: list[list[str]]) -> tuple[Array, Array]:
    """(ids of all elements, row of each)."""
    rows = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
    _, ids = np.unique(np.array([x for each in lists for x in each] or [""]), return_inverse=True)
    return ids[: len(rows)], rows


def rates(ids: Array, rows: Array, labels: Array, fold: Array) -> tuple[Array, Array]:
    """Each row's mean smoothed click rate and count of its ids, counted outside
    the row's own fold; fold -1: outside none.
    """
    total, size = len(labels), ids.max(initial=0) + 1
    learnt = fold[rows] >= 0
    rate, count = np.zeros(total), np.zeros(total)
    for number in range(-1, FOLDS):
        known = learnt & (fold[rows] != number)
        clicks = np.bincount(ids[known], labels[rows[known]], size)
        seen = np.bincount(ids[known], minlength=size)
        values = (clicks + SMOOTHING * labels[fold >= 0].mean()) / (seen + SMOOTHING)
        here = fold[rows] == number
        rate += np.bincount(rows[here], values[ids[here]], total)
        count += np.bincount(rows[here], seen[ids[here]], total)
    lengths = np.maximum(np.bincount(rows, minlength=total), 1)
    return rate / lengths, count / lengths


def lightgbm(log: Path, seed: int, threads: int) -> Array:
    """Numbers, and for each id its click rate and count, out of fold in training; as many trees as val likes."""
    import lightgbm as lgb

    labels, numbers, ids, lists = read(log)
    train, val, test = parts(len(labels))
    fold = np.full(len(labels), -1)
    fold[train] = np.random.default_rng(seed).integers(0, FOLDS, len(train))
    columns = list(numbers.values())
    for column in ids.values():
        columns += rates(column, np.arange(len(labels)), labels, fold)
    for many in lists.values():
        columns += [*rates(*flat(many), labels, fold), np.array([len(each) for each in many])]
    features = np.stack(columns, 1)
    model = lgb.LGBMClassifier(
        n_estimators=2000, learning_rate=0.03, num_leaves=31, min_child_samples=50, subsample=0.8,
        subsample_freq=1, colsample_bytree=0.5, n_jobs=threads, verbose=-1, random_state=seed,
    )  # fmt: skip
    stop = lgb.early_stopping(50, verbose=False)
    model.fit(features[train], labels[train], eval_set=[(features[val], labels[val])], callbacks=[stop])
    return np.asarray(model.predict_proba(features[test])[:, 1])


def catboost(log: Path, seed: int, threads: int) -> Array:
    import pandas as pd
    from catboost import CatBoostClassifier

    labels, numbers, ids, lists = read(log)
    lengths = {name: [len(each) for each in many] for name, many in lists.items()}
    table = pd.DataFrame({**numbers, **lengths, **ids})
    train, val, test = parts(len(labels))
    model = CatBoostClassifier(
        random_seed=seed, thread_count=threads, verbose=False, allow_writing_files=False
    )
    model.fit(
        table.iloc[train],
        labels[train],
        cat_features=[*ids],
        eval_set=(table.iloc[val], labels[val]),
        early_stopping_rounds=50,
    )
    return np.asarray(model.predict_proba(table.iloc[test])[:, 1])


def pytorch(log: Path, seed: int, threads: int) -> Array:
    """Embeddings beside standardised numbers, an MLP, Adam; the best of five epochs on val. Lists: ``histories``."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    labels, numbers, ids, lists = read(log)
    if lists:
        return histories(log, seed)
    train, val, test = parts(len(labels))
    x = np.stack([*numbers.values()], 1) if numbers else np.zeros((len(labels), 1))
    x = np.nan_to_num((x - np.nanmean(x[train], 0)) / (np.nanstd(x[train], 0) + 1e-9))
    dense, clicks = torch.tensor(x, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)
    sparse = torch.tensor(np.stack([*ids.values()], 1))
    tables = nn.ModuleList([nn.Embedding(int(each.max()) + 1, 16) for each in sparse.T])
    mlp = nn.Sequential(
        nn.Linear(16 * len(tables) + dense.shape[1], 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    adam = torch.optim.Adam([*tables.parameters(), *mlp.parameters()], 1e-3)

    def logits(rows: Any) -> Any:
        vectors = [table(sparse[rows, n]) for n, table in enumerate(tables)]
        return mlp(torch.cat([*vectors, dense[rows]], 1))[:, 0]

    best, loss_of, scores = np.inf, nn.functional.binary_cross_entropy_with_logits, np.zeros(0)
    for _ in range(5):
        for rows in torch.tensor(train)[torch.randperm(len(train))].split(512):
            adam.zero_grad()
            loss_of(logits(rows), clicks[rows]).backward()
            adam.step()
        with torch.no_grad():
            loss = float(loss_of(logits(val), clicks[val]))
            if loss < best:
                best, scores = loss, torch.sigmoid(logits(test)).double().numpy()
    return scores


def histories(log: Path, seed: int) -> Array:
    """A log with lists: each shares the table of the ids that it repeats, pooled by mean, multiplied with all."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    labels, numbers, ids, lists = read(log)
    train, val, test = parts(len(labels))
    x = np.stack([*numbers.values()], 1) if numbers else np.zeros((len(labels), 1))
    x = np.nan_to_num((x - np.nanmean(x[train], 0)) / (np.nanstd(x[train], 0) + 1e-9))
    dense, clicks = torch.tensor(x, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)
    types = pacsv.ConvertOptions(column_types=dict.fromkeys(ids, "string"))
    texts = pacsv.read_csv(log / "log.csv", convert_options=types)
    values = {name: {v: n for n, v in enumerate(dict.fromkeys(texts[name].to_pylist()), 1)} for name in ids}
    table_of, bags = list(ids), [bag([[v] for v in texts[name].to_pylist()], values[name]) for name in ids]
    for rows in lists.values():
        own = {v for row in rows for v in row}
        table_of.append(max(ids, key=lambda name: len(own & values[name].keys())))
        bags.append(bag(rows, values[table_of[-1]]))
    tables = nn.ModuleDict(
        {name: nn.EmbeddingBag(len(values[name]) + 1, 16, mode="mean", padding_idx=0) for name in ids}
    )
    for table in tables.values():
        nn.init.normal_(table.weight, 0, 0.05)
    left, right = torch.triu_indices(len(bags), len(bags), 1)
    mlp = nn.Sequential(
        nn.Linear(16 * len(bags) + len(left) + dense.shape[1], 128), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 1),
    )  # fmt: skip
    adam = torch.optim.Adam([*tables.parameters(), *mlp.parameters()], 3e-3)

    def logits(rows: Any) -> Any:
        vectors = torch.stack(
            [tables[t](torch.tensor(b[rows])) for t, b in zip(table_of, bags, strict=True)], 1
        )
        products = (vectors @ vectors.transpose(1, 2))[:, left, right]
        return mlp(torch.cat([vectors.flatten(1), products, dense[rows]], 1))[:, 0]

    best, loss_of, scores = np.inf, nn.functional.binary_cross_entropy_with_logits, np.zeros(0)
    for _ in range(10):
        mlp.train()
        for rows in torch.tensor(train)[torch.randperm(len(train))].split(512):
            adam.zero_grad()
            loss_of(logits(rows), clicks[rows]).backward()
            adam.step()
        mlp.eval()
        with torch.no_grad():
            loss = float(loss_of(logits(val), clicks[val]))
            if loss < best:
                best, scores = loss, torch.sigmoid(logits(test)).double().numpy()
    return scores


def bag(rows: list[list[str]], known: dict[str, int]) -> Array:
    """[rows, longest] the numbers of the values that are ``known``, then zeros."""
    numbers = [[known[v] for v in row if v in known] for row in rows]
    out = np.zeros((len(rows), max(map(len, numbers))), np.int64)
    for row, each in zip(out, numbers, strict=True):
        row[: len(each)] = each
    return out


def parts(rows: int) -> tuple[Array, Array, Array]:
    order, tenth = np.arange(rows), rows // 10
    return order[: rows - 2 * tenth], order[rows - 2 * tenth : rows - tenth], order[rows - tenth :]


if __name__ == "__main__":
    name, folder, first, second, output = sys.argv[1:]
    method = {"lightgbm": lightgbm, "catboost": catboost, "pytorch": pytorch}[name]
    np.save(output, method(Path(folder), int(first), int(second)))
