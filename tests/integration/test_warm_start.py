"""A run that begins with another's weights is that run going on, on whatever rows, and takes only what fits."""

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from dlrm_app.api.auto_recipe import auto_settings
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError
from dlrm_app.runs.checkpoint.marker import read_marker
from tests.composed import compose_config, read_words
from tests.loader.dataset_fixture import write_dataset
from tests.refusals import refused
from tests.small_run import evaluate_here, events, final_bytes, losses, train_here

STEPS = 15
IN_ORDER = "data.shuffle=false"
"""Every epoch has the same batches, so that a second one can be another run's first."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day") / "dataset"
    write_dataset(folder, rows={"train": STEPS * 128, "val": 256})
    return folder


@pytest.fixture(scope="module")
def former(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("former") / "run"
    train_here(folder, f"data.path={dataset}", IN_ORDER)
    return folder


def begin_with(run: Path, former: Path, dataset: Path, *overrides: str) -> None:
    train_here(run, f"data.path={dataset}", IN_ORDER, f"warm_start.checkpoint={former}", *overrides)


def test_a_separate_run_stops_and_resumes(former: Path, dataset: Path, tmp_path: Path) -> None:
    """The steps that optimizers count go on over both, which Adam's correction of its bias shows."""
    begin_with(tmp_path / "whole", former, dataset)
    gone = shutil.copytree(former, tmp_path / "gone")
    begin_with(tmp_path / "run", gone, dataset, "trainer.max_steps=6")
    shutil.rmtree(gone)  # nobody needs the former run once this one has a checkpoint
    typed = [f"data.path={dataset}", f"warm_start.checkpoint={gone}", f"output={tmp_path}/run", "resume=auto"]
    assert composed_with_recipe(typed).model.bottom_mlp == [16]
    begin_with(tmp_path / "run", gone, dataset, "resume=auto")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")
    begin_with(tmp_path / "third", tmp_path / "run", dataset)
    progress = read_marker(max((tmp_path / "third/checkpoints").glob("step-*"))).progress
    assert (progress.step, progress.counted_updates) == (STEPS, 3 * STEPS)


def test_optimizers_begin_again_if_their_states_are_not_wanted(
    former: Path, dataset: Path, tmp_path: Path
) -> None:
    short, anew = "trainer.max_steps=2", "warm_start.optimizer=false"
    begin_with(tmp_path / "with", former, dataset, short)
    begin_with(tmp_path / "anew", former, dataset, short, anew)
    begin_with(tmp_path / "sgd", former, dataset, short, anew, "optimizer=sgd")
    train_here(tmp_path / "cold", f"data.path={dataset}", IN_ORDER, short)
    first = {name: losses(tmp_path / name)[0] for name in ("with", "anew", "sgd", "cold")}
    assert first["with"] == first["anew"] == first["sgd"] != first["cold"]
    assert losses(tmp_path / "with")[1] != losses(tmp_path / "anew")[1]


def test_settings_not_typed_come_from_the_previous_run(former: Path, dataset: Path) -> None:
    typed = [f"data.path={dataset}", f"warm_start.checkpoint={former}"]
    config = composed_with_recipe(typed)
    then = read_marker(next((former / "checkpoints").glob("step-*"))).config
    for section in ("model", "tables", "optimizer", "schedule"):
        assert asdict(getattr(config, section)) == then[section]
    assert config.trainer.global_batch_size == 128
    faster = composed_with_recipe([*typed, "trainer.epochs=3"])
    assert (faster.model, faster.trainer.epochs) == (config.model, 3)
    changed = ["optimizer=sgd", "trainer.global_batch_size=256", "model.dropout=0.5"]
    other = composed_with_recipe([*typed, *changed])
    assert other.optimizer.sparse.kind == "sgd"
    assert (other.trainer.global_batch_size, other.model.dropout) == (256, 0.5)
    assert (other.model.bottom_mlp, other.tables) == (config.model.bottom_mlp, config.tables)
    assert auto_settings(read_words(TrainConfig, "train", [*typed, "experiment=kaggle_small"])) == {}


def test_tables_written_one_by_one_are_taken_too(dataset: Path, tmp_path: Path) -> None:
    both = "{name:both,rows:1000,dim:4,features:[c0,c1],pooling:mean}"
    specs = f"[{both},{{name:bags,rows:30,dim:4,features:[m0],optimizer:{{lr:0.5}}}}]"
    keys = [
        f"data.path={dataset}",
        "tables.from_dataset=false",
        f"tables.specs={specs}",
        "trainer.max_steps=2",
    ]
    train_here(tmp_path / "first", *keys, "trainer.max_steps=2")
    typed = [f"data.path={dataset}", f"warm_start.checkpoint={tmp_path}/first"]
    config = composed_with_recipe(typed)
    then = read_marker(next((tmp_path / "first/checkpoints").glob("step-*"))).config
    assert asdict(config.tables) == then["tables"]
    typed = composed_with_recipe([*typed, "tables=dataset"])
    assert asdict(typed.tables) == {**then["tables"], "from_dataset": True, "specs": []}
    with refused(
        ConfigError, "tables.t_c0", "reads c0, which in ... is read by both", "let it read that one"
    ):
        train_here(tmp_path / "second", *keys[:1], f"warm_start.checkpoint={tmp_path}/first")


