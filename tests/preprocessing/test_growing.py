"""Vocabularies that grow, by whole runs of dlrm-preprocess."""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dlrm_app.dataset.encoding_files import read_rows, read_vocabulary
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import content, run, table_of
from tests.refusals import refused

COLUMNS = """
name: shop
header: true
delimiter: ","
columns:
  - {name: sold, role: label}
  - {name: price, role: dense, kind: float}
  - {name: item, role: sparse, kind: string}
  - {name: last_items, role: sparse, kind: string, separator: "|"}
  - {name: user, role: sparse, kind: integer}
"""
SHARED = "encoding.shared=[[item, last_items]]"


def write_day(path: Path, seed: int, num_rows: int = 300, low: int = 0) -> list[str]:
    """A day's rows of items from number ``low`` on; gives the items, those of lists too."""
    draw = random.Random(seed)
    seen, lines = [], ["sold,price,item,last_items,user"]
    for _ in range(num_rows):
        item, *last = (f"i{low + int(draw.paretovariate(0.7)) % 60}" for _ in range(draw.randrange(1, 5)))
        seen += [item, *last]
        lines.append(
            f"{draw.randrange(2)},{draw.random():.3f},{item},{'|'.join(last)},{draw.randrange(-9, 9)}"
        )
    path.write_text("\n".join(lines) + "\n")
    return seen


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.yaml").write_text(COLUMNS)
    return f"dataset={tmp_path}/shop.yaml"


def ids_of(manifest: Manifest, name: str = "item") -> dict[str, int]:
    column = next(column for column in manifest.sparse if column.name == name)
    vocabulary = read_vocabulary(manifest.folder, column)
    return dict(zip(vocabulary["value"].to_pylist(), vocabulary["id"].to_pylist(), strict=True))


def test_days_make_the_vocabulary_of_one_pass_and_no_id_moves(shop: str, tmp_path: Path) -> None:
    seen: list[str] = []
    parent, known = "encoding.day=2026-11-01", {}
    for number in range(3):
        seen += write_day(tmp_path / f"{number}.csv", number, low=9 * number)
        given = [shop, f"input.train={tmp_path}/{number}.csv", "encoding=vocab", "encoding.min_count=3"]
        day = run(tmp_path / f"day{number}", *given, parent, *[SHARED] * (number == 0))
        assert ids_of(day).items() >= known.items()
        parent, known = f"encoding.grow_from={day.folder}", ids_of(day)
        assert ids_of(day, "last_items") == known
    counts = {item: seen.count(item) for item in set(seen)}
    assert known.keys() == {item for item, count in counts.items() if count >= 3}
    table = pq.read_table(day.folder / "vocab/item.parquet")
    assert dict(zip(table["value"].to_pylist(), table["count"].to_pylist(), strict=True)) == {
        item: counts[item] for item in known
    }
    assert day.lineage is not None
    assert (day.lineage.day, len(day.lineage.ancestors)) == ("2026-11-03", 2)
    items, users = day.lineage.growth
    assert (items.features, items.values, items.waiting) == (
        ["item", "last_items"],
        len(known),
        len(counts) - len(known),
    )
    assert users.unseen == 0


@pytest.mark.parametrize(
    "given",
    [
        ["shuffle=none", "layout.row_group_rows=50", "dense.transform=standardize"],
        ["shuffle=block", "split.val=0.2"],
        ["shuffle=full", "split.test=0.1", "layout.shuffled_shard_rows=100"],
    ],
    ids=["plain", "block", "full"],
)
def test_growing_encodes_rows_as_the_whole_vocabulary_does(
    shop: str, tmp_path: Path, given: list[str]
) -> None:
    for number in range(2):
        write_day(tmp_path / f"{number}.csv", number, low=9 * number)
    targets = ["dense.target_columns=[item, user]", "dense.bucket_columns=all", SHARED]
    first = run(tmp_path / "first", shop, f"input.train={tmp_path}/0.csv", "encoding=vocab", *targets)
    days = [shop, f"input.train={tmp_path}/1.csv", *given]
    grown = run(tmp_path / "grown", *days, "encoding=vocab", f"encoding.grow_from={first.folder}")
    again = run(tmp_path / "again", *days, "encoding=from_dataset", f"encoding.path={grown.folder}")
    for split in grown.splits:
        assert table_of(grown, split).equals(table_of(again, split))
    assert ids_of(grown) == ids_of(again)
    assert len(ids_of(grown)) > len(ids_of(first))


