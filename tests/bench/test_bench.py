"""dlrm-bench: everything that it is asked for is measured and written."""

import json
from pathlib import Path

import pytest

from dlrm_app.bench import machine as measuring
from dlrm_app.bench.bench import bench
from dlrm_app.bench.sections import Line, Section, line
from dlrm_app.config.compose import compose_config
from dlrm_app.config.like_train import BenchConfig
from dlrm_app.errors import ConfigError, refuse_if
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.sharding.step_estimate import Machine, Work
from tests.commands import command, succeed
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import SMALL

FAST = [*SMALL, "trainer.threads=1", "warm_up=2", "steps=3", "evaluation.batch_size=256"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)


def test_every_section_is_measured_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "clicks", rows={"train": 1000, "val": 300})
    keys = [*FAST, f"data.path={tmp_path / 'clicks'}", f"output={tmp_path / 'bench'}"]
    result = bench(compose_config("bench", BenchConfig, keys))
    assert result is not None
    assert [section.name.split()[0].rstrip(",") for section in result.sections] == [
        *("loader", "model", "whole")
    ]
    whole = result.sections[2]
    assert [each.name for each in whole.parts] == [TITLES[part] for part in PARTS]
    assert whole.rows == 128
    assert 0 < sum(each.ms for each in whole.parts) < 3 * whole.all.ms
    written = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert written["sections"][2]["all"]["ms"] == whole.all.ms
    shown = capsys.readouterr().out
    assert "whole step, from disk" in shown
    assert "MLPs backward" in shown


def test_without_a_dataset_rows_are_made_for_the_tables(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text("specs: [{name: t_a, rows: 50, dim: 8, features: [a, b]}]")
    keys = [*FAST[2:], f"tables={tmp_path / 'tables.yaml'}", "measure=[model]", "num_dense=3"]
    result = bench(compose_config("bench", BenchConfig, keys))
    assert result is not None
    (section,) = result.sections
    assert section.rows_per_second
    assert not list(tmp_path.glob("dlrm-bench*"))


@pytest.mark.long
def test_two_ranks_measure_together(tmp_path: Path) -> None:
    write_dataset(tmp_path / "clicks", rows={"train": 1000})
    keys = [*FAST, "data.path=clicks", "measure=[model]"]
    done = succeed(command("bench", *keys, ranks=2), tmp_path)
    assert done.stdout.count("model alone") == 1


def test_what_cannot_be_measured_is_refused() -> None:
    keys = ["measure=[loader,moon]", "steps=0", "resume=auto"]
    with pytest.raises(ConfigError) as refused:
        refuse_if(compose_config("bench", BenchConfig, keys).problems())
    text = str(refused.value)
    assert all(
        word in text for word in ("moon", "steps", "tables=dataset needs the dataset", "resume has no part")
    )
    assert text.count("resume") == 1, "one cure, and no other against it"


def test_a_floor_is_the_slower_of_products_and_memory_and_then_what_is_sent() -> None:
    machine = Machine({"fp32": 100.0, "bf16": 400.0}, memory=10.0, exchange=5.0)
    work = {
        "a": Work(flops=200, bytes=10),
        "b": Work(flops=200, bytes=30),
        "c": Work(flops=200, bytes=1, sent=5),
    }
    assert machine.floors_ms(work, "fp32") == {"a": 2000, "b": 3000, "c": 3000}
    assert machine.floors_ms(work, "bf16")["c"] == 1500


def test_the_tables_show_medians() -> None:
    parts = (line("MLPs", [1.0, 2.0, 3.0, 4.0, 50.0]), line("data", [0.0, 0.0]))
    assert parts[0] == Line("MLPs", 3.0, 12.0)
    text = str(Section("model alone", Line("all", 3.0, 4.0), parts, 8))
    assert "model alone, 2,000 rows/s" in text, "of the mean, in which bursts of reading count"
    assert "data" not in text, "what took no time is left out"
