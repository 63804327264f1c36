"""A machine's topology file: the lines through two readings give them back, and dlrm-plan reads what was measured."""

import re
from pathlib import Path

import pytest

from dlrm_app.bench import machine as measuring
from dlrm_app.bench.machine import Probe, fit, fit_rates, measure_topology, read_epoch
from dlrm_app.config.compose import compose_config
from dlrm_app.config.like_train import BenchConfig, PlanConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.planning.plan_cluster import plan_cluster
from dlrm_app.sharding.step_estimate import Loaded, Machine, Work
from tests.loader.dataset_fixture import write_dataset

MACHINE = Machine({"fp32": 1e9, "bf16": 2e9}, memory=1e9, exchange=float("inf"))
SMALL = {"mlps": Work(flops=1e6), "lookup": Work(bytes=2e6)}
LARGE = {"mlps": Work(flops=5e6), "lookup": Work(bytes=4e6)}
FLOORS = {"mlps": 1.0, "lookup": 2.0}, {"mlps": 5.0, "lookup": 4.0}
"""Of both, in milliseconds."""


def test_the_fitted_machine_gives_both_probes_back() -> None:
    small = {"mlps": 3.0, "lookup": 5.0, "other": 0.5}
    large = {"mlps": 11.0, "lookup": 8.0, "other": 0.6}
    fitted = fit(MACHINE, (FLOORS[0], small), (FLOORS[1], large))
    assert fitted.estimate_ms(LARGE, "fp32") == pytest.approx(large)
    assert fitted.estimate_ms(SMALL, "fp32") == pytest.approx({**small, "other": 0.6})
    assert fitted.efficiency["mlps"] == pytest.approx(0.5)
    assert fitted.fixed_ms["lookup"] == pytest.approx(2.0)


def test_a_line_that_would_begin_below_nothing_begins_there() -> None:
    large = {"mlps": 50.0, "lookup": 8.0}
    fitted = fit(MACHINE, (FLOORS[0], {"mlps": 0.5, "lookup": 9.0}), (FLOORS[1], large))
    assert fitted.fixed_ms == {"mlps": 0.0, "lookup": 0.0}
    assert fitted.estimate_ms(LARGE, "fp32") == pytest.approx(large)


def test_the_loaders_rates_give_both_readings_back() -> None:
    few, many = (Loaded(1000, 1000), 0.003), (Loaded(1000, 80_000), 0.043)
    rows, ids = fit_rates(few, many)
    machine = Machine({}, 1.0, 1.0, loader_rows=rows, loader_ids=ids)
    assert machine.loader_ms(few[0]) == pytest.approx(3)
    assert machine.loader_ms(many[0]) == pytest.approx(43)


@pytest.mark.parametrize("seconds", [(0.003, 0.003), (0.003, 0.002), (0.0, 0.043)])
def test_readings_that_differ_by_noise_give_rates_all_the_same(seconds: tuple[float, float]) -> None:
    rates = fit_rates((Loaded(1000, 1000), seconds[0]), (Loaded(1000, 80_000), seconds[1]))
    assert all(0 < rate < float("inf") for rate in rates)


def test_an_epoch_is_counted_and_timed(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "clicks", rows={"train": 1000})
    features = [column.name for column in manifest.sparse if not column.multi_hot]
    keys = [
        f"data.path={manifest.path}",
        "data.lanes=8",
        "trainer.global_batch_size=64",
        "tables.embedding_dim=8",
    ]
    with start_runtime(num_threads=1) as runtime:
        read, seconds = read_epoch(compose_config("bench", BenchConfig, keys), features, runtime)
    assert read == Loaded(960, 960 * len(features))
    assert seconds > 0


def test_what_was_measured_is_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    config = compose_config("bench", BenchConfig, [f"output={tmp_path}/machine.yaml", "trainer.threads=1"])
    assert config.problems() == []
    Path(config.output or "").touch()  # of an earlier measurement, which is replaced
    probes = Probe(2, 50, 8, (8,), 64), Probe(3, 80, 16, (16,), 128)
    with start_runtime(num_threads=1) as runtime:
        text = measure_topology(config, runtime, tmp_path, probes, Probe(3, 50, 8, (8,), 64, ids=4), steps=3)
    Path(config.output or "").write_text(text)
    (tmp_path / "tables.yaml").write_text("specs: [{name: t_a, rows: 50, dim: 8, features: [a, b]}]")
    keys = [f"tables={tmp_path}/tables.yaml", f"topology={config.output}"]
    planned = compose_config("plan", PlanConfig, keys)
    assert set(planned.topology.efficiency) >= {"mlps", "lookup", "table_update"}
    assert planned.topology.loader_rows_per_second
    assert planned.topology.loader_ids_per_second
    plan_cluster(planned)
    printed = capsys.readouterr().out
    assert "a whole step, estimated from rates measured by dlrm-bench" in printed
    assert "MLPs backward" in printed
    assert re.search("^data  ", printed, re.MULTILINE)
