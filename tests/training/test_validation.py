"""Whatever is wrong with a training run or a plan is told in one message, before any work."""

from pathlib import Path

import pytest

from dlrm_app.config.like_train import PlanConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.errors import ConfigError, DataError
from dlrm_app.training.validation import check_plan, check_training
from tests.composed import compose_config
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import find_problem, is_like, refused
from tests.small_run import SMALL

TWO_RANKS = Runtime(rank=0, local_rank=0, world_size=2, local_world_size=2, device_type="cpu", num_threads=1)

MISTAKES = {
    "trainer.log_every_steps=0": "trainer.log_every_steps must be at least 1",
    "optimizer.dense.lr=-1": "optimizer.dense.lr must be above 0",
    "optimizer.sparse.max_gradient=1": "tables t_c0, t_c1, t_m0: max_gradient needs an optimizer inside",
    "optimizer=adam": "",  # on CPU not fused, which max_gradient needs
    "data.lanes=7": "data.lanes=7 is not a multiple of the 2 ranks",
    "evaluation.group_by=nothing": "evaluation.group_by=nothing is neither a one-hot feature",
    "evaluation.patience=3": "evaluation.patience needs a labelled val split",
    "trainer.pipeline=prefetch": "trainer.pipeline=prefetch fetches rows into a GPU's cache",
    "sharding.tables={u_*:{types:[row_wise]}}": "sharding.tables.u_* fits no table",
    "topology=cpu_2": "",  # the ranks that are described have to be those that were started
    "topology.nodes=2": "topology describes 2 × 2 cpu ranks",
    "schedule=cosine": "",
    "schedule.sparse.warmup_steps=900": "schedule.sparse.warmup_steps must be less than the run's 7 steps",
    "model.ensemble_size=3": "model.ensemble_size=3 must divide the tables' width",
}


def check(*overrides: str, runtime: Runtime = TWO_RANKS) -> None:
    check_training(compose_config("train", TrainConfig, [*SMALL, *overrides]), runtime)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("validation") / "data"
    write_dataset(folder, rows={"train": 1000})
    return f"data.path={folder}"


def test_mistakes_of_every_kind_come_in_one_message(dataset: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(dataset, *MISTAKES)
    expected = [start for start in MISTAKES.values() if start]
    for start in expected:
        assert any(str(problem).startswith(start) for problem in caught.value.problems), (start, caught.value)
    batch_needs_lanes = 1
    assert len(caught.value.problems) == len(expected) + batch_needs_lanes


@pytest.mark.parametrize(("torchrec", "is_refused"), [("1.6.1", True), ("1.8.0", False), ("1.9.2", False)])
def test_prefetch_on_a_gpu_refuses_an_unsafe_torchrec(
    torchrec: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrec 1.6 never calls the method that makes the exchange of ids wait."""
    monkeypatch.setattr("dlrm_app.machine.version", lambda name: {"torchrec": torchrec}[name])
    asked = ["merlin=tiny", "topology=a100_80g_8", "trainer.pipeline=prefetch"]
    config = compose_config("plan", PlanConfig, asked)
    if not is_refused:
        check_plan(config)
        return
    with pytest.raises(ConfigError) as caught:
        check_plan(config)
    [problem] = caught.value.problems
    cure = "...use trainer.pipeline=sparse_dist, or torchrec 1.8.0..."
    assert is_like(problem, "trainer.pipeline=prefetch", "would let torchrec 1.6.1...", cure)


def test_a_run_in_the_folder_of_a_dataset_is_refused(dataset: str) -> None:
    output = dataset.replace("data.path", "output")
    config = compose_config("train", TrainConfig, [*SMALL, dataset, output])
    with refused(ConfigError, "output=.../data", "is a dataset"):
        check_training(config, TWO_RANKS, starts_run=True)


def test_without_mistakes_the_dataset_and_its_tables_are_given(dataset: str) -> None:
    manifest, tables = check_training(compose_config("train", TrainConfig, [*SMALL, dataset]), TWO_RANKS)
    assert manifest.splits["train"].rows == 1000
    assert [table.name for table in tables] == ["t_c0", "t_c1", "t_m0"]


def test_checks_that_depend_on_a_wrong_value_are_left_out(dataset: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(dataset, "data.lanes=0", "trainer.global_batch_size=0")
    assert len(caught.value.problems) == 2


def test_a_missing_dataset_is_a_data_error_only_if_alone(tmp_path: Path) -> None:
    nowhere = f"data.path={tmp_path / 'nowhere'}"
    with refused(DataError, ".../nowhere", "does not exist"):
        check(nowhere)
    with pytest.raises(ConfigError) as caught:
        check(nowhere, "optimizer.sparse.lr=-1", "tables=criteo_kaggle", "sharding.tables={u_*:{}}")
    first, second, third = caught.value.problems
    assert first.key == "optimizer.sparse.lr"
    assert is_like(second, f"{tmp_path}/nowhere", "does not exist")
    assert is_like(third, "sharding.tables.u_*", "fits no table")


def test_a_plan_is_refused_for_the_same_reasons_and_for_its_file(tmp_path: Path) -> None:
    asked = ["merlin=tiny", "topology=cpu_2", f"sharding.plan={tmp_path / 'plan.yaml'}"]
    with refused(ConfigError, "sharding.plan=.../plan.yaml", "cannot be read (No such file or directory)"):
        check_plan(compose_config("plan", PlanConfig, asked))
    asked += ["optimizer.sparse.lr=-1", "topology=auto", "tables.data_types={v_*:fp16}", "data.path=nowhere"]
    with pytest.raises(ConfigError) as caught:
        check_plan(compose_config("plan", PlanConfig, asked))
    for key, rule in (
        ("optimizer.sparse.lr", "must be above 0"),
        ("topology", "must describe..."),
        ("tables.data_types.v_*", "fits no table"),
        ("nowhere", "does not exist"),
    ):
        assert find_problem(caught.value, key, rule)
