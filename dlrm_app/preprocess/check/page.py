"""dataset.html: what a dataset holds, on one page that needs nothing from elsewhere."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dlrm_app.data.manifest import Manifest
from dlrm_app.display.numbers import bytes_text, percent, short
from dlrm_app.display.page import page, text_of
from dlrm_app.preprocess.check import charts
from dlrm_app.preprocess.check.feature_charts import dense_card, popularity_card
from dlrm_app.preprocess.check.scan import Findings
from dlrm_app.preprocess.check.summary import colliding_text, distinct_text, overlap_cells, verdict

_MOST_BUCKETS = 80


def render(manifest: Manifest, findings: Findings) -> str:
    """The page."""
    name = manifest.path.resolve().name if manifest.path else manifest.dataset
    sections = [
        _overview(manifest, findings),
        _splits(manifest, findings),
        _clicks(findings) if manifest.label else "",
        _sparse(manifest, findings),
        _popularity(manifest, findings),
        _dense(manifest, findings),
        _origin(manifest),
    ]
    return page(
        name,
        "dataset",
        summary=_summary(manifest, findings),
        content="\n".join(section for section in sections if section),
        style=text_of(__package__, "style.css"),
    )


def _summary(manifest: Manifest, findings: Findings) -> str:
    kind = "bad" if findings.problems else "good"
    state = f'<span class="{kind}">{verdict(findings.problems)}</span>'
    return f"A dataset of {escape(manifest.dataset)} clicks; checked: {state}"


def _overview(manifest: Manifest, findings: Findings) -> str:
    """What is wrong, if anything, and the dataset in a few numbers."""
    splits = manifest.splits.values()
    tiles = {
        "rows": short(sum(split.rows for split in splits)),
        "dense features": str(len(manifest.dense)),
        "sparse features": str(len(manifest.sparse)),
        "rows in all tables": short(sum(column.num_embeddings for column in manifest.sparse)),
        "size": bytes_text(sum(shard.bytes for split in splits for shard in split.shards)),
        "rejected lines": short(sum(split.rejects for split in splits)),
    }
    if manifest.best is not None:
        tiles["best reachable AUC"] = f"{manifest.best['auc']:.4f}"
    shown = "".join(
        f'<div class="tile"><span>{key}</span><b>{value}</b></div>' for key, value in tiles.items()
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in findings.problems)
    listed = f'<ul class="problems">{problems}</ul>' if problems else ""
    return f'{listed}<div class="tiles">{shown}</div>'


def _table(head: Sequence[str | tuple[str, str]], rows: Sequence[Sequence[str]], texts: int = 0) -> str:
    """``head``: titles, or (title, what it means); cells are HTML; the last ``texts`` columns are words."""
    words = len(head) - texts
    kinds = ["" if place < words else ' class="text"' for place in range(len(head))]
    heads = ""
    for title, kind in zip(head, kinds, strict=True):
        name, meaning = title if isinstance(title, tuple) else (title, "")
        tip = f' title="{escape(meaning)}"' if meaning else ""
        heads += f"<th{kind}{tip}>{name}</th>"
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        body += f"<tr><th>{first}</th>{cells}</tr>"
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(share: float | None, full: float = 1.0) -> str:
    """A share as a number in front of a bar; ``full`` is the share whose bar fills the cell."""
    width = 0.0 if share is None or math.isnan(share) else min(100 * share / max(full, 1e-9), 100)
    return f'<span class="bar" style="--share:{width:.1f}%">{percent(share)}</span>'


def _splits(manifest: Manifest, findings: Findings) -> str:
    total = sum(split.rows for split in manifest.splits.values())
    rows = []
    for name, split in manifest.splits.items():
        clicks = None if split.positives is None else split.positives / max(split.rows, 1)
        size = bytes_text(sum(shard.bytes for shard in split.shards))
        bar = (
            f'<span class="bar" style="--share:{100 * split.rows / max(total, 1):.1f}%">{split.rows:,}</span>'
        )
        cells = [name, bar, _bar(clicks), f"{split.rejects:,}", f"{len(split.shards):,}", size]
        rows.append([*cells, *overlap_cells(findings, name)])
    head: list[str | tuple[str, str]] = ["split", "rows", "click rate", "rejected lines", "shards", "size"]
    head += [
        ("also in train", "rows with the same values as a training row; for train, as another training row"),
        ("expected", "if the split's rows were drawn like the training rows"),
        ("same label too", "those of them whose label is the same as well"),
    ]
    suspicious = [name for name, overlap in findings.overlap.items() if overlap.is_suspicious]
    names = " and ".join(suspicious)
    note = (
        f'<p><span class="bad">{names}</span> share more rows with train than repeats within '
        "train explain: was the input split as it should be?</p>"
        if suspicious
        else ""
    )
    return f"<h2>Splits</h2>{note}{_table(head, rows)}"


def _clicks(findings: Findings) -> str:
    """The click rate along the rows of all splits, in their order, with twice its standard error."""
    total = sum(rows for groups in findings.clicks.values() for rows, _ in groups)
    pieces = {name: _merged(groups, total) for name, groups in findings.clicks.items() if groups}
    rates = [clicks / rows for groups in pieces.values() for rows, clicks in groups if rows]
    if not rates or not any(rates):
        return ""
    top = _round_up(1.15 * max(rates))
    marks, at = "".join(charts.level(tick / 4) for tick in range(5)), 0
    for name, groups in pieces.items():
        points, bands = [], []
        for rows, clicks in groups:
            rate = clicks / max(rows, 1)
            error = 2 * math.sqrt(rate * (1 - rate) / max(rows, 1))
            for place in (at / total, (at + rows) / total):
                points.append((place, rate / top))
                bands.append((place, max(rate - error, 0) / top, min((rate + error) / top, 1)))
            at += rows
        marks += charts.band(bands, name) + charts.line(points, name)
    keys = "".join(f'<span class="{name}"><i></i>{name}</span>' for name in pieces)
    chart = charts.svg(marks, "click rate along the dataset", tall=True)
    ticks = [percent(top * tick / 4) for tick in range(5)]
    figure = charts.framed(chart, ticks, ["first row", "in the dataset's order", f"row {short(total)}"])
    return (
        "<h2>Click rate</h2><p>Along the rows; the band is two standard errors. A jump at a split's border "
        "means that it is measured on other data than it was trained on.</p>"
        f'<div class="card"><div class="keys">{keys}</div>{figure}</div>'
    )


def _merged(groups: Sequence[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Neighbours put together until each has its share of ``_MOST_BUCKETS``; the last takes what is left over."""
    merged: list[tuple[int, int]] = []
    rows = clicks = 0
    for group_rows, group_clicks in groups:
        rows, clicks = rows + group_rows, clicks + group_clicks
        if rows * _MOST_BUCKETS >= total:
            merged.append((rows, clicks))
            rows = clicks = 0
    if merged:
        rows, clicks = rows + merged[-1][0], clicks + merged[-1][1]
    return [*merged[:-1], (rows, clicks)]


