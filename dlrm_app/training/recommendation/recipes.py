"""Which recipe a dataset gets. Each rule comes from a measurement in docs/experiments.md or a published recipe."""

from collections.abc import Iterable
from dataclasses import dataclass

from dlrm_app.training.recommendation.facts import DatasetFacts

SMALL_ROWS = 200_000
"""kaggle_small is for samples of 50,000 to 200,000 rows (docs/experiments.md, "Small samples of Criteo Kaggle")."""
MEDIUM_ROWS = 1_000_000
"""small_clicks is for 100,000 to a million rows (docs/experiments.md, "The demo")."""
FULL_KAGGLE = (10_000_000, 50_000_000)
"""All of Criteo Kaggle has 45.8 million rows, of which BARS trains on 33."""
TERABYTE_ROWS = 3_000_000_000
"""MLPerf's schedules are for the 4.2 billion rows of days 0 to 22; DLRM's rate is 0 after 3.3."""


@dataclass(frozen=True)
class Setting:
    """A key of dlrm-train, and why it has its value. ``value`` None: the recipe's or the default."""

    key: str
    why: str
    value: str | None = None


@dataclass(frozen=True)
class Recipe:
    """``experiment`` (None: the defaults), why it is chosen, and the settings that need a reason.

    ``encoding``: what dlrm-preprocess is told besides, for the data that the recipe is made for; empty: any.
    ``min_count``: the least of that encoding.
    """

    experiment: str | None
    why: str
    settings: tuple[Setting, ...]
    encoding: tuple[str, ...] = ()
    min_count: int = 1
    needs_its_tables: bool = False
    """Whether it brings tables of published sizes, which the dataset's ids must fit."""

    def words(self, settings: Iterable[Setting] | None = None) -> list[str]:
        """What dlrm-train is told, with ``settings`` in place of its own."""
        chosen = [] if self.experiment is None else [f"experiment={self.experiment}"]
        told = self.settings if settings is None else settings
        return [*chosen, *(f"{each.key}={each.value}" for each in told if each.value is not None)]


# docs/experiments.md, "Small samples of Criteo Kaggle": AUC falls by 0.005 and more in a second epoch
ONE_EPOCH = Setting("trainer.epochs", "in a second one the tables learn the rows by heart")

BASE_RATE = Setting("model.initial_bias", "the first prediction is the share of clicks, whatever that is")

KAGGLE_SMALL = Recipe(
    "kaggle_small",
    "measured on samples of Criteo Kaggle: 0.7624 of AUC, where the defaults have 0.7347 and LightGBM 0.7565",
    (
        ONE_EPOCH,
        Setting(
            "model.kind", "cross layers; plain MLPs, other interactions and mixtures were no better there"
        ),
        Setting("model.ensemble_size", "the mean of eight is 0.005 of AUC better than one"),
        Setting(
            "optimizer.sparse.kind",
            "not row-wise: the models of the ensemble would share a row's accumulator",
        ),
        Setting("optimizer.sparse.lr", "most ids come up a few times only"),
        Setting(
            "schedule.sparse.kind", "the rate ends at 0, so the last steps leave no noise in the weights"
        ),
        Setting("trainer.calibrate", "the rarer clicks are, the more too few would be predicted without"),
        Setting(
            "trainer.learn_val",
            "nothing is chosen by val, whose rows are worth 0.0015 of AUC once it is evaluated",
        ),
    ),
    encoding=("experiment=kaggle_small",),
    min_count=2,
)

# docs/experiments.md, "The demo"
SMALL_CLICKS = Recipe(
    "small_clicks",
    "measured on 400,000 rows of synthetic clicks: AUC 0.7950 and calibration 1.00 (0.7971 and 0.99 with "
    "dense.bucket_columns=all), where a constant rate has 0.7882 and 1.06",
    (
        ONE_EPOCH,
        Setting("model.ensemble_size", "the mean of three small models errs less than each"),
        Setting(
            "optimizer.sparse.kind",
            "not row-wise: the models of the ensemble would share a row's accumulator",
        ),
        Setting("optimizer.sparse.lr", "most ids come up a few times only"),
        Setting("schedule.sparse.kind", "the rate ends at 0; a constant one predicted 6% too many clicks"),
        BASE_RATE,
    ),
    encoding=("encoding=vocab", "encoding.min_count=20", "dense.bucket_columns=all"),
    min_count=2,
)

# docs/how-to/recipes.md; docs/experiments.md, "The recipes for full Kaggle on few rows"
KAGGLE_FULL = Recipe(
    "kaggle_full",
    "BARS' recipe for all of Criteo Kaggle: published AUC 0.8138 of a random split; not trained to its end here",
    (
        Setting("trainer.epochs", "until two in a row bring nothing better on val; BARS' run took 17"),
        Setting("schedule.sparse.kind", "a tenth of the rate as soon as an epoch brings nothing better"),
        Setting("optimizer.sparse.weight_decay", "L2 on whole tables is what lets it take several epochs"),
        Setting("optimizer.sparse.updated_rows", "every step updates every row: slow on CPU"),
        Setting("model.batch_norm", "as BARS has it"),
    ),
    encoding=("experiment=kaggle_full",),
    min_count=10,
)

# docs/how-to/recipes.md, tests/config/test_experiments.py: MLPerf Training's references
_MLPERF = (
    Setting("optimizer.sparse.lr", "the reference's, for that batch"),
    Setting("evaluation.target_auc", "the run ends once val reaches it"),
)
MLPERF_DLRM = Recipe(
    "mlperf_dlrm_v1",
    "MLPerf's DLRM for one-hot Criteo 1TB; not trained to its end here",
    _MLPERF,
    encoding=("experiment=mlperf_dlrm_v1",),
    needs_its_tables=True,
)
MLPERF_DCNV2 = Recipe(
    "mlperf_dcnv2_rcp",
    "MLPerf's DLRM-DCNv2 for multi-hot Criteo 1TB, at the rate of its convergence points; not trained to its end here",
    _MLPERF,
    encoding=("experiment=mlperf_dcnv2",),
    needs_its_tables=True,
)

# What holds at every size measured (docs/experiments.md, "The demo"): one epoch, and rates that fall to 0, linearly
LARGE = Recipe(
    None,
    "no recipe here was measured on data like this: the defaults, with what helped at every size that was",
    (
        Setting("trainer.epochs", "in a second one the tables learn the rows by heart", "1"),
        Setting("schedule", "rates that end at 0 gave 0.002 of AUC and mended the calibration", "polynomial"),
        Setting("schedule.sparse.power", "a straight line, as in the recipe that was measured", "1"),
        Setting("schedule.dense.power", "likewise", "1"),
        BASE_RATE,
    ),
)


def choose_recipe(facts: DatasetFacts) -> Recipe:
    """The recipe for data of such a size and origin."""
    is_kaggle = facts.name == "criteo_kaggle"
    if facts.name == "criteo_1tb" and facts.rows >= TERABYTE_ROWS:
        return MLPERF_DCNV2 if facts.num_multi_hot else MLPERF_DLRM
    if is_kaggle and facts.rows <= SMALL_ROWS:
        return KAGGLE_SMALL
    if facts.rows <= MEDIUM_ROWS:
        return SMALL_CLICKS
    # its rates follow val
    if is_kaggle and FULL_KAGGLE[0] <= facts.rows <= FULL_KAGGLE[1] and facts.val_positives:
        return KAGGLE_FULL
    return LARGE
