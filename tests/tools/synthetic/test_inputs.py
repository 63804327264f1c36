"""Inputs of synthetic models: the law of their ids, and datasets that depend on the seed alone."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.loader.reader import SplitReader
from dlrm_app.tools.synthetic import generate, inputs
from dlrm_app.tools.synthetic.distribution import power_law, power_law_span
from dlrm_app.tools.synthetic.inputs import Feature, make_inputs, write_splits
from tests.composed import compose_config
from tests.loader.test_rows import copied, whole
from tests.refusals import refused

FEATURES = [
    Feature("one", 1000, 1),
    Feature("bag", 1000, 10),
    Feature("huge", 2**31 - 1, 3),
    Feature("tiny", 1, 1),
]
SPECS = """
specs:
  - {name: shared, count: 2, rows: 1000, dim: 8, features: [one, bag], pooling_factors: [1, 5]}
  - {name: t, rows: 50, dim: 4, features: [f]}
"""


def merlin_power_law(k_min: float, k_max: float, alpha: float, r: np.ndarray) -> np.ndarray:
    """As NVIDIA Merlin's distributed-embeddings has it, before it is cut to whole numbers."""
    gamma = 1 - alpha
    return pow(r * (pow(k_max, gamma) - pow(k_min, gamma)) + pow(k_min, gamma), 1.0 / gamma)


def distribution(ids: np.ndarray, rows: int, alpha: float) -> np.ndarray:
    """The chance of an id of at most ``ids``, from the integral of x^-alpha over [1, rows + 1)."""
    if alpha == 1:
        return np.log(ids + 2.0) / math.log(rows + 1)
    gamma = 1 - alpha
    return ((ids + 2.0) ** gamma - 1) / ((rows + 1.0) ** gamma - 1)


def configure(output: Path, *overrides: str) -> GenerateConfig:
    """As the command would: every problem is refused."""
    config = compose_config("generate", GenerateConfig, [f"output={output}", "format=dataset", *overrides])
    refuse_if(config.problems())
    return config


@pytest.fixture
def tables(tmp_path: Path) -> str:
    file = tmp_path / "specs.yaml"
    file.write_text(SPECS)
    return f"tables={file}"


@given(
    u=st.floats(2**-53, 1 - 2**-53),
    rows=st.integers(1, 2**31 - 1),
    alpha=st.floats(0, 4).filter(lambda a: abs(a - 1) > 1e-3),
)
def test_ids_follow_merlins_formula(u: float, rows: int, alpha: float) -> None:
    """Near alpha = 1 theirs loses digits; there ours is compared with the limit below."""
    found = power_law(u, power_law_span(rows, 1 - alpha), 1 - alpha)
    expected = merlin_power_law(1, rows + 1, alpha, np.float64(u))
    assert found == pytest.approx(expected, rel=1e-9 / abs(1 - alpha))


@given(u=st.floats(2**-53, 1 - 2**-53), rows=st.integers(1, 2**31 - 1))
def test_at_alpha_one_the_logarithm_is_uniform(u: float, rows: int) -> None:
    assert power_law(u, power_law_span(rows, 0.0), 0.0) == pytest.approx((rows + 1) ** u, rel=1e-12)
    near = power_law(u, power_law_span(rows, 1e-5), 1e-5)
    assert near == pytest.approx((rows + 1) ** u, rel=1e-2)