def test_a_resumed_run_keeps_what_it_began_with(former: Path, dataset: Path, tmp_path: Path) -> None:
    """``resume=PATH`` beside ``warm_start``: the settings of PATH's run; another beginning is refused."""
    other = tmp_path / "other"
    train_here(other, f"data.path={dataset}", IN_ORDER, "model.bottom_mlp=[24]", "trainer.max_steps=3")
    typed = [f"data.path={dataset}", f"warm_start.checkpoint={former}", f"resume={other}"]
    assert composed_with_recipe(typed).model.bottom_mlp == [24]
    with refused(
        ConfigError, "warm_start.checkpoint", "is .../run, in .../other/checkpoints/step-000000003 None"
    ):
        begin_with(tmp_path / "run", former, dataset, f"resume={other}", "model.bottom_mlp=[24]")
    begin_with(tmp_path / "first", former, dataset, "trainer.max_steps=3")
    begin_with(tmp_path / "second", former, dataset, f"resume={tmp_path}/first")
    begin_with(tmp_path / "whole", former, dataset)
    assert final_bytes(tmp_path / "second") == final_bytes(tmp_path / "whole")


WRITTEN = [
    "{name:t0,rows:50,dim:8,features:[c0]}",
    "{name:t1,rows:1000,dim:8,features:[%s]}",
    "{name:t2,rows:1000,dim:8,features:[c2]}",
]
ARCHITECTURES = [["model=dcn", "model.dcn_low_rank_dim=4"], ["model=dlrm", "model.ensemble_size=2"]]


def written(order: str, features: str = "c1,c3") -> list[str]:
    specs = [WRITTEN[int(number)] for number in order]
    return ["tables.from_dataset=false", f"tables.specs=[{','.join(specs)}]" % features]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four") / "dataset"
    write_dataset(folder, rows={"train": 5 * 128, "val": 256}, one_hot=(50, 1000, 1000, 900), multi_hot=())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tables_in_another_order_are_the_same_model(
    architecture: list[str], four: Path, tmp_path: Path
) -> None:
    """Warm-started, evaluated, resumed twice: every loss and metric is that of the run with the first order."""
    keys = [f"data.path={four}", *architecture]
    train_here(tmp_path / "former", *keys, *written("012"), "trainer.max_steps=3")
    warm = f"warm_start.checkpoint={tmp_path}/former"
    for name, specs in {"same": written("012"), "other": written("201", "c3,c1")}.items():
        train_here(tmp_path / name, *keys, *specs, warm)
        if architecture == ARCHITECTURES[-1]:
            train_here(tmp_path / f"{name} resumed", *keys, *specs, f"resume={tmp_path}/former")
            train_here(tmp_path / f"{name} again", *keys, *specs, f"warm_start.checkpoint={tmp_path}/{name}")
    for run in ("{}", "{} resumed", "{} again") if architecture == ARCHITECTURES[-1] else ("{}",):
        same, other = (tmp_path / run.format(name) for name in ("same", "other"))
        assert events(other, "eval") == events(same, "eval")
        assert losses(other) == losses(same)
    found = evaluate_here(f"checkpoint={tmp_path}/other", "split=val").models[0].metrics
    assert found["logloss"] == pytest.approx(events(tmp_path / "same", "eval")[-1]["logloss"], abs=1e-7)


def test_tables_that_read_each_others_features_are_refused(four: Path, tmp_path: Path) -> None:
    specs = written("012")
    swapped = [specs[0], specs[1].replace("c2", "X").replace("c1,c3", "c2,c3").replace("X", "c1")]
    keys = [f"data.path={four}", "trainer.max_steps=3"]
    train_here(tmp_path / "former", *keys, *specs)
    problems = {
        "resume": ("tables.t1.features", "is [c3,c2], in ... [c1,c3]", "give features=[c1,c3]..."),
        "warm_start.checkpoint": (
            "tables.t1",
            "reads c2, which in ... is read by t2",
            "let it read that one",
        ),
    }
    for start, problem in problems.items():
        with refused(ConfigError, *problem):
            train_here(tmp_path / "run", *keys, *swapped, f"{start}={tmp_path}/former")


def test_states_of_another_optimizer_are_refused(former: Path, dataset: Path, tmp_path: Path) -> None:
    with refused(
        ConfigError, "optimizer", "of t_c0 is adam, in .../run/checkpoints/step-000000015 rowwise_adagrad"
    ):
        begin_with(tmp_path / "run", former, dataset, "optimizer=adam")


def composed_with_recipe(words: list[str]) -> TrainConfig:
    return compose_config("train", TrainConfig, words, complete=auto_settings)
