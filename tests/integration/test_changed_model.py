"""A run that begins with another model's weights keeps what both have, if asked to, and logs the rest."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.errors import ConfigError, DataError
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import is_like, refused
from tests.small_run import evaluate_here, final_bytes, losses, train_here

IN_ORDER = "data.shuffle=false"
ALLOW = "warm_start.allow=[features,dense]"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "dataset"
    write_dataset(folder, rows={"train": 4 * 128, "val": 256}, one_hot=(50, 1000, 900), multi_hot=(30,))
    return folder


def view(dataset: Path, folder: Path, **columns: list[str]) -> Path:
    """``dataset`` with those columns alone, in that order: other datasets of the same rows."""
    folder.mkdir(parents=True)
    manifest: dict[str, Any] = json.loads((dataset / "manifest.json").read_text())
    for kind, names in columns.items():
        by_name = {column["name"]: column for column in manifest[kind]}
        manifest[kind] = [by_name[name] for name in names]
    for split in manifest["splits"]:
        (folder / split).symlink_to(dataset / split)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def narrow(wide: Path) -> Path:
    return view(wide, wide.parent / "narrow", dense=["i0", "i2"], sparse=["c0", "c2", "m0"])


@pytest.fixture(scope="module")
def former(narrow: Path) -> Path:
    run = narrow.parent / "former"
    train_here(run, f"data.path={narrow}", IN_ORDER, "trainer.max_steps=3", "optimizer.dense.ema_decay=0.9")
    return run


def begin_with(run: Path, former: Path, dataset: Path, *overrides: str) -> None:
    keys = [
        f"data.path={dataset}",
        IN_ORDER,
        f"warm_start.checkpoint={former}",
        "optimizer.dense.ema_decay=0.9",
    ]
    train_here(run, *keys, *overrides)


def test_new_parts_must_be_allowed_and_change_nothing_at_first(
    former: Path, narrow: Path, wide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError) as caught:
        begin_with(tmp_path / "run", former, wide)
    first, second, _ = caught.value.problems
    assert is_like(
        first, "features", "differ from ...step-000000003: c1 new", "...warm_start.allow=[features]"
    )
    assert is_like(second, "dense", "differ from ...: ...i1... new", "...warm_start.allow=[dense]")
    assert not (tmp_path / "run").exists()
    begin_with(tmp_path / "same", former, narrow)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        begin_with(tmp_path / "run", former, wide, ALLOW)
    assert losses(tmp_path / "run")[0] == pytest.approx(losses(tmp_path / "same")[0], rel=1e-5)
    table = [line.split() for line in caplog.text.splitlines()]
    assert ["3", "tables", "whole"] in table
    assert ["t_c1", "new", "1,000"] in table
    assert ["i1", "new", "1"] in table


def test_a_model_reads_its_own_columns_of_rows_that_have_more(
    former: Path, narrow: Path, wide: Path, tmp_path: Path
) -> None:
    turned = view(wide, tmp_path / "turned", dense=["i2", "i1", "i0"], sparse=["m0", "c2", "c0"])
    found = [
        evaluate_here(f"checkpoint={former}", f"data.path={path}", "split=val").models[0]
        for path in (narrow, wide, turned)
    ]
    assert (
        len({tuple(value for key, value in each.metrics.items() if key != "seconds") for each in found}) == 1
    )
    with refused(DataError, "dense", "columns are i0, the model's i0, i2"):
        less = view(wide, tmp_path / "less", dense=["i0"], sparse=["c0", "c2", "m0"])
        evaluate_here(f"checkpoint={former}", f"data.path={less}", "split=val")


def test_a_run_without_some_columns_needs_allow_and_resumes(
    wide: Path, narrow: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin = [f"data.path={wide}", IN_ORDER, "trainer.max_steps=3", "optimizer.dense.ema_decay=0.9"]
    train_here(tmp_path / "former", *begin)
    with refused(ConfigError, "features", "differ from ...: c1 left out", "...allow=[dense,features]"):
        begin_with(tmp_path / "run", tmp_path / "former", narrow, "warm_start.allow=[dense]")
    with caplog.at_level(logging.INFO):
        begin_with(tmp_path / "whole", tmp_path / "former", narrow, ALLOW)
    table = [line.split() for line in caplog.text.splitlines()]
    assert ["t_c1", "dropped", "1,000"] in table
    begin_with(tmp_path / "run", tmp_path / "former", narrow, ALLOW, "trainer.max_steps=2")
    begin_with(tmp_path / "run", tmp_path / "former", narrow, ALLOW, "resume=auto")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")


def test_layers_of_another_shape_must_be_allowed(former: Path, narrow: Path, tmp_path: Path) -> None:
    with refused(
        ConfigError,
        "model.bottom_mlp",
        "is [24], in .../former/checkpoints/step-000000003 [16]",
        cure="give model.bottom_mlp=[16], or draw what has another shape by...",
    ):
        begin_with(tmp_path / "run", former, narrow, "model.bottom_mlp=[24]")
    begin_with(tmp_path / "run", former, narrow, "model.bottom_mlp=[24]", "warm_start.allow=[layers]")
    allow = "warm_start.allow=[layers,features,dense]"
    with refused(ConfigError, "model.kind", "is dcn, in .../former/checkpoints/step-000000003 dlrm"):
        begin_with(tmp_path / "other", former, narrow, "model=dcn", "model.dcn_low_rank_dim=4", allow)
    with refused(ConfigError, "tables.t_c0.dim", "is 12, in ... 8", "give dim=8"):
        begin_with(tmp_path / "other", former, narrow, "tables.embedding_dim=12", allow)
    with refused(
        ConfigError, "warm_start.allow", "must be one of features, dense, layers, label", value="rows"
    ):
        begin_with(tmp_path / "other", former, narrow, "warm_start.allow=[rows]")


def test_tables_of_fewer_rows_or_other_values_are_refused(narrow: Path, tmp_path: Path) -> None:
    def specs(rows: int, features: str = "c0") -> str:
        first = f"{{name:a,rows:{rows},dim:8,features:[{features}]}}"
        return f"tables.specs=[{first},{{name:b,rows:900,dim:8,features:[c2]}}]"

    keys = ["tables.from_dataset=false", "trainer.max_steps=3", "model.initial_bias=random"]
    train_here(tmp_path / "former", f"data.path={narrow}", IN_ORDER, *keys, specs(60))
    begin = [f"data.path={narrow}", IN_ORDER, *keys, f"warm_start.checkpoint={tmp_path}/former"]
    with refused(ConfigError, "tables.a", "has 55 rows, in .../former/checkpoints/step-000000003 60"):
        train_here(tmp_path / "less", *begin, specs(55))
    with refused(ConfigError, "tables.a", "reads m0, in ... c0, so its rows belong to other values"):
        train_here(tmp_path / "less", *begin, specs(60, "m0"), "warm_start.allow=[features]")


def test_a_column_of_another_meaning_is_always_refused(former: Path, narrow: Path, tmp_path: Path) -> None:
    other = view(narrow, tmp_path / "other")
    path = other / "manifest.json"
    path.write_text(
        re.sub(r'"transform": {"kind": "none"}', '"transform": {"kind": "log1p"}', path.read_text(), count=1)
    )
    with refused(DataError, "i0", "has transform ...log1p..."):
        begin_with(tmp_path / "run", former, other, ALLOW)
