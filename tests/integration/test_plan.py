"""dlrm-plan, and dlrm-train under the plans it writes."""

import re
from pathlib import Path

import pytest
import yaml

from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError
from dlrm_app.sharding.plan import plan_text
from dlrm_app.tools.planning.plan_cluster import plan_cluster
from tests.commands import Typed, command, succeed
from tests.composed import compose_config
from tests.integration.test_train import start
from tests.refusals import refused
from tests.small_run import losses

TINY = ["merlin=tiny", "model=dlrm", "optimizer=rowwise_adagrad", "trainer.global_batch_size=65536"]


def test_it_plans_prints_and_writes_from_any_folder(tmp_path: Path, typed: Typed) -> None:
    """Per-rank memory and time, the balance, the smallest cluster, plan.yaml, and what to type next."""
    code, text = typed("plan", *TINY, "topology=a100_80g_8", "output=planned")
    assert code == 0, text
    assert text.startswith("sharding plan for 8 cuda ranks of 80 GiB")
    assert re.search(r"balance \(largest/mean\): time 1\.0\d+, memory", text)
    assert re.search(r"t_1m_\* \(19\) +1,000,000 +16 +table_wise", text)
    assert "the smallest cluster of these devices that the tables fit on: 1 cuda rank" in text
    assert text.rstrip().endswith("wrote planned/plan.yaml")
    written = yaml.safe_load((tmp_path / "planned/plan.yaml").read_text())
    assert (written["nodes"], written["devices_per_node"], len(written["tables"])) == (1, 8, 55)
    assert {rank for entry in written["tables"].values() for rank in entry["ranks"]} == set(range(8))


CPU = ["topology=cpu_2", "topology.memory_gib=1", "trainer.global_batch_size=128"]


@pytest.mark.long
def test_a_run_takes_the_plan_that_was_made_for_it(dataset: Path, tmp_path: Path) -> None:
    """The plan is kept to and kept with the run, and trains like one rank does; what is planned is printed."""
    keys = [f"data.path={dataset}", "tables.embedding_dim=8", *CPU, "sharding.types=[row_wise]"]
    succeed(command("plan", *keys, "output=made"), tmp_path)
    common = (f"data.path={dataset}", "report.enabled=false", "trainer.max_steps=10")
    done = start(tmp_path, *common, "output=two", "sharding.plan=made/plan.yaml", ranks=2)
    assert done.returncode == 0, done.stderr
    assert "sharding plan for 2 cpu ranks" in done.stderr
    kept = yaml.safe_load((tmp_path / "two/plan.yaml").read_text())
    assert kept == yaml.safe_load((tmp_path / "made/plan.yaml").read_text())
    assert {entry["sharding_type"] for entry in kept["tables"].values()} == {"row_wise"}
    assert start(tmp_path, *common, "output=one").returncode == 0
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


RECIPE = [
    "model=dcn",
    "model.ensemble_size=2",
    "tables.embedding_dim=16",
    "optimizer=adagrad",
    "trainer.epochs=3",
]


@pytest.mark.long
def test_dlrm_plan_takes_the_words_of_dlrm_train(dataset: Path, tmp_path: Path) -> None:
    """Type for type: the model's, the optimizer's and the trainer's keys, on ranks that are described for both."""
    common = [f"data.path={dataset}", *CPU, *RECIPE]
    planned = plan_cluster(compose_config("plan", PlanConfig, [*common, f"output={tmp_path}/made"])).plan
    assert planned.work.global_batch_size == 2 * 128  # each member has rows of its own
    done = start(tmp_path, *common, "trainer.max_steps=1", "report.enabled=false", "output=run", ranks=2)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/plan.yaml").read_bytes() == (tmp_path / "made/plan.yaml").read_bytes()
    printed = plan_text(planned).splitlines()
    assert set(printed[:5]) <= set(done.stderr.splitlines())  # what each rank carries


RECIPES = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_training_recipe_can_be_planned(name: str) -> None:
    config = compose_config("plan", PlanConfig, [f"experiment={name}", "data.path=DATASET"])
    assert config.problems() == []
    trained = compose_config("train", TrainConfig, [f"experiment={name}", "data.path=DATASET"])
    for part in ("tables", "model", "optimizer", "sharding", "trainer"):
        assert getattr(config, part) == getattr(trained, part)


def test_a_plan_for_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    """By the fullest rank, before anything is allocated."""
    made = [*TINY, "topology=a100_80g_8", "smallest=false"]
    plan_cluster(compose_config("plan", PlanConfig, [*made, f"output={tmp_path}"]))
    smaller = [*made, f"sharding.plan={tmp_path}/plan.yaml", "topology.memory_gib=1"]
    with refused(
        ConfigError,
        "sharding.plan=.../plan.yaml",
        "gives rank 1 1.6 GiB of tables, but 870 MiB are free (topology.reserved_share=0.15...",
    ):
        plan_cluster(compose_config("plan", PlanConfig, smaller))


def test_the_next_step_says_what_training_on_so_many_ranks_wants(tmp_path: Path) -> None:
    overrides = [*TINY, "topology=a100_80g", "topology.nodes=16", "smallest=false", f"output={tmp_path}"]
    planned = plan_cluster(compose_config("plan", PlanConfig, [*overrides, "data.lanes=64"]))
    assert any("data.lanes=64 is not a multiple of the 128 ranks" in each for each in planned.batch_problems)
    assert plan_cluster(compose_config("plan", PlanConfig, overrides)).batch_problems == []


def test_a_model_that_cannot_be_built_is_planned_without_a_floor(tmp_path: Path) -> None:
    tables = tmp_path / "tables.yaml"
    tables.write_text(
        "specs: [{name: a, rows: 50, dim: 8, features: [a]}, {name: b, rows: 50, dim: 16, features: [b]}]"
    )
    planned = plan_cluster(compose_config("plan", PlanConfig, [f"tables={tables}", "topology=a100_80g_8"]))
    assert "no floor of a step" in str(planned)


def test_the_floor_names_its_limit() -> None:
    """A pod of GPUs with a network of 1 MB/s can wait for nothing else."""
    keys = ["tables=criteo_kaggle", "topology=a100_80g", "topology.nodes=2", "smallest=false"]
    printed = str(plan_cluster(compose_config("plan", PlanConfig, [*keys, "topology.inter_node_gbps=0.001"])))
    found = re.search(r"floor of a step: ([\d,.]+) ms, limited by exchange between nodes; at most", printed)
    assert found is not None
    assert f"exchange between nodes: at least {found[1]} ms" in printed
