"""Calibration: the line through two probes gives them back, and a file that plans with it."""

import re
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.plan import PlanConfig
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.planning.plan_cluster import plan_cluster
from dlrm_app.sharding.estimate import measure
from dlrm_app.sharding.estimate.machine import Machine
from dlrm_app.sharding.estimate.work import Work
from dlrm_app.training.speed import calibrate as calibration
from dlrm_app.training.speed.calibrate import Probe, calibrate, fit

MACHINE = Machine({"fp32": 1e9, "bf16": 2e9}, memory=1e9, exchange=float("inf"))
SMALL = {"mlps": Work(flops=1e6), "lookup": Work(bytes=2e6)}  # 1 and 2 ms at least
LARGE = {"mlps": Work(flops=5e6), "lookup": Work(bytes=4e6)}


def test_the_fitted_machine_gives_both_probes_back() -> None:
    small = {"mlps": 3.0, "lookup": 5.0, "other": 0.5}
    large = {"mlps": 11.0, "lookup": 8.0, "other": 0.6}
    fitted = fit(MACHINE, (SMALL, small), (LARGE, large), "fp32")
    assert fitted.estimate_ms(LARGE, "fp32") == pytest.approx(large)
    assert fitted.estimate_ms(SMALL, "fp32") == pytest.approx({**small, "other": 0.6})
    assert fitted.efficiency["mlps"] == pytest.approx(0.5)
    assert fitted.fixed_ms["lookup"] == pytest.approx(2.0)


def test_a_line_that_would_begin_below_nothing_begins_there() -> None:
    fitted = fit(
        MACHINE, (SMALL, {"mlps": 0.5, "lookup": 9.0}), (LARGE, {"mlps": 50.0, "lookup": 8.0}), "fp32"
    )
    assert fitted.fixed_ms == {"mlps": 0.0, "lookup": 0.0}
    assert fitted.estimate_ms(LARGE, "fp32") == pytest.approx({"mlps": 50.0, "lookup": 8.0})


def test_what_was_measured_is_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    monkeypatch.setattr(calibration, "PROBES", (Probe(2, 50, 8, (8,), 64), Probe(3, 80, 16, (16,), 128)))
    monkeypatch.setattr(calibration, "LOADER_PROBE", Probe(3, 50, 8, (8,), 64, ids=4))
    monkeypatch.setattr(calibration, "STEPS", 3)
    tables = tmp_path / "tables.yaml"
    tables.write_text("specs: [{name: t_a, rows: 50, dim: 8, features: [a, b]}]")
    keys = [f"tables={tables}", "trainer.threads=1"]
    asked = [*keys, "calibrate=true", f"output={tmp_path / 'here'}"]
    topology = calibrate(compose_config("plan", PlanConfig, asked))
    planned = compose_config("plan", PlanConfig, [*keys, f"topology={topology}"])
    assert set(planned.topology.efficiency) >= {"mlps", "lookup", "table_update"}
    assert planned.topology.loader_rows_per_second
    assert planned.topology.loader_ids_per_second
    plan_cluster(planned)
    printed = capsys.readouterr().out
    assert "a whole step, estimated from rates measured by calibrate=true" in printed
    assert "MLPs backward" in printed
    assert re.search("^data  ", printed, re.MULTILINE)


def test_a_calibration_without_a_place_for_its_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="add output=FOLDER"):
        refuse_if(compose_config("plan", PlanConfig, ["calibrate=true"]).problems())


def test_a_model_that_cannot_be_built_is_planned_without_an_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables.yaml"
    tables.write_text(
        "specs: [{name: a, rows: 50, dim: 8, features: [a]}, {name: b, rows: 50, dim: 16, features: [b]}]"
    )
    plan_cluster(compose_config("plan", PlanConfig, [f"tables={tables}", "topology=a100_80g_8"]))
    assert "no estimate of a whole step" in capsys.readouterr().out


@pytest.mark.parametrize(("topology", "chosen"), [("a100_80g_8", "bf16"), ("cpu_2", "fp32")])
def test_auto_is_estimated_as_what_it_would_choose(
    topology: str, chosen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tmp_path / "tables.yaml"
    tables.write_text("specs: [{name: a, rows: 50, dim: 8, features: [a]}]")
    printed = []
    for precision in ("auto", chosen):
        keys = [f"tables={tables}", f"topology={topology}", f"trainer.precision={precision}"]
        plan_cluster(compose_config("plan", PlanConfig, [*keys, "smallest=false"]))
        printed.append(capsys.readouterr().out.partition("a whole step")[2].partition("found in")[0])
    assert printed[0] == printed[1] != ""