def test_ids_of_values_not_seen_for_long_are_given_again(shop: str, tmp_path: Path) -> None:
    capacity = "encoding.capacity={item: 22}"
    parent = "encoding.day=1"
    for number in range(4):
        write_day(tmp_path / f"{number}.csv", number, low=30 * number)
        given = [
            shop,
            f"input.train={tmp_path}/{number}.csv",
            "encoding=vocab",
            capacity,
            "encoding.expire_days=2",
        ]
        day = run(tmp_path / f"day{number}", *given, parent)
        parent = f"encoding.grow_from={day.folder}"
    column = next(column for column in day.sparse if column.name == "item")
    assert column.num_embeddings == 22
    assert day.lineage is not None
    growth = next(each for each in day.lineage.growth if each.features == ["item"])
    assert growth.given_again > 0
    assert growth.expired > 0
    assert day.lineage.given_again["item"] == "4"
    rows = read_rows(day.folder, column)
    assert (rows.given_day[rows.generation > 0] > 1).all()


@pytest.mark.slow
def test_interruptions_after_every_step_give_the_same_bytes(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        write_day(tmp_path / f"{number}.csv", number, low=9 * number)
    first = run(tmp_path / "first", shop, f"input.train={tmp_path}/0.csv", "encoding=vocab", "encoding.day=1")
    given = [shop, f"input.train={tmp_path}/1.csv", "split.val=0.2", "shuffle=full", "threads=1"]
    given += ["encoding=vocab", "encoding.min_count=2", f"encoding.grow_from={first.folder}"]
    whole = content(run(tmp_path / "whole", *given).folder)
    killed = tmp_path / "killed"
    assert run_in_pieces(lambda: run(killed, *given), monkeypatch, commits=1, loses_work=False) > 6
    assert content(tmp_path / "killed") == whole


def test_ids_do_not_depend_on_units_and_threads(
    shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlrm_app.preprocessing.request.MIB", 10_000)
    write_day(tmp_path / "0.csv", 0)
    write_day(tmp_path / "1.csv", 1, num_rows=3_000, low=9)
    first = run(tmp_path / "first", shop, f"input.train={tmp_path}/0.csv", "encoding=vocab", "encoding.day=1")
    grown = [
        run(
            tmp_path / f"grown{number}",
            *[shop, f"input.train={tmp_path}/1.csv", f"encoding.grow_from={first.folder}", "encoding=vocab"],
            *given,
        )
        for number, given in enumerate((["threads=1"], ["threads=3", "layout.unit_mib=1"]))
    ]
    assert grown[0].lineage == grown[1].lineage
    assert table_of(grown[0]).equals(table_of(grown[1]))


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a day encoded twice: ``first`` with vocabularies, ``hashed`` without."""
    folder = tmp_path_factory.mktemp("parents")
    (folder / "shop.yaml").write_text(COLUMNS)
    write_day(folder / "0.csv", 0)
    run(folder / "first", *days_of(folder), "encoding=vocab", "encoding.day=1")
    run(folder / "hashed", *days_of(folder), "encoding.num_embeddings=50")
    return folder


def days_of(folder: Path) -> list[str]:
    return [f"dataset={folder}/shop.yaml", f"input.train={folder}/0.csv"]


@pytest.mark.parametrize(
    ("given", "key", "rule"),
    [
        (["encoding.day=yesterday"], "encoding.day", "must be a date"),
        (["encoding.expire_days=3"], "encoding.expire_days", "is for vocabularies that grow"),
        (["encoding.day=1", "encoding.top_k=5"], "encoding.top_k", "is for vocabularies that do not grow"),
        (["encoding.grow_from={first}", "encoding.day=1"], "encoding.day=1", "must come after day 1 of ..."),
        (
            ["encoding.grow_from={first}", "encoding.day=2026-11-02"],
            "encoding.day=2026-11-02",
            "must come after day 1 of ...",
        ),
        (
            ["encoding.grow_from={first}", "encoding.capacity=5"],
            "encoding.capacity.item",
            "is 5, ...ids never move",
        ),
        (
            ["encoding.grow_from={first}", SHARED],
            "encoding.shared",
            "comes with the dataset at encoding.grow_from",
        ),
        (
            ["encoding.grow_from={first}", "dense.target_columns=[item]"],
            "dense.target_columns",
            "comes with the dataset at encoding.grow_from",
        ),
        (
            ["encoding.grow_from={hashed}"],
            "encoding.grow_from=...hashed",
            "has no vocabulary that could grow...",
        ),
    ],
    ids=["day", "expire", "top_k", "earlier", "date", "capacity", "shared", "targets", "hashed"],
)
def test_settings_of_vocabularies_that_cannot_grow_are_refused(
    parents: Path, given: list[str], key: str, rule: str
) -> None:
    words = [text.format(first=parents / "first", hashed=parents / "hashed") for text in given]
    with refused(ConfigError, key, rule):
        run(parents / "no", *days_of(parents), "encoding=vocab", *words)
    assert not (parents / "no").exists()
