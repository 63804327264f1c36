"""Learning rates follow their formulas, reach every optimizer in the right step, and refuse the impossible."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.config.optimizer import ScheduleConfig, ScheduleSettings, schedule_problems
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError
from dlrm_app.runs.checkpoint.progress import Progress
from dlrm_app.tables.table import Table
from dlrm_app.training.optimizers import LearningRates, fit_to_run, lr_factor
from tests.plain_training import assert_trains_like_plain, compose_train
from tests.random_batches import NUM_DENSE, TABLES
from tests.refusals import is_like
from tests.trainable import trainable_of

MLPERF = ScheduleSettings("polynomial", warmup_steps=2750, decay_start=49315, decay_steps=27772)

schedules = st.builds(
    lambda kind, warmup, hold, decay, power, end: ScheduleSettings(
        kind, warmup, warmup + hold, decay, power, end
    ),
    kind=st.sampled_from(["polynomial", "cosine"]),
    warmup=st.integers(0, 50),
    hold=st.integers(0, 50),
    decay=st.integers(1, 100),
    power=st.floats(0.5, 4),
    end=st.floats(0, 1),
)


@given(schedules)
def test_a_rate_rises_in_equal_steps_stays_and_falls_to_its_end(schedule: ScheduleSettings) -> None:
    factors = [lr_factor(step, schedule) for step in range(1, 251)]
    warmup, start, decay = schedule.warmup_steps, schedule.first_decay_step, schedule.decay_steps
    assert decay is not None
    assert factors[:warmup] == pytest.approx([n / warmup for n in range(1, warmup + 1)])
    assert factors[warmup:start] == [1.0] * (start - warmup)
    falling = factors[max(start - 1, 0) : start + decay]
    assert all(before >= after for before, after in pairwise(falling))
    assert factors[start + decay - 1 :] == pytest.approx([schedule.end_factor] * (251 - start - decay))


def mlperf_factor(step: int, warmup: int, start: int, decay: int) -> float:
    """LRPolicyScheduler.get_lr of facebookresearch/dlrm, where _step_count is 1 in the first step."""
    if step < warmup:
        return 1.0 - (warmup - step) / warmup
    if start <= step < start + decay:
        return ((decay - (step - start)) / decay) ** 2
    return 1.0


def test_the_polynomial_is_mlperfs() -> None:
    for step in [*range(1, 3000, 7), *range(49_000, 77_087, 97), 49_314, 49_315, 49_316, 77_086]:
        assert lr_factor(step, MLPERF) == pytest.approx(mlperf_factor(step, 2750, 49315, 27772), abs=1e-12)
    assert lr_factor(77_087, MLPERF) == 0.0


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (
            ScheduleSettings("cosine", decay_steps=40),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=40),
        ),
        (
            ScheduleSettings("polynomial", decay_steps=40, power=3.0),
            lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=40, power=3.0),
        ),
        (
            ScheduleSettings("step", milestones=[5, 9, 30], step_factor=0.3),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, milestones=[5, 9, 30], gamma=0.3),
        ),
    ],
)
def test_decays_are_torchs(schedule: ScheduleSettings, make: Any) -> None:
    """Ours after n steps is torch's after n: a fall is over, or a milestone left behind, once its steps are done."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    for done in range(1, 40):
        optimizer.step()
        scheduler.step()
        step = done + 1 if schedule.kind == "step" else done  # a milestone counts from the step after it
        assert lr_factor(step, schedule) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_an_open_decay_ends_with_the_run() -> None:
    schedule = ScheduleConfig(ScheduleSettings("cosine", warmup_steps=10), ScheduleSettings("constant"))
    fitted = fit_to_run(schedule.sparse, 110)
    assert fitted.decay_steps == 100
    assert lr_factor(60, fitted) == pytest.approx(0.5)
    assert lr_factor(110, fitted) == 0.0
    assert schedule_problems(schedule, 11) == []
    (problem,) = schedule_problems(schedule, 10)
    assert is_like(problem, "schedule.sparse.warmup_steps", "must be less than the run's 10 steps...")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["schedule=linear"], ["schedule=linear is not known", "polynomial"]),
        (
            ["schedule=cosine", "schedule.sparse.warmup_steps=100", "schedule.sparse.decay_start=50"],
            ["schedule.sparse.decay_start", "warm-up ends at step 100", "got 50"],
        ),
        (["schedule=step"], ["schedule.sparse.milestones is needed", "schedule.dense.milestones is needed"]),
        (
            ["schedule=step", "schedule.sparse.milestones=[9,4]", "schedule.dense.milestones=[9]"],
            ["schedule.sparse.milestones must rise", "[9, 4]"],
        ),
        (["schedule.dense.decay_steps=100"], ["schedule.dense.decay_steps is only for", "polynomial or cosine"]),
        (["schedule=cosine", "schedule.dense.decay_steps=0"], ["schedule.dense.decay_steps must be at least 1"]),
        (
            ["schedule=polynomial", "schedule.dense.end_factor=2"],
            ["end_factor must be at least 0 and at most 1, got 2"],
        ),
        (["schedule.sparse.warmup_steps=-1"], ["schedule.sparse.warmup_steps must be at least 0"]),
    ],
)  # fmt: skip
def test_an_impossible_schedule_is_refused_by_its_key(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_train(*overrides)
    for word in words:
        assert word in str(caught.value)


SCHEDULED = [
    "schedule.sparse.kind=polynomial", "schedule.sparse.warmup_steps=3", "schedule.sparse.decay_steps=6",
    "schedule.dense.kind=step", "schedule.dense.milestones=[4,7]",
]  # fmt: skip


def written_out(step: int) -> dict[str, float]:
    """SCHEDULED, each step by hand."""
    sparse = [1 / 3, 2 / 3, 1, 25 / 36, 16 / 36, 9 / 36, 4 / 36, 1 / 36, 0, 0]
    dense = [1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]
    return {"sparse": sparse[step - 1], "dense": dense[step - 1]}


@pytest.mark.parametrize("kind", ["sgd", "rowwise_adagrad", "adam"])
def test_step_t_updates_with_the_rate_of_step_t(kind: str) -> None:
    """Inside the backward pass and beside it, sparse and dense apart: ten steps equal plain torch's."""
    config = compose_train(f"optimizer={kind}", *SCHEDULED)
    assert_trains_like_plain(config, rates=written_out)


def test_a_tables_own_rate_keeps_its_ratio() -> None:
    tables = [TABLES[0], Table("own", 50, 8, ("f3",), optimizer={"lr": 0.5}), TABLES[2]]
    config = compose_train("optimizer=sgd", "optimizer.sparse.lr=0.1", *SCHEDULED)
    assert_trains_like_plain(config, tables, rates=written_out)


def test_the_logged_rates_are_the_applied_rates() -> None:
    config = compose_train("optimizer=rowwise_adagrad", "optimizer.dense.lr=0.5", *SCHEDULED)
    with start_runtime(num_threads=1) as runtime:
        trainable = trainable_of(config, TABLES, NUM_DENSE, runtime)
        parts = trainable.optimizer, TABLES, config.optimizer, config.schedule
        rates = LearningRates(*parts, 10, Progress())
        for step in (1, 5, 3):  # any order: nothing but the number counts
            rates.apply(step)
            logged, factors = rates.at(step), written_out(step)
            found = {group["lr"] for group in trainable.optimizer.param_groups}
            assert logged["dense"] == pytest.approx(0.5 * factors["dense"])
            assert logged["sparse"] == pytest.approx(config.optimizer.sparse.lr * factors["sparse"])
            assert found == set(logged.values())


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(0, 3))
def test_a_plateau_lowers_the_rate_when_torchs_does(aucs: list[float], patience: int) -> None:
    schedule = ScheduleSettings("plateau", patience=patience, step_factor=0.5, end_factor=0.01)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    judge = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="max", factor=0.5, patience=patience, threshold=0.0, min_lr=0.01, eps=0.0
    )
    for count, auc in enumerate(aucs, 1):
        judge.step(auc)
        assert lr_factor(1, schedule, aucs[:count]) == pytest.approx(optimizer.param_groups[0]["lr"])
