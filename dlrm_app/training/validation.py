"""Checks a training run or a plan before any work starts, and reports all problems in one error.

A check that depends on a wrong value is skipped. Checks that need memory or a checkpoint come later.
Nothing here imports torch, so that a mistake is reported at once; only reading a plan file does.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dlrm_app.config.like_train import PlanConfig, TuneConfig
from dlrm_app.config.metrics import metric_of
from dlrm_app.config.optimizer import schedule_problems
from dlrm_app.config.schema import required
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.columns import (
    attention_problems,
    repeated_columns,
    sharing_problems,
    vectors_in,
    weighted_columns,
)
from dlrm_app.dataset.manifest import Manifest, read_manifest
from dlrm_app.dataset.vector_columns import sizes_of
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem, joined
from dlrm_app.evaluation.problems import evaluation_problems, has_labelled_val, one_class_problems
from dlrm_app.files import output_problems
from dlrm_app.loader.batch_order import check_lanes, enough_lanes
from dlrm_app.machine import TRIOS, has_old_torchrec, installed
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.problems import model_problems, model_table_problems
from dlrm_app.runs.checkpoint.names import can_continue, other_run_problems
from dlrm_app.sharding.cluster import Cluster, described_cluster, running_cluster
from dlrm_app.sharding.constraints import sharding_problems, table_problems
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import Table
from dlrm_app.training.warm_start import check_warm_start

if TYPE_CHECKING:
    from dlrm_app.sharding.cost import Workload

T = TypeVar("T")


def read_trainable(folder: str) -> Manifest:
    """The manifest of a dataset with a labelled train split. Raises DlrmError."""
    if not folder:
        raise ConfigError(required("data.path"))
    if not Path(folder).is_dir():
        cure = f"if it was moved, give data.path=FOLDER; or make one with dlrm-preprocess output={folder}"
        raise DataError(Problem(folder, "does not exist", cure))
    manifest = read_manifest(Path(folder))
    if "train" not in manifest.splits or manifest.label is None:
        raise DataError(Problem(str(folder), "has no labelled train split", "preprocess with input.train=…"))
    return manifest


def check_training(
    config: TrainConfig, ranks: Ranks, starts_run: bool = False
) -> tuple[Manifest, list[Table]]:
    """The dataset's manifest and the tables of a run on these ranks.

    ``starts_run``: the run starts in the folder ``output``.

    Raises ConfigError with every problem; DataError if the dataset is the only one.
    """
    checks = _Checks(config)
    path = config.data.path
    manifest = checks.result(lambda: read_trainable(path))
    cluster = checks.result(lambda: running_cluster(config.topology, ranks), needs=["topology"])
    tables = checks.tables(manifest, ranks.device_type)
    checks.batches(manifest, ranks.world_size)
    if manifest is not None and tables is not None:
        earlier = config.warm_start.checkpoint
        if earlier is not None and not can_continue(config.resume, config.output):
            needs = ["model", "optimizer", "tables"]
            checks.result(lambda: check_warm_start(Path(earlier), config, manifest, tables), needs)
        checks.add(lambda: evaluation_problems(config.evaluation, manifest, tables), needs=["evaluation"])
        labels, vectors = manifest.labels, sizes_of(manifest.vectors)
        spec = ModelSpec(config.model, tables, len(manifest.dense), labels=labels, vectors=vectors)
        checks.add(lambda: model_table_problems(spec), needs=["model"])
    if ranks.is_first:  # the others take its plan, and may not see the file
        checks.plan_file(tables, cluster)
        checks.output(starts_run)
    checks.refuse()
    assert manifest is not None
    assert tables is not None
    return manifest, tables


def check_plan(config: PlanConfig) -> tuple[Cluster, Manifest | None, list[Table]]:
    """The described cluster, the dataset's manifest if there is one, and the tables. Raises like ``check_training``.

    Rows, ranks and the model do not change a plan, so they are not checked.
    """
    checks = _Checks(config)
    path = config.data.path
    manifest = checks.result(lambda: read_manifest(Path(path))) if path else None
    cluster = checks.result(lambda: described_cluster(config.topology), needs=["topology"])
    tables = checks.tables(manifest, cluster.device if cluster else None)
    checks.plan_file(tables, cluster)
    checks.output()
    checks.refuse()
    assert cluster is not None
    assert tables is not None
    return cluster, manifest, tables


def check_tuning(config: TuneConfig, ranks: Ranks) -> None:
    """Checks like ``check_training``, and for a labelled val split. A trial's own values are checked when it starts."""
    manifest, _ = check_training(config, ranks)
    if not has_labelled_val(manifest):
        rule = f"compares trials on val, and {manifest.path} has no labelled val split"
        raise ConfigError(Problem("dlrm-tune", rule, "preprocess with split.val=0.1"))
    metric = metric_of(config.metric)
    if metric and not metric.of_one_class and (faults := one_class_problems(manifest, "val")):
        cure = "set tune.metric=logloss, or preprocess with a val split that has both"
        rule = f"compares {metric.title}s on val, which {faults[0].rule}"
        raise ConfigError(Problem(f"tune.metric={config.metric}", rule, cure))


