"""The kinds of click logs of ``benchmarks/logs.py``: columns by role, and
the logit of every row before its intercept.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Columns = dict[str, Array]
"""By name: floats are dense, with NaN for missing; integers and texts sparse;
those that begin with ``list`` hold "a|b|c". A kind may draw ``click`` itself.
"""


def popular(rng: Generator, rows: int, size: int, power: float = 1.0) -> Array:
    """[rows] ids below ``size``, drawn by Zipf's law."""
    share = np.arange(1, size + 1) ** -power
    return rng.permutation(size)[rng.choice(size, rows, p=share / share.sum())]


def effect(rng: Generator, ids: Array, scale: float) -> Array:
    """Each id's own share of the logit."""
    return rng.normal(0, scale, ids.max() + 1)[ids]


def affinity(rng: Generator, left: Array, right: Array, width: int, scale: float) -> Array:
    """Products of the factors of two columns of ids."""
    a, b = (rng.normal(0, 1, (ids.max() + 1, width))[ids] for ids in (left, right))
    return scale * (a * b).sum(1) / width**0.5


def living(rng: Generator, rows: int, size: int, days: int, renewed: float) -> tuple[Array, Array]:
    """(ids, day) of rows in order of time; each day the share ``renewed`` of ``size`` ids is replaced by new ones."""
    day = np.arange(rows) * days // rows
    born = np.arange(size) + np.zeros((days, 1), int)
    for number in range(1, days):
        dead = rng.random(size) < renewed
        born[number] = np.where(dead, born[number - 1].max() + 1 + np.cumsum(dead), born[number - 1])
    return born[day, popular(rng, rows, size, 0.8)], day


def missing(rng: Generator, values: Array, share: float) -> Array:
    return np.where(rng.random(len(values)) < share, np.nan, values)


def tastes(rng: Generator, n: int) -> tuple[Columns, Array]:
    user, item, device = popular(rng, n, 4000, 0.7), popular(rng, n, 1500), popular(rng, n, 4)
    price = rng.lognormal(2, 1, 1500)[item]
    logit = affinity(rng, user, item, 4, 1.1) + effect(rng, user, 0.4) + effect(rng, item, 0.6)
    logit += effect(rng, device, 0.3) - 0.2 * np.log(price)
    return {"price": price.round(2), "user": user, "item": item, "device": device}, logit


def rare(rng: Generator, n: int) -> tuple[Columns, Array]:
    ad, site, user = popular(rng, n, 3000), popular(rng, n, 2000), popular(rng, n, 30_000, 0.8)
    slot, age = popular(rng, n, 6), rng.normal(40, 12, n)
    logit = effect(rng, ad, 0.7) + effect(rng, site, 0.5) + effect(rng, user, 0.4) + effect(rng, slot, 0.4)
    logit += affinity(rng, ad % 40, slot, 3, 0.4) - ((age - 35) / 15) ** 2 * 0.3
    return {"age": missing(rng, age.round(), 0.1), "ad": ad, "site": site, "user": user, "slot": slot}, logit


def new_ids(rng: Generator, n: int) -> tuple[Columns, Array]:
    item, _ = living(rng, n, 2000, 10, 0.2)
    user, _ = living(rng, n, 8000, 10, 0.1)
    category, seller = (rng.integers(0, size, item.max() + 1)[item] for size in (40, 300))
    price = rng.lognormal(3, 0.8, item.max() + 1)[item]
    logit = effect(rng, category, 0.6) + effect(rng, seller, 0.4) + effect(rng, item, 0.5)
    logit += affinity(rng, user % 50, category, 3, 0.6) - 0.3 * np.log(price)
    columns = {
        "price": price.round(2),
        "item": item,
        "user": user,
        "category": category,
        "seller": seller,
        "segment": user % 50,
    }
    return columns, logit


def numbers(rng: Generator, n: int) -> tuple[Columns, Array]:
    x, heavy = rng.normal(0, 1, (n, 9)), rng.lognormal(0, 2, (n, 5))
    kind = rng.integers(0, 5, n)
    logit = np.sin(2 * x[:, 0]) + 0.8 * x[:, 1] * x[:, 2] - 0.6 * np.abs(x[:, 3]) + 0.3 * x[:, 4]
    logit += 0.3 * np.log(heavy[:, 0]) + 0.5 * (np.abs(np.log(heavy[:, 1])) < 1) * x[:, 5]
    logit += effect(rng, kind, 0.3) * x[:, 6]
    gap = rng.random(n) < 0.2
    x[:, 7][gap], logit = np.nan, logit - 0.6 * gap
    columns = {f"x{i}": x[:, i].round(4) for i in range(9)}
    columns |= {f"h{i}": missing(rng, heavy[:, i], 0.1).round(3) for i in range(5)}
    return {**columns, "kind": kind}, logit


