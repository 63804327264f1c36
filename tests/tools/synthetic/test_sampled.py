"""Generated logs with weights and sampled negatives: lines of the whole log, and scores that are known."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.tools.synthetic import generate
from dlrm_app.tools.synthetic.clicks import make_source
from tests.composed import compose_config
from tests.preprocessing.running import run, table_of
from tests.refusals import refused

ROWS = 40_000


def configured(output: Path, *words: str) -> GenerateConfig:
    return compose_config("generate", GenerateConfig, [f"output={output}", f"rows={ROWS}", *words])


def lines(output: Path, *words: str) -> list[str]:
    generate(configured(output, *words))
    return output.read_text().splitlines()


def test_a_share_of_the_negatives_is_written(tmp_path: Path) -> None:
    """All clicks, in their order; the best scores are those of all rows."""
    whole = lines(tmp_path / "whole.tsv")
    kept = lines(tmp_path / "kept.tsv", "negatives_kept=0.2")
    places = {line: place for place, line in enumerate(whole)}
    assert [places[line] for line in kept] == sorted(places[line] for line in kept)
    assert [line for line in kept if line[0] == "1"] == [line for line in whole if line[0] == "1"]
    negatives = sum(line[0] == "0" for line in whole)
    stayed = sum(line[0] == "0" for line in kept)
    assert abs(stayed - 0.2 * negatives) < 4 * np.sqrt(0.16 * negatives)
    best = [json.loads((tmp_path / f"{name}.tsv.best.json").read_text()) for name in ("whole", "kept")]
    assert {key: best[1][key] for key in ("auc", "logloss", "rows")} == {
        key: best[0][key] for key in ("auc", "logloss", "rows")
    }
    assert "negatives_kept" not in best[0]


def test_the_true_probabilities_reach_the_best_scores_by_weight(tmp_path: Path) -> None:
    """On the sampled rows, negatives counted for those left out: AUC, log loss, and a calibration of 1."""
    words = ["negatives_kept=0.25", "weights=0.5"]
    text = lines(tmp_path / "log.tsv", *words)
    source = make_source(configured(tmp_path / "whole.tsv"))
    whole, chances, labels = source.block(0, ROWS)[:3]
    at = {line: place for place, line in enumerate(whole.decode().splitlines())}
    rows, weights = zip(*(line.rsplit("\t", 1) for line in text), strict=True)
    places = np.array([at[row] for row in rows])
    p, y, w = chances[places], labels[places], np.array(weights, float)
    assert np.log(w).std() == pytest.approx(0.5, rel=0.05)
    w = np.where(y == 1, w, w / 0.25)
    best = json.loads((tmp_path / "log.tsv.best.json").read_text())
    assert roc_auc_score(y, p, sample_weight=w) == pytest.approx(best["auc"], abs=0.01)
    assert log_loss(y, p, sample_weight=w) == pytest.approx(best["logloss"], rel=0.03)
    assert w @ p / (w @ y) == pytest.approx(1, abs=0.03)


def test_a_generated_sampled_log_is_read_back(tmp_path: Path) -> None:
    text = lines(tmp_path / "log.tsv", "negatives_kept=0.25", "weights=0.5")
    given = [f"dataset={tmp_path}/log.tsv.yaml", f"input.train={tmp_path}/log.tsv"]
    manifest = run(tmp_path / "out", *given, "encoding.num_embeddings=100")
    assert manifest.splits["train"].rows == len(text)
    assert (manifest.weight, manifest.negatives_kept) == ("importance", {"train": 0.25})
    weights = table_of(manifest)["importance"].to_pylist()
    assert weights == [float(np.float32(line.rsplit("\t", 1)[1])) for line in text]
    assert manifest.best is not None


@pytest.mark.parametrize("word", ["weights=1", "negatives_kept=0.1"])
def test_inputs_of_models_have_neither(tmp_path: Path, word: str) -> None:
    key = word.partition("=")[0]
    with refused(ConfigError, key, "is of format=criteo"):
        refuse_if(configured(tmp_path / "x", "format=dataset", "merlin=tiny", word).problems())