@pytest.mark.parametrize("rows", [10, 1000, 25_000_000, 2**31 - 1])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.05, 2.0])
def test_the_distribution_is_the_closed_form(rows: int, alpha: float) -> None:
    """Nowhere further from it than the Dvoretzky-Kiefer-Wolfowitz bound that one seed in 10^9 would break."""
    count = 200_000
    drawn = make_inputs([Feature("f", rows, 4)], num_dense=0, alpha=alpha, seed=1)
    ids = np.sort(drawn.rows(0, count // 4).column("f").combine_chunks().flatten().to_numpy())
    assert ids[0] >= 0
    assert ids[-1] < rows
    places, first, counts = np.unique(ids, return_index=True, return_counts=True)
    found = (first + counts) / count
    bound = math.sqrt(math.log(2 / 1e-9) / (2 * count))
    assert np.abs(found - distribution(places, rows, alpha)).max() < bound
    below = np.where(places > 0, distribution(places - 1, rows, alpha), 0)
    assert np.abs(first / count - below).max() < bound


def test_columns_have_their_types_widths_and_ranges() -> None:
    table = make_inputs(FEATURES, num_dense=2, alpha=1.05, seed=0).rows(0, 5000)
    assert table.column_names == ["label", "num_0", "num_1", "one", "bag", "huge", "tiny"]
    assert table.schema.field("label").type == pa.uint8()
    for name in ("num_0", "num_1"):
        values = table.column(name).to_numpy()
        assert values.dtype == np.float32
        assert 0 <= values.min() < 0.1
        assert 99.9 < values.max() < 100
        assert values.mean() == pytest.approx(50, abs=5 * 100 / math.sqrt(12 * 5000))
    assert table.column("label").to_numpy().mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(5000))
    assert set(table.column("bag").combine_chunks().value_lengths().to_pylist()) == {10}
    assert set(table.column("huge").combine_chunks().value_lengths().to_pylist()) == {3}
    assert table.column("one").type == pa.int32()
    assert set(table.column("tiny").to_pylist()) == {0}


def test_columns_are_drawn_apart() -> None:
    """No two columns of one table repeat each other, nor does another seed repeat the first."""
    features = [Feature(name, 10**9, 1) for name in "abc"]
    first, other = (make_inputs(features, 1, 0.0, seed).rows(0, 1000) for seed in (0, 1))
    columns = [table.column(name).to_numpy() for table in (first, other) for name in "abc"]
    for place, column in enumerate(columns):
        assert abs(np.corrcoef(column, first.column("num_0").to_numpy())[0, 1]) < 0.2
        for later in columns[place + 1 :]:
            assert abs(np.corrcoef(column, later)[0, 1]) < 0.2


@given(first=st.integers(0, 10**12), cut=st.integers(1, 99))
def test_a_row_is_the_same_in_whatever_pieces_it_is_asked_for(first: int, cut: int) -> None:
    drawn = make_inputs(FEATURES, num_dense=2, alpha=1.05, seed=0)
    pieces = [drawn.rows(first, cut), drawn.rows(first + cut, 100 - cut)]
    assert drawn.rows(first, 100).equals(pa.concat_tables(pieces).combine_chunks())


def test_the_files_are_the_same_bytes_with_any_number_of_threads(tmp_path: Path) -> None:
    drawn = make_inputs(FEATURES, num_dense=2, alpha=1.05, seed=0)
    made = []
    for threads in (1, 2, 5):
        folder = tmp_path / str(threads)
        folder.mkdir()
        splits = write_splits(folder, drawn, {"train": 1000, "val": 130, "test": 0}, 7, 8, threads)
        assert [len(found.shards) for found in splits.values()] == [8, 2]
        assert splits["train"].shards[-1].row_groups == [8] * 13
        made.append(
            {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}
        )
        whole = pa.concat_tables([pq.read_table(path) for path in sorted(folder.rglob("train/*.parquet"))])
        assert whole.to_pydict() == drawn.rows(7, 1000).to_pydict()
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("row_bytes", [1, 400, 4 << 20, 190_000, 10**9])
def test_row_groups_fit_memory_and_outweigh_their_headers(row_bytes: int) -> None:
    rows = make_inputs([Feature("f", 9, row_bytes // 4)], 0, 1.0, 0).group_rows
    assert 256 <= rows <= 32768
    assert rows == 256 or rows * row_bytes <= 4 << 20


def test_the_dataset_is_one_that_the_reader_takes(tmp_path: Path, tables: str) -> None:
    """Every row of every split decodes, ids are within their tables, and the manifest's figures are the files'."""
    made = generate(
        configure(tmp_path / "data", tables, "rows=3000", "val_rows=500", "num_dense=3", "seed=5")
    )
    manifest = read_manifest(tmp_path / "data")
    assert manifest == made.manifest
    verify_shards(manifest, checksums=True)
    names = ["one_0", "bag_0", "one_1", "bag_1", "f"]
    assert [(c.name, c.num_embeddings, c.multi_hot) for c in manifest.sparse] == [
        (name, 50 if name == "f" else 1000, name.startswith("bag")) for name in names
    ]
    assert {split: found.rows for split, found in manifest.splits.items()} == {"train": 3000, "val": 500}
    for split, found in manifest.splits.items():
        decoded = whole(SplitReader(manifest, split, names).decode(0))
        (rows,) = copied(decoded, 3, 5)
        assert len(rows) == found.rows
        assert [{len(bags[place]) for _, bags, _ in rows} for place in range(5)] == [{1}, {5}, {1}, {5}, {1}]
        assert sum(label for *_, (label,) in rows) == found.positives
    assert manifest.best == {"auc": 0.5, "logloss": math.log(2)}


def test_val_goes_on_where_train_ends(tmp_path: Path, tables: str) -> None:
    generate(configure(tmp_path / "both", tables, "rows=700", "val_rows=300"))
    generate(configure(tmp_path / "val", tables, "rows=300", "start_row=700"))
    val, train = (pq.read_table(tmp_path / name / "part-00000.parquet") for name in ("both/val", "val/train"))
    assert val.equals(train)


def test_the_old_dataset_stays_until_the_new_one_is_complete(
    tmp_path: Path, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused without overwrite=true; with it, a failure in the middle leaves the old dataset and nothing else."""
    output = tmp_path / "data"
    generate(configure(output, tables, "rows=100"))
    before = json.loads((output / "manifest.json").read_text())
    with refused(
        ConfigError, "output=.../data", "exists", cure="choose another name, or overwrite=true to replace it"
    ):
        generate(configure(output, tables, "rows=200"))

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(inputs, "write_manifest", fail)
        with pytest.raises(OSError, match="the disk is full"):
            generate(configure(output, tables, "rows=200", "overwrite=true"))
    assert json.loads((output / "manifest.json").read_text()) == before
    generate(configure(output, tables, "rows=200", "overwrite=true"))
    assert read_manifest(output).splits["train"].rows == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "specs.yaml"]


@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (["tables=dataset"], "format=dataset", "needs tables..."),
        (["merlin=tiny", "alpha=-1"], "alpha", "must be at least 0 and at most 4"),
        (["merlin=tiny", "format=criteo"], "tables", "are for format=dataset..."),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, overrides: list[str], key: str, rule: str
) -> None:
    with refused(ConfigError, key, rule, value=-1 if key == "alpha" else "..."):
        configure(tmp_path / "data", *overrides)


@pytest.mark.parametrize(
    ("spec", "key", "rule"),
    [
        ({"rows": 2**31}, "table t", "has 2,147,483,648 rows, but ids are int32"),
        ({"rows": 9, "pooling_factors": [1.5]}, "table t", "reads feature f with the pooling factor 1.5"),
        ({"rows": 9, "dim": 6}, "tables.specs[0] (t): dim", "must be a positive multiple of 4"),
    ],
)
def test_tables_that_cannot_be_drawn_are_refused(
    tmp_path: Path, spec: dict[str, object], key: str, rule: str
) -> None:
    file = tmp_path / "specs.yaml"
    file.write_text(yaml.safe_dump({"specs": [{"name": "t", "dim": 4, "features": ["f"], **spec}]}))
    with refused(ConfigError, key, rule):
        generate(configure(tmp_path / "data", f"tables={file}"))


def test_a_dataset_that_does_not_fit_or_is_in_the_way_is_refused(tmp_path: Path, tables: str) -> None:
    with refused(ConfigError, "rows", "needs about 372 TB at ..., which has ... free"):
        generate(configure(tmp_path / "data", tables, "rows=4_000_000_000_000"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "letter.txt").write_text("keep me")
    with refused(ConfigError, "output=.../notes", "exists and is not a dataset folder"):
        generate(configure(tmp_path / "notes", tables, "overwrite=true"))
    with refused(ConfigError, "output=.../notes/letter.txt", "is a file"):
        configure(tmp_path / "notes" / "letter.txt", tables)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "specs.yaml"]
