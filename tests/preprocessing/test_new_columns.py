"""Datasets with more columns than the one whose ids they keep: the new columns get their own encodings."""

import random
from pathlib import Path

import pytest

from dlrm_app.dataset.encoding_files import read_vocabulary
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.errors import ConfigError
from tests.preprocessing.interruptions import run_in_pieces
from tests.preprocessing.running import AUTO, content, run, table_of
from tests.refusals import refused

OLD = """
name: shop
header: true
delimiter: ","
columns:
  - {name: sold, role: label}
  - {name: price, role: dense, kind: float}
  - {name: item, role: sparse, kind: string}
  - {name: user, role: sparse, kind: integer}
"""
NEW = """  - {name: size, role: dense, kind: float}
  - {name: shop, role: sparse, kind: string}
  - {name: last, role: sparse, kind: integer, separator: "|"}
"""
VOCAB = ["encoding=vocab", "encoding.min_count=2"]
HOW = {"grown": [*VOCAB, "encoding.grow_from={}"], "known": ["encoding=from_dataset", "encoding.path={}"]}

CHOSEN = [word for word in AUTO if word.startswith("dense")]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with two days; the second has three columns more, in files with and without them."""
    (tmp_path / "old.yaml").write_text(OLD)
    (tmp_path / "new.yaml").write_text(OLD + NEW)
    for day in (1, 2):
        draw, lines = random.Random(day), ["sold,price,item,user,size,shop,last"]
        for _ in range(400):
            old = f"{draw.randrange(2)},{draw.random():.3f},i{9 * day + draw.randrange(30)},{draw.randrange(-9, 9)}"
            last = "|".join(str(draw.randrange(12)) for _ in range(draw.randrange(4)))
            lines.append(f"{old},{draw.gauss(5, 2):.3f},s{int(draw.paretovariate(1))},{last}")
        (tmp_path / f"{day}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def run_day(shop: Path, name: str, columns: str, day: int, *words: str) -> Manifest:
    given = [f"dataset={shop}/{columns}.yaml", f"input.train={shop}/{day}.csv", "split.val=0.2"]
    return run(shop / name, *given, *words)


def words_of(how: str, parent: Manifest) -> list[str]:
    return [word.format(parent.folder) for word in HOW[how]]


@pytest.mark.parametrize("how", HOW)
def test_old_columns_keep_ids_and_new_ones_have_their_own(shop: Path, how: str) -> None:
    """Old columns as without the new ones, new columns as in a dataset of their own."""
    first = run_day(shop, "first", "old", 1, *VOCAB, "encoding.day=1")
    both = run_day(shop, "both", "new", 2, *words_of(how, first), "dense.transform={size: standardize}")
    old = run_day(shop, "old", "old", 2, *words_of(how, first))
    alone = run_day(shop, "alone", "new", 2, *VOCAB, "encoding.day=2", "dense.transform=standardize")
    assert [column.name for column in both.sparse] == ["item", "user", "shop", "last"]
    assert [column.name for column in both.dense] == ["price", "size"]
    for split in ("train", "val"):
        table = table_of(both, split)
        assert table.select(["sold", "price", "item", "user"]).equals(table_of(old, split))
        new = ["size", "shop", "last"]
        assert table.select(new).equals(table_of(alone, split).select(new))
    for number in (2, 3):
        shown = [read_vocabulary(each.folder, each.sparse[number]) for each in (both, alone)]
        assert shown[0].equals(shown[1])
    again = run_day(shop, "again", "new", 2, "encoding=from_dataset", f"encoding.path={both.folder}")
    assert table_of(again).equals(table_of(both))


@pytest.mark.parametrize("how", HOW)
def test_nothing_chosen_takes_new_columns_too(shop: Path, how: str) -> None:
    """Targets, buckets and crosses stay those of the earlier dataset; a look decides a new column's transform."""
    first = run_day(shop, "first", "old", 1, *CHOSEN, "encoding=auto", "encoding.crosses=[[item,user]]")
    both = run_day(shop, "both", "new", 2, *words_of(how, first), *CHOSEN)
    old = run_day(shop, "old", "old", 2, *words_of(how, first), *CHOSEN)
    names = [column.name for column in (*old.dense, *old.sparse)]
    assert table_of(both).select(names).equals(table_of(old).select(names))
    assert {"size", "shop", "last"} == {c.name for c in (*both.dense, *both.sparse)} - {*names}
    assert both.dense[1].transform["kind"] == "standardize"
    assert both.config["dense"]["transform"]["size"]["kind"] == "standardize"


def test_new_vocabularies_grow_on_the_next_day(shop: Path) -> None:
    first = run_day(shop, "first", "old", 1, *VOCAB, "encoding.day=1")
    second = run_day(shop, "second", "new", 1, *words_of("grown", first))
    third = run_day(shop, "third", "new", 2, *words_of("grown", second))
    alone = run_day(shop, "alone", "new", 1, *VOCAB, "encoding.day=2")
    after = run_day(shop, "after", "new", 2, *words_of("grown", alone))
    new = ["shop", "last"]
    assert table_of(third).select(new).equals(table_of(after).select(new))
    assert third.lineage is not None
    assert [growth.features for growth in third.lineage.growth] == [["item"], ["user"], ["shop"], ["last"]]


@pytest.mark.parametrize("how", HOW)
def test_columns_left_out_or_changed_are_refused_by_name(shop: Path, how: str) -> None:
    first = run_day(shop, "first", "new", 1, *VOCAB, "encoding.day=1")
    changes = {
        "user": "buyer",
        "kind: string}\n  - {name: last": "kind: hex}\n  - {name: last",
        ', separator: "|"': "",
    }
    named = {"old": "size, shop, last"} | dict(zip(changes, ("user", "shop", "last"), strict=True))
    for change, names in named.items():
        text = OLD if change == "old" else (OLD + NEW).replace(change, changes[change])
        (shop / "other.yaml").write_text(text)
        rule = f"has other columns than dataset=shop ({names})"
        with refused(
            ConfigError, f"...={first.folder}", rule, "give the dataset= it was made with (shop)..."
        ):
            run_day(shop, "no", "other", 2, *words_of(how, first))


def test_a_new_column_named_like_a_made_one_is_refused(shop: Path) -> None:
    first = run_day(shop, "first", "old", 1, *VOCAB, "dense.bucket_columns=all")
    (shop / "other.yaml").write_text(OLD + "  - {name: price_bucket, role: sparse, kind: string}\n")
    with refused(ConfigError, "encoding.path=...", "has other columns than dataset=shop (price_bucket)"):
        run_day(shop, "no", "other", 2, *words_of("known", first))


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_interruptions_give_the_same_bytes(shop: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_day(shop, "first", "old", 1, "encoding=auto", *CHOSEN)
    given = [*words_of(how, first), *CHOSEN, "threads=1"]
    whole = content(run_day(shop, "whole", "new", 2, *given).folder)
    interruptions = run_in_pieces(
        lambda: run_day(shop, "killed", "new", 2, *given), monkeypatch, commits=1, loses_work=False
    )
    assert interruptions > 3
    assert content(shop / "killed") == whole
