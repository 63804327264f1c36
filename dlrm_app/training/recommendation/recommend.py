"""``recommend=true``: prints what the dataset is, what to train on it and why, and the command; trains nothing."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from functools import reduce
from pathlib import Path

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.cores import count_cores
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.sharding.cluster import running_cluster
from dlrm_app.table import Column, text_table
from dlrm_app.text import bullets, count, setting
from dlrm_app.training.recommendation.encoding import better_encoding, encoding_problems, preprocess_command
from dlrm_app.training.recommendation.facts import dataset_facts, facts_table
from dlrm_app.training.recommendation.recipes import MEDIUM_ROWS, Recipe, Setting, choose_recipe, unknowns
from dlrm_app.training.recommendation.recommendation import Recommendation, find_recommendation
from dlrm_app.training.validation import check_recommendable


def recommend(config: TrainConfig, typed: Sequence[str], ranks: Ranks) -> None:
    """Prints the recommendation for ``config.data.path``. ``typed``: the user's settings, which win over it.

    Raises ConfigError for settings that what is recommended does not take.
    """
    manifest = check_recommendable(config)
    if ranks.is_first:
        print(recommendation_text(manifest, config, typed, _ranks_to_use(ranks, manifest)))


def recommendation_text(manifest: Manifest, config: TrainConfig, typed: Sequence[str], ranks: Ranks) -> str:
    """All that is printed; its last line is the command to type."""
    facts = dataset_facts(manifest)
    cluster = running_cluster(config.topology, ranks)
    chosen = find_recommendation(manifest, typed, ranks, cluster)
    parts = [
        facts_table(facts),
        f"this machine: {cluster}, {count(_num_cores(), 'core')}",
        _settings_table(chosen),
        f"what is not known:\n{bullets([*unknowns(facts, chosen.recipe), _unread(manifest)])}",
    ]
    # what the data is made for, whether or not its encoding lets the recipe take it
    wanted = choose_recipe(facts)
    problems = encoding_problems(facts, wanted)
    if chosen.recipe is not wanted:
        problems.append(
            f"the tables of experiment={wanted.experiment} have fewer rows than these columns have ids"
        )
    if problems:
        parts.append(_encoding_text(manifest, wanted, problems))
    return "\n\n".join([*parts, f"next: {next_command(chosen, ranks)}"])


def next_command(chosen: Recommendation, ranks: Ranks) -> str:
    """What to type: the training, or a plan of a larger cluster where these ranks have no room for the tables."""
    words = [shlex.quote(word) for word in chosen.words]
    if not chosen.fits:
        return " ".join(["dlrm-plan", *words, "topology=a100_80g_8"])
    if ranks.world_size == 1:
        return " ".join(["dlrm-train", *words])
    nodes, meet = ranks.world_size // ranks.local_world_size, "--standalone"
    if nodes > 1:
        meet = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return " ".join(
        [f"torchrun {meet} --nproc-per-node {ranks.local_world_size} -m dlrm_app.cli.train", *words]
    )


def _ranks_to_use(ranks: Ranks, manifest: Manifest) -> Ranks:
    """Those that were started; of a command without torchrun all GPUs, where there is work for them.

    One rank on CPU: two took 1.06 to 1.15 times as long (docs/experiments.md, "Two ranks on two cores").
    """
    if ranks.world_size > 1 or ranks.device_type == "cpu" or manifest.splits["train"].rows <= MEDIUM_ROWS:
        return ranks
    import torch

    gpus = torch.cuda.device_count()
    return replace(ranks, world_size=gpus, local_world_size=gpus)


def _num_cores() -> int:
    return count_cores(frozenset(os.sched_getaffinity(0)), os.environ, Path("/"))


def _settings_table(chosen: Recommendation) -> str:
    recipe = chosen.recipe
    rows = [["experiment", recipe.experiment or "none", recipe.why]]
    rows += [[each.key, _value(each, chosen.config), each.why] for each in chosen.settings]
    return text_table(["setting", Column("value"), Column("because", is_words=True)], rows)


def _value(chosen: Setting, config: TrainConfig) -> str:
    value: object = reduce(getattr, chosen.key.split("."), config)
    return str(chosen.value) if is_dataclass(value) else str(value)


def _unread(manifest: Manifest) -> str:
    command = f"dlrm-preprocess {setting('check', manifest.folder)}"
    return f"how many ids of val are new to train is not in the manifest: {command} counts them"


def _encoding_text(manifest: Manifest, recipe: Recipe, problems: Sequence[str]) -> str:
    settings = better_encoding(recipe)
    command = preprocess_command(manifest, settings)
    better = (
        command or f"the dlrm-preprocess command of this dataset with {' '.join(settings)} and another output"
    )
    return f"the encoding stands in the way:\n{bullets(problems)}\nbetter: {better}"
