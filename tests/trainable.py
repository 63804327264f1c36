"""A trainable model of a configuration, for tests without a dataset."""

from collections.abc import Sequence

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import LearntLabel
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.tables.table import Table
from dlrm_app.training.setup import Trainable, build_trainable


def trainable_of(
    config: TrainConfig,
    tables: Sequence[Table],
    num_dense: int,
    runtime: Runtime,
    *,
    kept_share: float = 1.0,
    labels: Sequence[LearntLabel] = (),
) -> Trainable:
    """``build_trainable`` of a model of ``tables`` and ``num_dense`` dense features."""
    spec = ModelSpec(config.model, tables, num_dense, config.trainer.seed, labels=labels)
    return build_trainable(config, spec, runtime, kept_share=kept_share)