def steps(rng: Generator, n: int) -> tuple[Columns, Array]:
    """Steps, bumps and a product of two, as trees find them."""
    x = rng.normal(0, 1, (n, 10))
    logit = 0.5 * (x[:, 0] > 0.3) - 0.5 * (x[:, 1] < -0.6) + 0.4 * (np.abs(x[:, 2]) < 0.5)
    logit += 0.9 * np.exp(-(((x[:, 3] - 0.8) / 0.2) ** 2)) - 0.9 * np.exp(-(((x[:, 4] + 0.4) / 0.15) ** 2))
    logit += 0.5 * x[:, 5] * x[:, 6] + 0.3 * x[:, 7]
    return {f"x{i}": x[:, i].round(4) for i in range(10)}, 1.1 * logit


def friedman(rng: Generator, n: int) -> tuple[Columns, Array]:
    """Friedman's first function (1991) of ten numbers, and two of four amounts with long tails."""
    x, amounts = rng.random((n, 10)), rng.lognormal(0, 1.5, (n, 4))
    smooth = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    logit = (smooth - 14.4) / 5 + 0.3 * np.log(amounts[:, 0]) - 0.4 * (amounts[:, 1] > 2)
    columns = {f"x{i}": x[:, i].round(4) for i in range(10)}
    return {**columns, **{f"h{i}": amounts[:, i].round(3) for i in range(4)}}, logit


def small(rng: Generator, n: int) -> tuple[Columns, Array]:
    shop, item, city = popular(rng, n, 300), popular(rng, n, 1000), popular(rng, n, 12)
    age, seen = rng.normal(40, 12, n), rng.poisson(2, n)
    logit = effect(rng, shop, 0.5) + effect(rng, item, 0.6) + effect(rng, city, 0.3) - 0.25 * seen
    logit += 0.6 * np.cos(age / 8)
    columns = {"age": missing(rng, age.round(), 0.2), "seen": seen.astype(float)}
    return {**columns, "shop": shop, "item": item, "city": city}, logit


def pairs(rng: Generator, n: int) -> tuple[Columns, Array]:
    ids = [popular(rng, n, size, 0.5) for size in (6, 12, 20, 30, 8, 40)]
    logit = sum(effect(rng, each, 0.2) for each in ids)
    for left, right in ((0, 3), (1, 2), (4, 5)):
        logit += effect(rng, ids[left] * 50 + ids[right], 0.6)
    return {f"c{i}": each for i, each in enumerate(ids)}, logit


def followers(rng: Generator, n: int) -> tuple[Columns, Array]:
    user, item, place = popular(rng, n, 12_000, 0.6), popular(rng, n, 600, 0.9), popular(rng, n, 30)
    group, genre = rng.integers(0, 25, 12_000)[user], rng.integers(0, 15, 600)[item]
    logit = affinity(rng, group, genre, 3, 0.8) + affinity(rng, user, item, 3, 0.5)
    logit += effect(rng, user, 0.5) + effect(rng, item, 0.5) + affinity(rng, place, genre, 2, 0.3)
    since = rng.exponential(30, n)
    columns = {"days": since.round(1), "user": user, "item": item, "genre": genre, "place": place}
    return columns, logit - 0.02 * np.minimum(since, 60)


def rare_hours(rng: Generator, n: int) -> tuple[Columns, Array]:
    ad, category, weekday = popular(rng, n, 1200), popular(rng, n, 30), rng.integers(0, 7, n)
    hour = np.clip(rng.normal(14, 5, n), 0, 23.99)
    usual = rng.lognormal(3, 1.2, 30)[category]
    price = usual * rng.lognormal(0, 0.6, n)
    logit = effect(rng, ad, 0.6) + effect(rng, category, 0.4) + effect(rng, weekday, 0.2)
    logit += 0.5 * np.sin(hour * np.pi / 6) - 0.6 * np.log(price / usual)
    return {
        "hour": np.floor(hour),
        "price": price.round(2),
        "ad": ad,
        "category": category,
        "weekday": weekday,
    }, logit


def drift(rng: Generator, n: int) -> tuple[Columns, Array]:
    campaign, day = living(rng, n, 600, 12, 0.1)
    user, place = popular(rng, n, 6000, 0.8), popular(rng, n, 50)
    walk = rng.normal(0, 0.6, campaign.max() + 1) + np.cumsum(rng.normal(0, 0.2, (12, campaign.max() + 1)), 0)
    logit = walk[day, campaign] + effect(rng, user, 0.5) + effect(rng, place, 0.3) - 0.05 * day
    bid = rng.lognormal(0, 1, n)
    columns = {"bid": bid.round(3), "campaign": campaign, "user": user, "place": place}
    return columns, logit + 0.25 * np.log(bid)


