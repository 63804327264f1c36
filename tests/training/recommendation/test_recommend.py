"""dlrm-train recommend=true: which recipe a dataset gets, and that the commands it prints can be typed."""

import json
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dlrm_app.config.compose import compose_config
from dlrm_app.config.plan import PlanConfig
from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest, Shard, Split, read_manifest, write_manifest
from dlrm_app.distributed.ranks import Ranks
from dlrm_app.errors import ConfigError
from dlrm_app.sharding.cluster import Cluster, running_cluster
from dlrm_app.tables.specs import Table
from dlrm_app.training.recommendation.adjustments import batch_setting, memory_settings, training_bytes
from dlrm_app.training.recommendation.encoding import encoding_problems
from dlrm_app.training.recommendation.facts import dataset_facts
from dlrm_app.training.recommendation.recipes import KAGGLE_SMALL, LARGE, MLPERF_DLRM, SMALL_CLICKS, unknowns
from dlrm_app.training.recommendation.recommend import next_command, recommendation_text
from dlrm_app.training.recommendation.recommendation import find_recommendation
from dlrm_app.training.validation import check_plan, check_recommendable, check_training
from tests.loader.dataset_fixture import write_dataset

ONE_RANK = Ranks(0, 0, 1, 1, "cpu")
SIX_RANKS = Ranks(0, 0, 6, 6, "cpu")
MLPERF_ROWS = [
    spec["rows"]
    for spec in compose_config(
        "train", TrainConfig, ["data.path=x", "experiment=mlperf_dlrm_v1"]
    ).tables.specs
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_dataset(tmp_path_factory.mktemp("recommend") / "small", rows={"train": 128, "val": 64})


def dataset_of(folder: Path, like: Manifest, name: str, rows: int, *, val: int = 100_000) -> Manifest:
    """A folder whose manifest tells of so many rows: no more is read for a recommendation."""

    def split(kind: str, size: int) -> Split:
        return Split(size, size // 4, 0, [Shard(f"{kind}/part-00000.parquet", size, 1, "", [size])])

    splits = {"train": split("train", rows)} | ({"val": split("val", val)} if val else {})
    folder.mkdir()
    write_manifest(folder, replace(like, dataset=name, splits=splits))
    return read_manifest(folder)


def criteo_1tb(folder: Path, like: Manifest) -> Manifest:
    columns = [
        replace(like.sparse[0], name=f"cat_{place}", num_embeddings=rows)
        for place, rows in enumerate(MLPERF_ROWS)
    ]
    return dataset_of(folder, replace(like, sparse=columns), "criteo_1tb", 4_195_197_692)


def text_of(manifest: Manifest, *typed: str, ranks: Ranks = ONE_RANK) -> str:
    words = [f"data.path={manifest.path}", *typed]
    config = compose_config("train", TrainConfig, [words[0], "recommend=true"])
    return recommendation_text(manifest, config, words, ranks)


def next_words(text: str) -> list[str]:
    return shlex.split(text.splitlines()[-1].removeprefix("next: "))


@pytest.mark.parametrize(
    ("name", "rows", "val", "experiment", "ranks"),
    [
        ("criteo_kaggle", 137_000, 1000, "kaggle_small", ONE_RANK),
        ("criteo_kaggle", 400_000, 1000, "small_clicks", SIX_RANKS),
        ("clicks", 900, 0, "small_clicks", ONE_RANK),
        ("criteo_kaggle", 36_000_000, 1000, "kaggle_full", ONE_RANK),
        ("criteo_kaggle", 36_000_000, 0, None, ONE_RANK),  # that recipe's rates follow val
        ("clicks", 5_000_000, 1000, None, SIX_RANKS),
    ],
)
def test_the_command_trains_the_recipe_for_such_data(
    tmp_path: Path, small: Manifest, name: str, rows: int, val: int, experiment: str | None, ranks: Ranks
) -> None:
    manifest = dataset_of(tmp_path / "a set", small, name, rows, val=val)
    words = next_words(text_of(manifest, "output=a b", ranks=ranks))
    assert words[0] == ("dlrm-train" if ranks is ONE_RANK else "torchrun")
    assert "recommend=true" not in words
    settings = [word for word in words if "=" in word]
    assert [word for word in settings if word.startswith("experiment=")] == (
        [f"experiment={experiment}"] if experiment else []
    )
    config = compose_config("train", TrainConfig, settings)
    check_training(config, ranks)
    assert config.output == "a b"
    assert rows // config.trainer.global_batch_size >= (100 if rows > 20_000 else 9)
    if experiment is None:
        assert (config.schedule.sparse.kind, config.schedule.sparse.power) == ("polynomial", 1)


def test_criteo_1tb_gets_mlperfs_recipe_and_a_plan_where_its_tables_have_no_room(
    tmp_path: Path, small: Manifest
) -> None:
    manifest = criteo_1tb(tmp_path / "data", small)
    typed = [f"data.path={manifest.path}", "topology.memory_gib=16"]
    config = compose_config("train", TrainConfig, typed)
    chosen = find_recommendation(manifest, typed, ONE_RANK, running_cluster(config.topology, ONE_RANK))
    assert (chosen.recipe, chosen.fits) == (MLPERF_DLRM, False)
    command, *words = shlex.split(next_command(chosen, ONE_RANK))
    assert command == "dlrm-plan"
    check_plan(compose_config("plan", PlanConfig, words))


def test_ids_that_mlperfs_tables_do_not_hold_are_told_with_the_encoding_that_does(
    tmp_path: Path, small: Manifest
) -> None:
    text = text_of(dataset_of(tmp_path / "data", small, "criteo_1tb", 4_000_000_000))
    assert "fewer rows than these columns have ids" in text
    assert "experiment=mlperf_dlrm_v1" in text or "experiment=mlperf_dcnv2" in text


def test_what_is_typed_wins(tmp_path: Path, small: Manifest) -> None:
    manifest = dataset_of(tmp_path / "data", small, "clicks", 5_000_000)
    text = text_of(manifest, "trainer.global_batch_size=640", "schedule=cosine")
    assert next_words(text)[-2:] == ["trainer.global_batch_size=640", "schedule=cosine"]
    assert "polynomial" not in text


def test_what_cannot_be_trained_is_refused_in_place_of_a_command(tmp_path: Path, small: Manifest) -> None:
    manifest = dataset_of(tmp_path / "data", small, "clicks", 5_000_000)
    with pytest.raises(ConfigError, match="global_batch_size must be a multiple"):
        text_of(manifest, "trainer.global_batch_size=7")


@pytest.mark.parametrize("rows", [64, 1000, 36_000, 137_000, 10_000_000])
@pytest.mark.parametrize("batch_size", [256, 512, 2048, 65536])
@pytest.mark.parametrize("ranks", [1, 6, 48])
def test_a_batch_can_be_dealt_and_leaves_steps_enough(rows: int, batch_size: int, ranks: int) -> None:
    lanes = next(lanes for lanes in range(64, 200) if lanes % ranks == 0)
    size = int(batch_setting(batch_size, rows, ranks).value or batch_size)
    assert size % lanes == 0
    assert size <= max(batch_size, lanes)
    assert size == lanes or rows // size >= 100


def test_bytes_are_those_of_weights_and_optimizer_state() -> None:
    tables = [Table("t_a", 1000, 16, ("a",)), Table("t_b", 10, 8, ("b",), data_type="fp16")]
    expected = {"sgd": 4 * 16000 + 2 * 80, "adagrad": 8 * 16000 + 6 * 80}
    expected["rowwise_adagrad"] = expected["sgd"] + 4 * 1010
    for kind, size in expected.items():
        config = compose_config("train", TrainConfig, ["data.path=x", f"optimizer={kind}"])
        assert training_bytes(tables, config) == size


def test_only_the_defaults_give_up_precision_for_room() -> None:
    cluster = Cluster("cpu", 1, 2, 50, 0, 0.0)  # 100 bytes in all
    assert memory_settings(100, 50, cluster, LARGE) == []
    (half,) = memory_settings(101, 100, cluster, LARGE) or []
    assert (half.key, half.value) == ("tables.data_type", "fp16")
    assert memory_settings(101, 51, cluster, MLPERF_DLRM) is None
    assert memory_settings(300, 150, cluster, LARGE) is None


def encoded(like: Manifest, *settings: str, **column: object) -> Manifest:
    config = compose_config("preprocess", PreprocessConfig, ["output=y", *settings])
    kind = {"kind": config.encoding.kind}
    columns = [replace(each, encoding=kind, **column) for each in like.sparse]  # type: ignore[arg-type]
    return replace(like, sparse=columns, config=asdict(config))


def test_hashes_and_rare_values_stand_in_the_way_of_recipes_for_small_data(small: Manifest) -> None:
    hashed = dataset_facts(encoded(small, "input.train=x", distinct=1000, collisions=200))
    assert [problem.split(":")[0] for problem in encoding_problems(hashed, SMALL_CLICKS)] == [
        "ids are hashed",
        "20% of the values share an id with another",
    ]
    assert len(encoding_problems(hashed, LARGE)) == 1
    every = dataset_facts(encoded(small, "input.train=x", "encoding=vocab"))
    assert "encoding.min_count=1" in encoding_problems(every, SMALL_CLICKS)[0]
    frequent = dataset_facts(encoded(small, "input.train=x", "encoding=vocab", "encoding.min_count=20"))
    assert encoding_problems(frequent, SMALL_CLICKS) == []
    assert "dense.target_columns" in encoding_problems(frequent, KAGGLE_SMALL)[0]


@pytest.mark.parametrize("clicks", [0, 64])
def test_a_val_split_with_one_label_is_told(small: Manifest, clicks: int) -> None:
    facts = replace(dataset_facts(small), val_rows=64, val_positives=clicks)
    assert any("all rows of val have the same label" in line for line in unknowns(facts, SMALL_CLICKS))


def test_the_better_encoding_is_a_command_where_the_input_is_at_hand(
    tmp_path: Path, small: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hashed = encoded(small, "input.train=my clicks.tsv")
    manifest = dataset_of(tmp_path / "a set", hashed, "criteo_kaggle", 137_000)
    (line,) = [line for line in text_of(manifest).splitlines() if line.startswith("better: ")]
    assert line.startswith("better: the dlrm-preprocess command of this dataset with experiment=kaggle_small")
    Path("my clicks.tsv").touch()
    (line,) = [line for line in text_of(manifest).splitlines() if line.startswith("better: ")]
    command, *words = shlex.split(line.removeprefix("better: "))
    config = compose_config("preprocess", PreprocessConfig, words)
    assert command == "dlrm-preprocess"
    assert config.problems() == []
    assert (config.input.train, config.encoding.min_count, config.split.val) == ("my clicks.tsv", 2, 0.1)


def test_a_vocabulary_tells_how_many_values_are_too_rare(small: Manifest) -> None:
    facts = dataset_facts(encoded(small, "input.train=x", "encoding=vocab", num_embeddings=102, distinct=400))
    assert facts.rare == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            ["--multirun", "experiment=kaggle_small"],
            ["recommend=true finds one recipe", "recommend=true chooses"],
        ),
        ([], []),
    ],
    ids=["refused", "well"],
)
def test_the_command_answers_without_torch(
    small: Manifest, arguments: list[str], problems: list[str]
) -> None:
    words = ["dlrm-train", "recommend=true", f"data.path={small.path}", *arguments]
    code = f"""
import json, sys
sys.argv = {words}
from dlrm_app.cli.train import main
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps([code, "torch" in sys.modules]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    exit_code, has_torch = json.loads(done.stdout.splitlines()[-1])
    assert not has_torch
    assert bool(exit_code) == bool(problems), done.stderr
    assert all(problem in done.stderr for problem in problems)
    assert problems or "\nnext: dlrm-train experiment=small_clicks" in done.stdout


def test_only_dlrm_train_recommends_and_all_problems_come_at_once() -> None:
    (problem,) = compose_config("plan", PlanConfig, ["data.path=x", "recommend=true"]).problems()
    assert problem.startswith("recommend=true is dlrm-train's")
    config = compose_config(
        "train", TrainConfig, ["data.path=nowhere", "recommend=true", "resume=x", "trainer.epochs=0"]
    )
    with pytest.raises(ConfigError) as caught:
        check_recommendable(config)
    assert len(caught.value.problems) == 3