def batch_problems(batch_size: int, lanes: int | None, num_ranks: int, rows: int) -> list[Problem]:
    """Problems of dividing batches of ``rows`` training rows among the ranks; ``lanes`` None: enough for the ranks."""
    return check_lanes(batch_size, lanes or enough_lanes(num_ranks), num_ranks, rows)


def plateau_problems(config: TrainConfig, manifest: Manifest) -> list[Problem]:
    """Reasons why rates cannot follow the evaluations on val, or why the best weights cannot be restored."""
    schedule, problems = config.schedule, []
    for part in schedule.plateaus:
        key = f"schedule.{part}.kind=plateau"
        if not has_labelled_val(manifest):
            rule = f"needs a labelled val split, which {manifest.path} does not have"
            problems.append(Problem(key, rule, "choose another schedule, or preprocess with split.val=0.1"))
        elif (best := metric_of(config.evaluation.best)) is not None and not best.of_one_class:
            problems += [fault.within(key) for fault in one_class_problems(manifest, "val")]
    if schedule.restore_best and not config.checkpoint.keep_best:
        rule = "needs the checkpoint of the best evaluation"
        problems.append(Problem("schedule.restore_best", rule, "set checkpoint.keep_best=1"))
    return problems


def prefetch_problems(device_type: str) -> list[Problem]:
    """Problems of the pipeline ``prefetch`` on this kind of device, with the installed torchrec."""
    rule, cure = None, "use trainer.pipeline=sparse_dist"
    if device_type == "cpu":
        rule = "fetches rows into a GPU's cache (kernel fused_uvm_caching), and there is no GPU"
    elif has_old_torchrec():
        # it never calls Prefetch.start_sparse_data_dist, which makes the streams wait
        rule = f"would let torchrec {installed('torchrec')} overwrite ids that the GPU still reads"
        cure += f", or torchrec {TRIOS[-1].torchrec} or newer (make setup TRIO={TRIOS[-1].name})"
    return [Problem("trainer.pipeline=prefetch", rule, cure)] if rule else []


def plan_workload(config: TrainConfig, tables: Sequence[Table], device_type: str) -> "Workload":
    """The workload to plan. Each model of an ensemble reads its own rows, so batches are that many times larger."""
    from dlrm_app.sharding.planner import make_workload

    batch_size = config.trainer.global_batch_size * config.model.ensemble_size
    return make_workload(tables, config.optimizer.sparse, config.sharding, batch_size, device_type)