def numbers_ids(rng: Generator, n: int) -> tuple[Columns, Array]:
    x, income = rng.normal(0, 1, (n, 5)), rng.lognormal(10, 0.7, n)
    city, product, segment = popular(rng, n, 800), popular(rng, n, 3000), rng.integers(0, 20, n)
    logit = 0.8 * np.cos(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + effect(rng, segment, 0.5) * x[:, 3]
    logit += effect(rng, city, 0.3) + effect(rng, product, 0.5) + 0.4 * np.log(income / 2e4) ** 2
    columns = {f"x{i}": missing(rng, x[:, i], 0.05).round(4) for i in range(5)}
    columns |= {"income": income.round(), "city": city, "product": product, "segment": segment}
    return columns, logit


def small_mixed(rng: Generator, n: int) -> tuple[Columns, Array]:
    source, browser, offer = popular(rng, n, 150), popular(rng, n, 9), popular(rng, n, 500)
    visits, score = rng.geometric(0.2, n), rng.beta(2, 5, n)
    logit = effect(rng, source, 0.5) + effect(rng, offer, 0.5) + effect(rng, browser * 200 + source % 8, 0.4)
    logit += 0.4 * np.log(visits) - 6 * (score - 0.3) ** 2
    columns = {"visits": visits.astype(float), "score": missing(rng, score, 0.1).round(3)}
    return {**columns, "source": source, "browser": browser, "offer": offer}, logit


def lists(rng: Generator, n: int) -> tuple[Columns, Array]:
    topic_of = rng.integers(0, 12, 800)
    by_topic = [np.flatnonzero(topic_of == topic) for topic in range(12)]
    item, user = popular(rng, n, 800, 0.8), popular(rng, n, 5000, 0.5)
    taste, length = rng.integers(0, 12, 5000)[user], rng.poisson(5, n)
    history = [
        "|".join(
            str(rng.choice(by_topic[t] if r < 0.7 else by_topic[(t + 5) % 12]))
            for r in rng.random(min(size, 15))
        )
        for t, size in zip(taste, length, strict=True)
    ]
    logit = effect(rng, taste * 12 + topic_of[item], 0.8) + effect(rng, item, 0.5) + 0.05 * length
    return {"length": length.astype(float), "item": item, "user": user, "list_seen": np.array(history)}, logit


def histories(rng: Generator, n: int) -> tuple[Columns, Array]:
    """Ratings in order of time, as MovieLens has them: the last items that the user liked, and did not like, before.

    Half as many rows come before the log. Clicks are drawn here, because later lists hold them.
    """
    rows = n + n // 2
    user, item = popular(rng, rows, 3000, 0.5), popular(rng, rows, 800, 0.8)
    genres, taste = rng.normal(0, 1, (12, 4)), rng.normal(0, 1, (3000, 4))
    nature = genres[rng.integers(0, 12, 800)] + rng.normal(0, 0.4, (800, 4))
    logit = 0.7 * (taste[user] * nature[item]).sum(1) + effect(rng, user, 0.5) + effect(rng, item, 0.6)
    logit += intercept(logit, KINDS["histories"][2])
    clicks = rng.random(rows) < probabilities(logit)
    past: dict[tuple[int, bool], list[str]] = {}
    liked, disliked = [], []
    for who, what, click in zip(user.tolist(), item.tolist(), clicks.tolist(), strict=True):
        liked.append("|".join(past.get((who, True), [])[-20:]))
        disliked.append("|".join(past.get((who, False), [])[-20:]))
        past.setdefault((who, click), []).append(str(what))
    columns = {"click": clicks.astype(int), "user": user, "item": item}
    columns |= {"list_liked": np.array(liked), "list_disliked": np.array(disliked)}
    return {key: values[-n:] for key, values in columns.items()}, logit[-n:]


def likeness(rng: Generator, n: int) -> tuple[Columns, Array]:
    """Clicks by the likeness of the shown item to the most similar one of the last four to eight."""
    places = rng.normal(0, 1, (200, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    item, last, length = popular(rng, n, 200, 0.6), popular(rng, n * 8, 200, 0.6), rng.integers(4, 9, n)
    last = last.reshape(n, 8)
    cosines = (places[item][:, None] * places[last]).sum(2)
    nearest = np.where(np.arange(8) < length[:, None], cosines, -1).max(1)
    device, price = popular(rng, n, 5), rng.lognormal(2, 1, 200)[item]
    logit = 3.5 * np.exp(8 * (nearest - 1)) + effect(rng, item, 0.4) + effect(rng, device, 0.2)
    texts = ["|".join(map(str, row[:size])) for row, size in zip(last.tolist(), length.tolist(), strict=True)]
    columns = {"price": price.round(2), "item": item, "device": device, "list_last": np.array(texts)}
    return columns, logit - 0.2 * np.log(price)


def strings(rng: Generator, n: int) -> tuple[Columns, Array]:
    words, site, device = rng.normal(0, 0.6, 400), popular(rng, n, 4000), popular(rng, n, 5)
    first, second = popular(rng, n, 400), popular(rng, n, 400)
    logit = words[first] + words[second] + effect(rng, site, 0.5) + effect(rng, device, 0.3)
    columns = {
        "query": np.array([f"w{a} w{b}" for a, b in zip(first, second, strict=True)]),
        "site": np.array([f"www.site-{i}.example" for i in site]),
        "device": np.array([f"device {i}" for i in device]),
    }
    return columns, logit


def one_column(rng: Generator, n: int) -> tuple[Columns, Array]:
    page = popular(rng, n, 8000)
    return {"page": page}, effect(rng, page, 0.9)


Kind = Callable[[Generator, int], tuple[Columns, Array]]
KINDS: dict[str, tuple[Kind, int, float]] = {  # rows, share of clicks
    "tastes": (tastes, 100_000, 0.25),
    "rare": (rare, 200_000, 0.02),
    "new_ids": (new_ids, 150_000, 0.15),
    "numbers": (numbers, 60_000, 0.3),
    "steps": (steps, 150_000, 0.25),
    "small": (small, 20_000, 0.2),
    "pairs": (pairs, 100_000, 0.2),
    "strings": (strings, 100_000, 0.1),
    "followers": (followers, 200_000, 0.2),
    "rare_hours": (rare_hours, 300_000, 0.02),
    "drift": (drift, 150_000, 0.1),
    "friedman": (friedman, 60_000, 0.3),
    "numbers_ids": (numbers_ids, 80_000, 0.3),
    "small_mixed": (small_mixed, 20_000, 0.15),
    "lists": (lists, 80_000, 0.2),
    "one_column": (one_column, 50_000, 0.2),
    "histories": (histories, 80_000, 0.35),
    "likeness": (likeness, 120_000, 0.25),
}
CHOOSING = ("tastes", "rare", "new_ids", "numbers", "steps", "small", "pairs", "strings", "histories")
REPORTING = (
    "followers",
    "rare_hours",
    "drift",
    "friedman",
    "numbers_ids",
    "small_mixed",
    "lists",
    "one_column",
    "likeness",
)


def intercept(logit: Array, share: float) -> float:
    """The number to add to ``logit``, so that the mean probability is ``share``."""
    low, high = -20.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if probabilities(logit + middle).mean() > share else (middle, high)
    return low


def probabilities(logit: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logit)))


def write_log(folder: Path, name: str, rows: int | None, seed: int) -> None:
    """log.csv, log.yaml, and truth.npy with the click probability of every line."""
    kind, usual, share = KINDS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    columns, logit = kind(rng, min(rows or usual, usual))
    drawn = columns.pop("click", None)
    truth = probabilities(logit if drawn is not None else logit + intercept(logit, share))
    clicks = (rng.random(len(truth)) < truth).astype(int) if drawn is None else drawn
    table = pa.table({"click": clicks, **{key: pa.array(v, from_pandas=True) for key, v in columns.items()}})
    with (folder / "log.csv").open("wb") as file:
        file.write(f"{','.join(table.column_names)}\n".encode())
        pacsv.write_csv(table, file, pacsv.WriteOptions(include_header=False, quoting_style="none"))
    lines = [f"name: {name}", 'delimiter: ","', "header: true", "columns:", "  - {name: click, role: label}"]
    for key, values in columns.items():
        role = "dense, kind: float" if values.dtype.kind == "f" else "sparse, kind: "
        is_number = key.startswith("list") and not "".join(values).strip("|0123456789")
        role += {"f": "", "i": "integer", "U": "integer" if is_number else "string"}[values.dtype.kind]
        role += ', separator: "|"' if key.startswith("list") else ""
        lines.append(f"  - {{name: {key}, role: {role}}}")
    (folder / "log.yaml").write_text("\n".join(lines) + "\n")
    np.save(folder / "truth.npy", truth)
