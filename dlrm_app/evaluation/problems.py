"""What a dataset does not allow of evaluations."""

from collections.abc import Sequence

from dlrm_app.config.train import EvaluationConfig
from dlrm_app.data.manifest import Manifest
from dlrm_app.tables.specs import Table


def evaluation_problems(config: EvaluationConfig, manifest: Manifest, tables: Sequence[Table]) -> list[str]:
    """What the dataset does not allow of the evaluations of a training run."""
    problems = []
    features = [name for table in tables for name in table.features]
    if problem := group_problem(manifest, features, config.group_by):
        problems.append(f"evaluation.{problem}")
    has_val = "val" in manifest.splits and manifest.splits["val"].positives is not None
    for key in ("every_steps", "per_epoch", "target_auc", "patience"):
        if getattr(config, key) is not None and not has_val:
            problems.append(
                f"evaluation.{key} needs a labelled val split, which {manifest.path} has not: set it to null, "
                "or preprocess with split.val=0.1"
            )
    return problems


def group_problem(manifest: Manifest, features: Sequence[str], group_by: str | None) -> str | None:
    """Why the rows cannot be grouped by ``group_by``; ``features`` are those that the model reads."""
    one_hot = [c.name for c in manifest.sparse if c.name in features and not c.multi_hot]
    if group_by is None or group_by in one_hot:
        return None
    return f"group_by={group_by} is no one-hot feature that the model reads: use one of {', '.join(one_hot)}"