class _Checks:
    """Collects the problems of a configuration, beginning with those that its schema finds."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._wrong = [*config.problems(), *model_problems(config.model)]
        self._errors: list[DlrmError] = [ConfigError(*self._wrong)] if self._wrong else []

    def result(self, work: Callable[[], T], needs: Sequence[str] = ()) -> T | None:
        """The result of ``work``; None if it fails, or if a key or section that it ``needs`` is already wrong."""
        if any(problem.key.startswith(tuple(needs)) for problem in self._wrong):
            return None
        try:
            return work()
        except DlrmError as error:
            self._errors.append(error)
        return None

    def add(self, find_problems: Callable[[], Sequence[Problem]], needs: Sequence[str] = ()) -> None:
        """Adds the problems from ``find_problems``, unless something that it ``needs`` is already wrong."""
        if problems := self.result(find_problems, needs):
            self._errors.append(ConfigError(*problems))

    def refuse(self) -> None:
        """Raises all errors as one."""
        if self._errors:
            raise joined(self._errors)

    def batches(self, manifest: Manifest | None, num_ranks: int) -> None:
        """Checks how rows are divided among ranks, and schedules that end with the run."""
        config, trainer = self._config, self._config.trainer
        rows = manifest.splits["train"].rows if manifest else trainer.global_batch_size
        sizes = ["trainer.global_batch_size", "data.lanes", "model.ensemble_size"]
        batch_size, lanes = trainer.global_batch_size, config.data.lanes
        self.add(lambda: batch_problems(batch_size, lanes, num_ranks, rows), sizes)
        if manifest is not None:
            lengths = ["schedule", "trainer.global_batch_size", "trainer.epochs", "trainer.max_steps"]
            self.add(lambda: schedule_problems(config.schedule, trainer.num_steps(rows)), lengths)
            self.add(lambda: plateau_problems(config, manifest), ["schedule"])
            if scores := config.distillation.scores:
                from dlrm_app.loader.soft_labels import soft_label_problems  # imports pyarrow

                self.add(lambda: soft_label_problems(Path(scores), manifest))
                if manifest.labels:
                    rule = f"has the scores of one label, and {manifest.path} has several"
                    cure = "leave it out, or preprocess with dataset.label=NAME"
                    self.add(lambda: [Problem("distillation.scores", rule, cure)])

    def tables(self, manifest: Manifest | None, device_type: str | None) -> list[Table] | None:
        """The tables, checked against the dataset and the device if these are known."""
        config, sharding = self._config, self._config.sharding
        tables = None
        if manifest is not None or not config.tables.from_dataset:
            feature_rows = None if manifest is None else {c.name: c.num_embeddings for c in manifest.sparse}
            groups = [] if manifest is None else repeated_columns(manifest)
            weighted = [] if manifest is None else weighted_columns(manifest)
            vectors = {} if manifest is None else vectors_in(manifest)
            tables = self.result(
                lambda: resolve_tables(config.tables, feature_rows, groups, weighted, vectors)
            )
        if manifest is not None and tables is not None:
            self.add(lambda: [*sharing_problems(tables, manifest), *attention_problems(tables, manifest)])
            if any(table.init_from for table in tables):
                from dlrm_app.training.initial_rows import vector_problems  # imports pyarrow and numba

                self.add(lambda: vector_problems(tables, manifest))
        if device_type is not None and config.trainer.pipeline == "prefetch":
            self.add(lambda: prefetch_problems(device_type))
        if device_type is not None and tables is not None:
            needs = ["optimizer.sparse", "sharding"]
            sparse = config.optimizer.sparse
            self.add(lambda: table_problems(tables, sparse, sharding, device_type), needs)
            self.add(lambda: sharding_problems(tables, sharding, device_type), ["sharding"])
        return tables

    def output(self, starts_run: bool = False) -> None:
        """Checks the folder that the first rank will write. ``starts_run``: a run starts there."""
        path, resume = self._config.output, self._config.resume
        if not path:
            return
        problems: Sequence[Problem] = output_problems("output", Path(path), is_folder=True)
        if starts_run and not problems:  # otherwise it cannot be read
            problems = other_run_problems(Path(path), resume)
        self.add(lambda: problems)

    def plan_file(self, tables: list[Table] | None, cluster: Cluster | None) -> None:
        """Checks the plan in the file ``sharding.plan``, unless there are other problems."""
        path = self._config.sharding.plan
        if path is not None and tables is not None and cluster is not None and not self._errors:
            from dlrm_app.sharding.plan_file import load_plan

            work = plan_workload(self._config, tables, cluster.device)
            self.result(lambda: load_plan(Path(path), work, cluster))
