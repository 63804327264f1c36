"""Logs of many columns: arrays that grow give the same dataset, and what is chosen fits."""

from pathlib import Path

import pytest

from dlrm_app.config.datasets import DenseConfig, EncodingConfig
from dlrm_app.logs import parser
from dlrm_app.logs.spec import LogColumn, Spec
from dlrm_app.preprocessing.choose import MOST_CLICKS, choose
from dlrm_app.preprocessing.passes.look import SampleSummary, SparseSummary
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content, run


@pytest.mark.parametrize("encoding", ["hash", "vocab"])
def test_arrays_that_grow_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    (tmp_path / "log.tsv").write_bytes(make_clicks(9_000, bad_every=2_000))
    keys = (
        f"input.train={tmp_path}/log.tsv",
        f"encoding={encoding}",
        "layout.unit_mib=1",
        "layout.row_group_rows=1024",
    )
    found = []
    for most in (1 << 30, 1):
        monkeypatch.setattr(parser, "MOST_VALUES", most)
        run(tmp_path / f"{most}", *keys, "rejects.max_fraction=0.1")
        found.append(content(tmp_path / f"{most}"))
    assert found[0] == found[1]


@pytest.mark.parametrize(("num_columns", "distinct"), [(700, 900), (700, 9_000), (26, 300_000)])
def test_target_columns_that_are_chosen_fit_into_memory(num_columns: int, distinct: int) -> None:
    names = [f"s{number}" for number in range(num_columns)]
    spec = Spec("wide", ",", None, False, tuple(LogColumn(name, "sparse", "string") for name in names))
    rows = 1_000_000
    summary = SampleSummary(rows, rows, {}, dict.fromkeys(names, SparseSummary(rows, distinct)))
    choice = choose(
        summary,
        EncodingConfig(kind="auto"),
        DenseConfig(bucket_columns=None, target_columns="auto"),
        spec,
        has_clicks=True,
    )
    sizes, targets = choice.encoding.num_embeddings or {}, choice.dense.target_columns
    ids = {name: sizes.get(name) or distinct for name in names}
    assert all(size <= distinct for size in ids.values())  # a hash that adds ids is no help
    taken = names if targets == "all" else targets or []
    assert sum(ids[name] for name in taken) <= MOST_CLICKS
    assert (targets == "all") == (sum(ids.values()) <= MOST_CLICKS)
