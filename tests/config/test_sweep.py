"""Sweeps: every combination is checked before the first starts, and none takes another's files."""

import re
import shlex

import pytest

from dlrm_app.config.compose import checked_config, compose_tree
from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.config.sweep import check_sweep, find_sweep
from dlrm_app.config.train import TrainConfig
from dlrm_app.errors import ConfigError


def accept(_config: object) -> None: ...


def check(*overrides: str, schema: type = TrainConfig, command: str = "train") -> None:
    check_sweep(find_sweep(overrides), command, schema, overrides, accept)


def outputs(*overrides: str) -> list[str]:
    found = []
    for number, each in enumerate(find_sweep(overrides).combinations or ()):
        tree, _ = compose_tree("train", TrainConfig, [*each.overrides, f"hydra.job.num={number}"])
        found.append(checked_config(tree, TrainConfig, [], accept).output or "")
    return found


def test_combinations_come_in_the_order_in_which_they_run_and_are_called_by_what_they_differ_in() -> None:
    sweep = find_sweep(["data.path=x", "trainer.seed=0,1", "model=dlrm,dcn"])
    names = [each.name for each in sweep.combinations or ()]
    assert names == [
        "trainer.seed=0 model=dlrm",
        "trainer.seed=0 model=dcn",
        "trainer.seed=1 model=dlrm",
        "trainer.seed=1 model=dcn",
    ]
    assert sweep.name_of(1) == "2 of 4: trainer.seed=0 model=dcn"
    assert sweep.names_after(1) == names[2:]


def test_the_last_value_of_a_key_given_twice_counts() -> None:
    sweep = find_sweep(["trainer.seed=0,1", "trainer.seed=7"])
    assert [each.overrides for each in sweep.combinations or ()] == [["trainer.seed=7"]]


@pytest.mark.parametrize(
    "swept",
    [
        ["trainer.seed=0,1"],
        ["trainer.seed=0,1", "model=dlrm,dcn"],
        ["trainer.seed=range(0,3)"],
        ["optimizer.sparse.lr=0.1,1e-3"],
        ["model.bottom_mlp=[8],[16]"],
    ],
)
def test_one_output_for_all_is_refused_with_one_that_works_as_typed(swept: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check("data.path=x", *swept, "output=out/r")
    (problem,) = refused.value.problems
    assert problem.startswith("output=out/r is that of")
    (typed,) = shlex.split(problem.rpartition(", as ")[2])
    check("data.path=x", *swept, typed)
    each = outputs("data.path=x", *swept, typed)
    assert len(set(each)) == len(each) > 1
    assert all(re.fullmatch(r"out/r-[\w.-]+", output) for output in each)


def test_a_file_s_suffix_stays_at_its_end() -> None:
    with pytest.raises(ConfigError, match=r"output=x-seed-\$\{seed\}\.tsv"):
        check("rows=10", "seed=1,2", "output=x.tsv", schema=GenerateConfig, command="generate")


def test_no_output_or_one_for_each_is_well() -> None:
    check("data.path=x", "trainer.seed=0,1")
    check("data.path=x", "trainer.seed=0,1", "output=r/${hydra:job.num}")


def test_a_sweeper_that_makes_values_up_needs_an_output_for_each_too() -> None:
    for swept in ("optimizer.sparse.lr=interval(0,1)", "hydra/sweeper=optuna"):
        with pytest.raises(ConfigError, match=r"output='?r-\$\{hydra:job.num\}"):
            check("data.path=x", swept, "output=r")
        check("data.path=x", swept, "output=r/${hydra:job.num}")


def test_a_fault_is_told_once_with_the_values_that_have_it_or_the_combinations() -> None:
    def refuse(config: TrainConfig) -> None:
        seed, epochs = config.trainer.seed, config.trainer.epochs
        rules = [
            (True, "of all"),
            (epochs == 3, "of one value, whatever the seed"),
            (seed == 0 and epochs < 3, "of some values together"),
            ((seed, epochs) in [(0, 1), (1, 2)], "of no values"),
        ]
        raise ConfigError([fault for is_wrong, fault in rules if is_wrong])

    overrides = ["data.path=x", "trainer.seed=0,1", "trainer.epochs=1,2,3"]
    with pytest.raises(ConfigError) as refused:
        check_sweep(find_sweep(overrides), "train", TrainConfig, overrides, refuse)
    assert sorted(refused.value.problems) == [
        "of all",
        "of no values (with trainer.seed=0 trainer.epochs=1, trainer.seed=1 trainer.epochs=2)",
        "of one value, whatever the seed (with trainer.epochs=3)",
        "of some values together (with trainer.seed=0 trainer.epochs=1, 2)",
    ]
