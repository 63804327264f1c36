"""Reasons why a model cannot be built: keys of ``model`` that its architecture lacks or does not have, and tables and
dense features that it cannot use.

Does not import torch.
"""

import math
from collections.abc import Iterator
from importlib.metadata import entry_points

from dlrm_app.config.train import ExpertsConfig, ModelConfig
from dlrm_app.config.values import choice_problems
from dlrm_app.errors import Problem
from dlrm_app.model.architectures import (
    ARCHITECTURES,
    ENTRY_POINTS,
    Architecture,
    ModelSpec,
    find_architecture,
)


def model_problems(config: ModelConfig) -> list[Problem]:
    """Problems: keys of ``model`` that its architecture needs and lacks, or does not have."""
    architecture = find_architecture(config.kind)
    if architecture is None:
        installed = [point.name for point in entry_points(group=ENTRY_POINTS)]
        (problem,) = choice_problems("model.kind", config.kind, [*ARCHITECTURES, *installed])
        return [problem.also("or name the file that registers it: plugins=[FILE.py]")]
    problems = [
        Problem(
            f"model.{key}", f"is needed by model.kind={config.kind}", f"set it, or use model={config.kind}"
        )
        for key in architecture.needs
        if not getattr(config, key)
    ]
    for key in architecture.refuses:
        if value := getattr(config, key):
            others = " or ".join(kind for kind, other in ARCHITECTURES.items() if key not in other.refuses)
            rule = f"is not a setting of model.kind={config.kind}"
            cure = (
                f"set model.{key}={(type(value)() if isinstance(value, list | dict) else 'null')}, or use "
                f"model={others}"
            )
            problems.append(Problem(f"model.{key}={value}", rule, cure))
    if "top_mlp" not in architecture.refuses and config.top_mlp in ([], [1]):
        problems.append(
            Problem("model.top_mlp", "needs a hidden layer", "as model.top_mlp=[256,1]", config.top_mlp)
        )
    if config.ensemble_size > 1 and not architecture.interacts:
        rule = f"needs tables of one width, which model.kind={config.kind} does not ask for"
        cure = "set model.ensemble_size=1, or use model=dlrm, dcn or projection"
        problems.append(Problem(f"model.ensemble_size={config.ensemble_size}", rule, cure))
    if config.dense_knots and config.dense_embedding_dim:
        rule = "does not go with model.dense_embedding_dim, which moves the values of its knots"
        problems.append(Problem("model.dense_knots", rule, "leave one of them out", config.dense_knots))
    return [*problems, *_expert_problems(config, architecture)]


def _expert_problems(config: ModelConfig, architecture: Architecture) -> Iterator[Problem]:
    experts, tasks = config.experts, config.tasks
    if tasks == "shared":
        if experts != ExpertsConfig():
            yield Problem("model.experts", "needs model.tasks=mmoe or ple", "set it, or leave experts out")
        return
    if not architecture.takes_experts:
        others = " or ".join(kind for kind, other in ARCHITECTURES.items() if other.takes_experts)
        rule = f"is not a setting of model.kind={config.kind}"
        yield Problem(f"model.tasks={tasks}", rule, f"set model.tasks=shared, or use model={others}")
    for key in ("own", "levels"):
        if tasks == "mmoe" and (value := getattr(experts, key)) is not None:
            yield Problem(
                f"model.experts.{key}={value}", "needs model.tasks=ple", "set it, or leave this out"
            )


def model_table_problems(spec: ModelSpec) -> list[Problem]:
    """Reasons why the architecture cannot use these tables and dense features."""
    config, architecture = spec.config, find_architecture(spec.config.kind)
    if spec.looked_up and not spec.projected_dim:
        rule = "is needed where no table is trained, whose width vectors would get"
        return [Problem("model.vectors.project", rule, "such as 32")]
    problems = []
    if config.tasks != "shared" and not spec.labels:
        rule = "needs a dataset with several labels"
        problems.append(Problem(f"model.tasks={config.tasks}", rule, "set model.tasks=shared"))
    if architecture is None or not architecture.interacts:
        return problems
    if spec.num_dense == 0 and architecture.needs_dense:
        others = [
            kind for kind, other in ARCHITECTURES.items() if not (other.needs_dense and other.interacts)
        ]
        rule = "needs a dense column, which the dataset does not have"
        cure = f"add one, or use model={', '.join(others[:-1])} or {others[-1]}"
        problems.append(Problem(f"model={config.kind}", rule, cure))
    return [*problems, *_width_problems(spec, architecture)]


def _width_problems(spec: ModelSpec, architecture: Architecture) -> Iterator[Problem]:
    """Problems of the tables' widths where the features' vectors interact; the first one alone."""
    config, tables = spec.config, spec.given_tables
    trained = [table.dim for table in spec.tables if not table.is_frozen]
    if (dim := config.vectors.project) is not None and trained and dim != trained[0]:
        rule = f"is the width that vectors are projected to, and model={config.kind} reads vectors of {trained[0]}"
        yield Problem("model.vectors.project", rule, "leave it out: null takes that width", dim)
        return
    dims, count = sorted({table.dim for table in tables}), config.ensemble_size
    if len(dims) > 1:
        examples = ", ".join(next(f"{t.name} has {d}" for t in tables if t.dim == d) for d in dims)
        cure = "give all the same dim, or use model=concat, which takes any widths"
        yield Problem(f"model={config.kind}", f"needs tables of one width, and {examples}", cure)
    elif own := [*architecture.rules(spec)]:
        yield from own
    elif dims[0] % count:
        step = math.lcm(count, 4)  # fbgemm's widths are multiples of 4
        rule = f"must divide the tables' width {dims[0]}"
        yield Problem(f"model.ensemble_size={count}", rule, f"use {-(-dims[0] // step) * step}")
