"""A machine's topology file: the lines through two readings give them back, and dlrm-plan reads what was measured."""

from pathlib import Path

import pytest

from dlrm_app.bench import machine as measuring
from dlrm_app.bench.machine import Probe, fit, measure_topology
from dlrm_app.config.compose import compose_config
from dlrm_app.config.like_train import BenchConfig, PlanConfig
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.planning.plan_cluster import plan_cluster
from dlrm_app.sharding.step_estimate import Machine, Work

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


@pytest.mark.slow
def test_what_was_measured_is_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    config = compose_config("bench", BenchConfig, [f"output={tmp_path}/machine.yaml", "trainer.threads=1"])
    assert config.problems() == []
    Path(config.output or "").touch()  # of an earlier measurement, which is replaced
    probes = Probe(2, 50, 8, (8,), 64), Probe(3, 80, 16, (16,), 128)
    with start_runtime(num_threads=1) as runtime:
        text = measure_topology(config, runtime, tmp_path, probes, steps=3)
    Path(config.output or "").write_text(text)
    (tmp_path / "tables.yaml").write_text("specs: [{name: t_a, rows: 50, dim: 8, features: [a, b]}]")
    keys = [f"tables={tmp_path}/tables.yaml", f"topology={config.output}"]
    planned = compose_config("plan", PlanConfig, keys)
    assert set(planned.topology.efficiency) >= {"mlps", "lookup", "table_update"}
    printed = str(plan_cluster(planned))
    assert "a whole step, estimated from rates measured by dlrm-bench" in printed
    assert "MLPs backward" in printed
