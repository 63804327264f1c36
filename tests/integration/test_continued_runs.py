"""The laws of resume and warm start: a run that is interrupted, moved or begun from another is the undisturbed run."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.integration.test_run_variants import VARIANTS
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import train_on_ranks
from tests.small_run import SMALL, events, final_bytes, losses, train_here


@dataclass(frozen=True)
class Part:
    """A start of the run. ``more``: settings, such as where it stops. ``plan``: the sharding type of all tables.

    ``begin``: how it begins: ``resume=auto`` in the same folder, or in a new one with the part before, ``{before}``.
    """

    more: tuple[str, ...] = ()
    ranks: int = 1
    plan: str = ""
    begin: str = "resume=auto"

    @property
    def settings(self) -> list[str]:
        return [*self.more, *([f"sharding.types=[{self.plan}]"] if self.plan else [])]


@dataclass(frozen=True)
class Law:
    """A run of ``settings`` on ``ranks`` in one piece, and in ``parts``. ``exact``: to the bit, else to rounding."""

    settings: list[str]
    parts: tuple[Part, ...]
    ranks: int = 1
    exact: bool = True
    data: dict[str, float] = field(default_factory=dict)


def until(step: int, ranks: int = 1, plan: str = "", begin: str = "resume=auto") -> Part:
    return Part((f"trainer.max_steps={step}",), ranks, plan, begin)


def variant(name: str, ranks: int = 1) -> Law:
    return Law([*VARIANTS[name], "trainer.max_steps=12"], (until(6, ranks), until(12, ranks)), ranks)


TWO_EPOCHS, ONE_EPOCH = ["trainer.epochs=2"], Part(("trainer.epochs=1",))
IN_ORDER = ["data.shuffle=false", "optimizer=adam", *TWO_EPOCHS]
"""Every epoch has the same batches, so that a second one can be another run's first."""
MIDDLE = "resume={whole}/checkpoints/step-000000015"
WARM = "warm_start.checkpoint={before}"
CALIBRATED = ["model.ensemble_size=2", "optimizer=adagrad", "trainer.calibrate=true"]
SHIFTED = {"val": 0.7}
"""The rows of val have other labels than the model predicts, so that there is a bias to fit."""
ITEMS = "{name:items,rows:50,features:[c0,m0],pooling:{attention:c0}}"
ATTENTIVE = [
    "tables.from_dataset=false",
    f"tables.specs=[{{name:others,rows:1000,features:[c1]}},{ITEMS}]",
    *TWO_EPOCHS,
]
LONG = pytest.mark.long
LAWS = {
    "attention": Law(ATTENTIVE, (until(20), Part())),
    "attention on other ranks and plans": Law(
        [*ATTENTIVE, "model.ensemble_size=2"],
        (until(20), until(35, 2, "row_wise"), until(45, 2, "column_wise"), Part()),
        exact=False,
    ),
    # a checkpoint has running moments and averages; dropout draws from seed, step and rank
    "dropout": variant("dropout"),
    "an average, schedules and evaluations": variant("recipe"),
    "DistributedDataParallel and batch norm": variant("normed", ranks=2),
    "a compiled dense part": variant("compiled"),
    "the recipe on two ranks": variant("recipe", ranks=2),
    "an ensemble on two ranks": variant("ensemble", ranks=2),
    "a save in the background": Law(
        [*TWO_EPOCHS, "checkpoint.asynchronous=true", "checkpoint.every_steps=9"],
        (until(20), until(35), Part()),
    ),
    "the base pipeline": Law([*TWO_EPOCHS, "trainer.pipeline=base"], (until(20), Part())),
    "by path": Law([*TWO_EPOCHS, "optimizer=adam"], (until(20), Part(begin="resume={before}"))),
    "a fitted bias, from a checkpoint within the run": Law(
        [*CALIBRATED, "checkpoint.every_steps=15", "checkpoint.keep_last=9"],
        (Part(begin=MIDDLE),),
        data=SHIFTED,
    ),
    "a fitted bias, prolonged": Law([*CALIBRATED, *TWO_EPOCHS], (ONE_EPOCH, Part()), data=SHIFTED),
    "other ranks and plans": Law(
        TWO_EPOCHS, (until(20), until(35, 2, "row_wise"), until(45, 2, "table_wise"), Part()), exact=False
    ),
    "columns to rows on two ranks": Law(
        TWO_EPOCHS, (until(20, 2, "column_wise"), Part(ranks=2, plan="row_wise")), exact=False
    ),
    "a warm start": Law(IN_ORDER, (ONE_EPOCH, Part((*ONE_EPOCH.more, "trainer.seed=3"), begin=WARM))),
    "a warm start that is interrupted": Law(
        IN_ORDER,
        (ONE_EPOCH, until(6, begin=WARM), Part((*ONE_EPOCH.more, WARM))),
    ),
    "a warm start on other ranks": Law(
        IN_ORDER, (ONE_EPOCH, Part(ONE_EPOCH.more, ranks=2, plan="row_wise", begin=WARM)), exact=False
    ),
}
SLOW = (
    "a compiled dense part",
    "the recipe on two ranks",
    "an ensemble on two ranks",
    "attention on other ranks and plans",
    "columns to rows on two ranks",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws")


def train(run: Path, ranks: int, *settings: str) -> None:
    torch.compiler.reset()  # another process compiles again
    if ranks == 1:
        train_here(run, *settings)
    else:
        train_on_ranks(ranks, *SMALL, *settings, "report.enabled=false", f"output={run}")


def train_parts(law: Law, keys: list[str], folder: Path) -> list[Path]:
    """Trains the parts. Returns the runs whose events follow each other; one that resumes another has its events."""
    runs: list[Path] = []
    followed: list[Path] = []
    for number, part in enumerate(law.parts):
        if not runs or part.begin != "resume=auto":
            runs.append(folder / f"run{number}")
            followed = [*([] if part.begin.startswith("resume=") else followed), runs[-1]]
        names = {"before": runs[-2] if len(runs) > 1 else None, "whole": folder / "whole"}
        settings = [each.format(**names) for each in (*part.settings, part.begin)]
        train(runs[-1], part.ranks, *keys, *settings)
    return followed


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG if name in SLOW else ()) for name in LAWS])
def test_a_run_in_parts_is_the_run_in_one_piece(
    name: str, dataset: Path, folder: Path, tmp_path: Path
) -> None:
    """Losses, evaluations, weights and optimizer states."""
    law = LAWS[name]
    if law.data and not (folder / "shifted").exists():
        write_dataset(folder / "shifted", rows={"train": 4000, "val": 3001}, shifts=law.data)
    keys = [f"data.path={folder / 'shifted' if law.data else dataset}", *law.settings]
    train(tmp_path / "whole", law.ranks, *keys)
    runs = train_parts(law, keys, tmp_path)
    found = [loss for run in runs for loss in losses(run)]
    if law.exact:
        assert found == losses(tmp_path / "whole")
        made = iter(evaluations(runs))  # a part that ends makes one more
        assert all(each in made for each in evaluations([tmp_path / "whole"]))
        assert final_bytes(runs[-1]) == final_bytes(tmp_path / "whole")
    else:
        assert found == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)


def evaluations(runs: list[Path]) -> list[object]:
    """Metrics of the evaluations in order; steps begin again in a new run, and a judgement counts those to come."""
    found = [event for run in runs for event in events(run, "eval")]
    others = ("step", "epoch", "judgement")
    return [{key: value for key, value in event.items() if key not in others} for event in found]
