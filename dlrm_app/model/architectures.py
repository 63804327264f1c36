"""The registry of architectures and their requirements on a configuration.

A new architecture needs a module with ``build``, a line in ARCHITECTURES and in model/build.py, and a file in conf/model/.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dlrm_app.config.schema import one_of
from dlrm_app.config.train import ModelConfig
from dlrm_app.tables.specs import Table


@dataclass(frozen=True)
class Architecture:
    """Requirements of a ``model.kind``.

    needs, refuses: keys of ``model`` that it requires, and keys that it does not have.
    interacts: the features' vectors interact, so they and the dense features' vector must have one width.
    """

    needs: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ("stride",)
    interacts: bool = True


@dataclass(frozen=True)
class ModelSpec:
    """Everything that a model is built from. ``seed``: for all initial weights, the tables' too.

    ``numbers``: the dense features that model.dense_embedding_dim embeds; None: all.
    """

    config: ModelConfig
    tables: Sequence[Table]
    num_dense: int
    seed: int = 0
    numbers: Sequence[int] | None = None

    @property
    def embedded(self) -> Sequence[int]:
        """The dense features with embeddings."""
        numbers = range(self.num_dense) if self.numbers is None else self.numbers
        return numbers if self.config.dense_embedding_dim else ()


ARCHITECTURES = {
    "dlrm": Architecture(),
    "dcn": Architecture(needs=("dcn_num_layers", "dcn_low_rank_dim")),
    "dcn_parallel": Architecture(
        needs=("dcn_num_layers",), refuses=("stride", "bottom_mlp", "dcn_low_rank_dim", "bottom_dropout")
    ),
    "projection": Architecture(needs=("projection_branch1", "projection_branch2")),
    "concat": Architecture(refuses=("bottom_mlp",), interacts=False),
}


def model_problems(config: ModelConfig) -> list[str]:
    """Problems: keys of ``model`` that its architecture needs and lacks, or does not have."""
    if unknown := one_of("model.kind", config.kind, ARCHITECTURES):
        return unknown
    architecture = ARCHITECTURES[config.kind]
    problems = [
        f"model.{key} is needed by model.kind={config.kind}: set it, or use model={config.kind}"
        for key in architecture.needs
        if not getattr(config, key)
    ]
    for key in architecture.refuses:
        if value := getattr(config, key):
            others = " or ".join(kind for kind, other in ARCHITECTURES.items() if key not in other.refuses)
            problems.append(
                f"model.{key}={value} is no setting of model.kind={config.kind}: "
                f"set model.{key}={[] if isinstance(value, list) else 'null'}, or use model={others}"
            )
    if config.ensemble_size > 1 and not architecture.interacts:
        problems.append(
            f"model.ensemble_size={config.ensemble_size} needs tables of one width, which model.kind={config.kind} "
            "does not ask for: set model.ensemble_size=1, or use model=dlrm, dcn or projection"
        )
    return problems


def model_table_problems(spec: ModelSpec) -> list[str]:
    """Reasons why the architecture cannot use these tables and dense features."""
    config, tables = spec.config, spec.tables
    if not ARCHITECTURES[config.kind].interacts:
        return []
    problems = []
    if spec.num_dense == 0:
        problems.append(
            f"the dataset has no dense column, which model={config.kind} needs: add one, or use model=concat"
        )
    dims, count = sorted({table.dim for table in tables}), config.ensemble_size
    if len(dims) > 1:
        examples = ", ".join(next(f"{t.name} has {d}" for t in tables if t.dim == d) for d in dims)
        problems.append(
            f"the interaction needs tables of one width, these differ: {examples}; give all the same dim, "
            "or use model=concat, which takes any widths"
        )
    elif dims[0] % count:
        step = math.lcm(count, 4)  # fbgemm's widths are multiples of 4
        problems.append(
            f"model.ensemble_size={count} must divide the tables' width, got {dims[0]}: "
            f"use {-(-dims[0] // step) * step}"
        )
    return problems