def _round_up(share: float) -> float:
    """The next of 1, 2, 4 or 8 times a power of ten, at most 1."""
    power = 10.0 ** math.floor(math.log10(share))
    return min(next(power * step for step in (1, 2, 4, 8, 10) if power * step >= share), 1.0)


def _sparse(manifest: Manifest, findings: Findings) -> str:
    others = [name for name in manifest.splits if name not in findings.studied]
    head: list[str | tuple[str, str]] = ["feature", "table rows"]
    head += [
        ("ids used", f"different ids in {' and '.join(findings.studied)}"),
        ("values", "different raw values"),
        ("colliding", "raw values that share their id with another one"),
        "missing",
        ("top 1", "share of lookups that go to the most frequent id"),
        ("top 10", "share of lookups that go to the ten most frequent ids"),
    ]
    head += [(f"unseen in {name}", "share of lookups of ids that train does not have") for name in others]
    rows = []
    for column in manifest.sparse:
        found = findings.sparse[column.name]
        cells = [escape(column.name), f"{column.num_embeddings:,}", f"{found.ids_used:,}"]
        cells += [distinct_text(column), colliding_text(column), _bar(column.missing_rate)]
        cells += [_bar(found.top_share(1)), _bar(found.top_share(10))]
        cells += [_bar(findings.unseen_share(column.name, name)) for name in others]
        rows.append([*cells, _how(column.encoding, column.multi_hot)])
    return f"<h2>Sparse features</h2>{_table([*head, 'encoding'], rows, texts=1)}"


def _how(value: Mapping[str, Any], is_list: bool = False) -> str:
    """An encoding or transform in a few words."""
    words = [str(value.get("kind", ""))] + ["lists"] * is_list
    words += [
        f"{key} {short(part) if isinstance(part, float) else part}"
        for key, part in value.items()
        if key in ("function", "file", "raw", "column", "mean", "deviation")
    ]
    if "multi_hot" in value:
        words.append(f"{value['multi_hot'].get('size')} ids by {value['multi_hot'].get('rule')}")
    return escape(", ".join(words))


def _popularity(manifest: Manifest, findings: Findings) -> str:
    most = max((findings.sparse[column.name].ids_used for column in manifest.sparse), default=0)
    if not most:
        return ""
    cards = "".join(
        popularity_card(column.name, findings.sparse[column.name], max(most, 2)) for column in manifest.sparse
    )
    return (
        "<h2>How popular the ids are</h2><p>The share of a feature's lookups that go to its k most frequent ids, "
        "k on a logarithmic axis, the same for all features; missing values left out. A curve that starts high "
        f'means that a small cache serves most lookups.</p><div class="small">{cards}</div>'
    )


def _dense(manifest: Manifest, findings: Findings) -> str:
    if not manifest.dense:
        return ""
    rows = []
    for column in manifest.dense:
        found = findings.dense[column.name]
        numbers = [short(v) if found.count else "–" for v in (found.low, found.mean, found.high)]
        zeros = _bar(found.zeros / max(found.count, 1))
        cells = [escape(column.name), _bar(column.missing_rate), zeros, *numbers, _how(column.transform)]
        rows.append(cells)
    head: list[str | tuple[str, str]] = ["feature", "missing"]
    head += [(name, "after the transform, missing ones included") for name in ("zero", "min", "mean", "max")]
    cards = "".join(dense_card(column, findings.dense[column.name]) for column in manifest.dense)
    return (
        f"<h2>Dense features</h2>{_table([*head, 'transform'], rows, texts=1)}"
        "<p style='margin-top:12px'>Values after the transform; the numbers below are the raw values.</p>"
        f'<div class="small">{cards}</div>'
    )


def _origin(manifest: Manifest) -> str:
    rows = [
        [
            escape(source.path),
            source.split,
            f"{source.rows:,}",
            bytes_text(source.bytes),
            escape(source.checksum),
        ]
        for source in manifest.sources
    ]
    sources = _table(["file", "split", "rows", "size", "checksum of the text"], rows) if rows else ""
    settings = [[escape(key), escape(value)] for key, value in _flat(manifest.config)]
    table = _table(["key", "value"], settings, texts=1) if settings else ""
    details = f"<details><summary>Configuration</summary>{table}</details>" if settings else ""
    return f"<h2>Where it came from</h2>{sources}{details}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, part in value.items():
        if isinstance(part, Mapping):
            found += _flat(part, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", json.dumps(part, ensure_ascii=False)))
    return found
