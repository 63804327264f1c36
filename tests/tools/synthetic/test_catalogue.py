"""A generated catalogue: later rows show new items, whose vectors tell who clicks them before anybody has."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

from dlrm_app import train
from dlrm_app.config.generate import GenerateConfig
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.catalogue import Catalogue, make_catalogue
from dlrm_app.tools.synthetic.clicks import make_source
from dlrm_app.tools.synthetic.distribution import draw_rows
from dlrm_app.tools.synthetic.signal import probability
from tests.composed import compose_config
from tests.preprocessing.running import AUTO
from tests.preprocessing.running import run as preprocess

NUM_TRAIN, NUM_NEW, FIRST_NEW = 120_000, 30_000, 200_000
SETTINGS = ["max_cardinality=2000", "catalogue.width=64"]


def made(output: Path, *more: str) -> None:
    generate(compose_config("generate", GenerateConfig, [*SETTINGS, f"output={output}", *more]))


def catalogue() -> Catalogue:
    return make_catalogue([3, 7], width=16, num_items=40, rows_an_item=10)


def test_a_row_shows_the_same_item_whatever_block_it_comes_in() -> None:
    whole = catalogue().items(0, 500)
    assert np.array_equal(whole, np.concatenate([catalogue().items(0, 120), catalogue().items(120, 380)]))


def test_later_rows_show_new_items() -> None:
    """Forty at a time, one of which goes every ten rows."""
    items = catalogue().items(0, 4000)
    rows = np.arange(4000)
    assert np.all(items >= rows // 10)
    assert np.all(items < rows // 10 + 40)
    assert items[:400].max() < items[3000:].min()
    assert items.max() < catalogue().num_known(4000)


def test_the_file_has_a_vector_of_every_item_that_tells_its_taste(tmp_path: Path) -> None:
    made(tmp_path / "log.tsv", "rows=3000", "catalogue.size=50", "catalogue.rows_an_item=10")
    stored = pq.read_table(tmp_path / "log.tsv.items.parquet").to_pydict()
    shown = {line.split("\t")[40] for line in (tmp_path / "log.tsv").read_text().splitlines()}
    assert shown <= {*stored["value"]}
    assert len({*stored["value"]}) == len(stored["value"]) == 299 + 50
    source = make_source(compose_config("generate", GenerateConfig, [*SETTINGS, "output=x"]))
    assert source.catalogue is not None
    items = np.arange(349)
    of_readers = [source.catalogue.part(items, np.full((349, 26), rank))[:, 0] for rank in range(3)]
    vectors = np.array(stored["vector"], np.float64)
    assert (
        LinearRegression().fit(vectors, np.stack(of_readers, 1)).score(vectors, np.stack(of_readers, 1))
        > 0.99
    )


def true_aucs() -> tuple[float, float]:
    """(the best reachable AUC, that without a word of items) of the rows of new items."""
    source = make_source(compose_config("generate", GenerateConfig, [*SETTINGS, "output=x"]))
    assert source.catalogue is not None
    values, ranks, draws = draw_rows(source.shape, source.row_key, FIRST_NEW, NUM_NEW)
    part = source.catalogue.part(source.catalogue.items(FIRST_NEW, NUM_NEW), ranks)
    logits = [source.signal.logits(source.shape, values, ranks, each) for each in (part, 0 * part)]
    labels = draws < probability(logits[0])
    return roc_auc_score(labels, logits[0]), roc_auc_score(labels, logits[1])


@pytest.mark.long
def test_vectors_rank_items_that_training_has_not_seen(tmp_path: Path) -> None:
    """Within 0.02 of the best reachable AUC; ids alone, within that of what all but the item says."""
    made(tmp_path / "log.tsv", f"rows={NUM_TRAIN}")
    made(tmp_path / "new.tsv", f"rows={NUM_NEW}", f"start_row={FIRST_NEW}")
    description = (tmp_path / "new.tsv.yaml").read_text()
    (tmp_path / "ids.yaml").write_text(description.partition("derived:")[0])
    found = {}
    for name, described in (("vectors", "new.tsv.yaml"), ("ids", "ids.yaml")):
        inputs = [f"input.train={tmp_path}/log.tsv", f"input.test={tmp_path}/new.tsv"]
        preprocess(tmp_path / name, f"dataset={tmp_path}/{described}", *inputs, "split.val=0.1", *AUTO)
        run = train(f"data.path={tmp_path}/{name}", "trainer.epochs=1", output=tmp_path / f"run_{name}")
        found[name] = run.auc
    best, without = true_aucs()
    assert found["vectors"] > best - 0.02
    assert abs(found["ids"] - without) < 0.02
    assert found["vectors"] > found["ids"] + 0.05
