"""How fast batches are made: the line through two readings gives them back, and what is read is counted."""

from pathlib import Path

import pytest

from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.sharding.estimate.machine import Machine
from dlrm_app.sharding.estimate.work import Loaded
from dlrm_app.training.speed import loader_rates
from dlrm_app.training.speed.loader_rates import fit_rates, read_epoch
from tests.loader.dataset_fixture import write_dataset
from tests.plain_training import compose_train


def test_the_rates_give_both_readings_back() -> None:
    few, many = (Loaded(1000, 1000), 0.003), (Loaded(1000, 80_000), 0.043)
    rows, ids = fit_rates(few, many)
    machine = Machine({}, 1.0, 1.0, loader_rows=rows, loader_ids=ids)
    assert machine.loader_ms(few[0]) == pytest.approx(3)
    assert machine.loader_ms(many[0]) == pytest.approx(43)


@pytest.mark.parametrize("seconds", [(0.003, 0.003), (0.003, 0.002), (0.0, 0.043)])
def test_readings_that_differ_by_noise_give_rates_all_the_same(seconds: tuple[float, float]) -> None:
    rates = fit_rates((Loaded(1000, 1000), seconds[0]), (Loaded(1000, 80_000), seconds[1]))
    assert all(0 < rate < float("inf") for rate in rates)


def test_an_epoch_is_counted_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "clicks", rows={"train": 1000})
    manifest = read_manifest(tmp_path / "clicks")
    config = compose_train("data.lanes=8", "trainer.global_batch_size=64")
    ticks = iter(range(100))
    monkeypatch.setattr(loader_rates, "_seconds", lambda _: next(ticks))
    with start_runtime(num_threads=1) as runtime:
        features = [column.name for column in manifest.sparse if not column.multi_hot]
        assert read_epoch(config, manifest, features, runtime) == (Loaded(960, 960 * len(features)), 1)
