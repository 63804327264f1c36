"""Recipes compose, fit their command, and hold the published numbers."""

from dataclasses import asdict
from functools import cache

import pytest
from omegaconf import OmegaConf

from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.config.train import TrainConfig, changed_keys
from dlrm_app.tables.specs import resolve_tables
from tests.composed import compose_config

# Criteo's distinct values per column: Kaggle, and 1TB capped at 40 million as MLPerf does
KAGGLE_ROWS = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip
MLPERF_ROWS = [
    40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976,
    14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
]  # fmt: skip
MULTI_HOT = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
TRAIN = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
PREPROCESS = sorted(path.stem for path in (conf_dir() / "experiment" / "preprocess").glob("*.yaml"))


@cache
def compose_train(*overrides: str) -> TrainConfig:
    return compose_config("train", TrainConfig, ["data.path=x", *overrides])


@cache
def compose_preprocess(*overrides: str) -> PreprocessConfig:
    return compose_config("preprocess", PreprocessConfig, ["input.train=x", "output=y", *overrides])


def table_rows(config: TrainConfig) -> list[int]:
    return [spec["rows"] for spec in config.tables.specs]


def test_every_recipe_of_preprocessing_has_a_twin_for_training() -> None:
    assert set(PREPROCESS) <= set(TRAIN)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((compose_train, name) for name in TRAIN),
        *((compose_preprocess, name) for name in PREPROCESS),
    ],
)
def test_a_recipe_has_no_problems(command, name: str) -> None:  # type: ignore[no-untyped-def]
    assert command(f"experiment={name}").problems() == []


def test_typed_settings_win_over_recipes_over_defaults() -> None:
    assert compose_train().trainer.global_batch_size == 2048
    assert compose_train("experiment=kaggle_small").trainer.global_batch_size == 256
    typed = compose_train("experiment=kaggle_small", "trainer.global_batch_size=512")
    assert typed.trainer.global_batch_size == 512
    recipe = compose_preprocess("experiment=kaggle_small").dense
    assert (recipe.bucket_columns, recipe.target_columns) == ("all", "all")


def test_kaggle_paper_is_the_dlrm_papers_script() -> None:
    config = compose_train("experiment=kaggle_paper")
    model, optimizer = config.model, config.optimizer
    assert config.tables.embedding_dim == 16
    assert (model.kind, model.bottom_mlp, model.top_mlp) == ("dlrm", [512, 256, 64, 16], [512, 256, 1])
    assert (optimizer.sparse.kind, optimizer.sparse.lr) == ("sgd", 0.1)
    assert (optimizer.dense.kind, optimizer.dense.lr) == ("sgd", 0.1)
    assert (config.schedule.sparse.kind, config.trainer.global_batch_size) == ("constant", 128)
    published = compose_train("experiment=kaggle_paper", "tables=criteo_kaggle")
    assert (table_rows(published), published.tables.embedding_dim) == (KAGGLE_ROWS, 16)


def test_mlperf_dlrm_v1_is_the_reference() -> None:
    config = compose_train("experiment=mlperf_dlrm_v1")
    model = config.model
    assert (config.evaluation.per_epoch, config.evaluation.target_auc) == (20, 0.8025)
    assert (table_rows(config), config.tables.embedding_dim) == (MLPERF_ROWS, 128)
    assert (model.kind, model.bottom_mlp) == ("dlrm", [512, 256, 128])
    assert model.top_mlp == [1024, 1024, 512, 256, 1]
    assert config.trainer.global_batch_size == 32768
    for optimizer in (config.optimizer.sparse, config.optimizer.dense):
        assert (optimizer.kind, optimizer.lr) == ("sgd", 18.0)
    for schedule in (config.schedule.sparse, config.schedule.dense):
        assert (schedule.kind, schedule.power, schedule.warmup_steps) == ("polynomial", 2.0, 8000)
        assert (schedule.decay_start, schedule.decay_steps) == (70000, 30000)


def test_mlperf_dcnv2_is_the_reference() -> None:
    config = compose_train("experiment=mlperf_dcnv2")
    model = config.model
    assert (config.evaluation.per_epoch, config.evaluation.target_auc) == (20, 0.80275)
    assert (table_rows(config), config.tables.embedding_dim) == (MLPERF_ROWS, 128)
    assert (model.kind, model.dcn_num_layers, model.dcn_low_rank_dim) == ("dcn", 3, 512)
    assert (model.bottom_mlp, model.top_mlp) == ([512, 256, 128], [1024, 1024, 512, 256, 1])
    assert config.trainer.global_batch_size == 65536
    for optimizer in (config.optimizer.sparse, config.optimizer.dense):
        assert (optimizer.kind, optimizer.lr, optimizer.eps) == ("adagrad", 0.005, 1e-8)
    for schedule in (config.schedule.sparse, config.schedule.dense):
        assert (schedule.kind, schedule.warmup_steps) == ("constant", 0)


def test_mlperf_dcnv2_rcp_has_the_reference_points_rate() -> None:
    """mlperf_logging's rcps_dlrm_dcnv2.json: opt_base_learning_rate 0.004 at 32,768 to 65,536."""
    changed = changed_keys(
        asdict(compose_train("experiment=mlperf_dcnv2")), asdict(compose_train("experiment=mlperf_dcnv2_rcp"))
    )
    assert changed == ["optimizer.sparse.lr 0.005 → 0.004", "optimizer.dense.lr 0.005 → 0.004"]


# BARS, ranking/ctr/DLRM/DLRM_criteo_x1/README.md and DCNv2/DCNv2_criteo_x1/README.md (the "Logs"), and what FuxiCTR 1.x
# fixes in fuxictr/pytorch/models/base_model.py: key there, value there, key here, value here
BARS = [
    ("optimizer", "adam", "optimizer.sparse.kind", "adam"),
    ("optimizer", "adam", "optimizer.dense.kind", "adam"),
    ("learning_rate", 0.001, "optimizer.sparse.lr", 0.001),
    ("learning_rate", 0.001, "optimizer.dense.lr", 0.001),
    ("torch.optim.Adam eps", 1e-8, "optimizer.sparse.eps", 1e-8),
    ("torch.optim.Adam eps", 1e-8, "optimizer.dense.eps", 1e-8),
    ("embedding_regularizer", 1e-5, "optimizer.sparse.weight_decay", 1e-5),
    ("regularization_loss", "lambda/2 · norm² in the loss", "optimizer.sparse.weight_decay_mode", "coupled"),
    ("regularization_loss", "of every parameter", "optimizer.sparse.updated_rows", "all"),
    ("net_regularizer", 0, "optimizer.dense.weight_decay", 0.0),
    ("max_gradient_norm", 10.0, "optimizer.dense.clip_norm", 10.0),
    ("batch_size", 4096, "trainer.global_batch_size", 4096),
    ("epochs", 100, "trainer.epochs", 100),
    ("reduce_lr_on_plateau", "at once", "schedule.sparse.patience", 0),
    ("reduce_lr_on_plateau", "factor 0.1", "schedule.sparse.step_factor", 0.1),
    ("reduce_lr_on_plateau", "factor 0.1", "schedule.dense.step_factor", 0.1),
    ("patience", 2, "evaluation.patience", 2),
    ("embedding_initializer", "normal, std 1e-4", "tables.init", "normal"),
    ("embedding_initializer", "normal, std 1e-4", "tables.init_scale", 1e-4),
    ("embedding_dim", 10, "tables.embedding_dim", 12),  # fbgemm's widths are multiples of 4
]
BARS_DLRM = [
    ("bottom_mlp_units", [400, 400, 400], "model.bottom_mlp", [400, 400, 400]),
    ("top_mlp_units", [400, 400, 400], "model.top_mlp", [400, 400, 400]),
    ("bottom_mlp_dropout", 0, "model.bottom_dropout", 0.0),
    ("top_mlp_dropout", 0.2, "model.dropout", 0.2),
    ("batch_norm", True, "model.batch_norm", True),
    ("interaction_op", "dot", "model.kind", "dlrm"),
]
BARS_DCNV2 = [
    ("model_structure", "parallel", "model.kind", "dcn_parallel"),
    ("parallel_dnn_hidden_units", [500, 500, 500], "model.top_mlp", [500, 500, 500]),
    ("num_cross_layers", 3, "model.dcn_num_layers", 3),
    ("use_low_rank_mixture", False, "model.dcn_low_rank_dim", None),
    ("net_dropout", 0.1, "model.dropout", 0.1),
    ("batch_norm", False, "model.batch_norm", False),
]
CRITEO_X4 = [
    *(each for each in BARS if each[0] not in ("batch_size", "embedding_dim")),
    ("embedding_dim", 16, "tables.embedding_dim", 16),
]
# BARS, ranking/ctr/FinalNet/FinalNet_criteo_x4_001/README.md
FINALNET_X4 = [
    ("batch_size", 8192, "trainer.global_batch_size", 8192),
    ("block1_hidden_units", [1000, 1000, 1000], "model.top_mlp", [1000, 1000, 1000]),
    ("block2_hidden_units", [512], "model.finalnet_mlp2", [512]),
    ("use_feature_gating", True, "model.finalnet_gates", True),
    ("block1_hidden_activations", "ReLU", "model.finalnet_relu", True),
    ("block1_dropout", 0.4, "model.dropout", 0.4),
    ("block2_dropout", 0.4, "model.finalnet_dropout2", 0.4),
    ("batch_norm", True, "model.batch_norm", True),
]
# salmon1802/DCNv3, checkpoints/Criteo_x4_10_h5/DCNv3_Criteo_047_43d9ad18.log
DCNV3_X4 = [
    ("batch_size", 4096, "trainer.global_batch_size", 4096),
    ("num_deep_cross_layers", 4, "model.dcn_num_layers", 4),
    ("num_shallow_cross_layers", 5, "model.dcnv3_num_linear_layers", 5),
    ("layer_norm", True, "model.dcnv3_layer_norm", True),
    ("num_heads", 1, "model.num_heads", 1),
    ("deep_net_dropout", 0.1, "model.dropout", 0.1),
    ("shallow_net_dropout", 0.2, "model.dcnv3_linear_dropout", 0.2),
    ("batch_norm", False, "model.batch_norm", False),
]
# salmon1802/DCNv3, checkpoints/Avazu_x4_h5/DCNv3_Avazu.log
DCNV3_AVAZU_X4 = [
    ("optimizer", "adam", "optimizer.sparse.kind", "adam"),
    ("learning_rate", 1e-3, "optimizer.sparse.lr", 1e-3),
    ("learning_rate", 1e-3, "optimizer.dense.lr", 1e-3),
    ("embedding_regularizer", 0, "optimizer.sparse.weight_decay", 0.0),
    ("net_regularizer", 0, "optimizer.dense.weight_decay", 0.0),
    ("embedding_dim", "16 for each of 3 heads", "tables.embedding_dim", 48),
    ("batch_size", 10000, "trainer.global_batch_size", 10000),
    ("num_cross_layers", 4, "model.dcn_num_layers", 4),
    ("num_cross_layers", 4, "model.dcnv3_num_linear_layers", 4),
    ("layer_norm", True, "model.dcnv3_layer_norm", True),
    ("num_heads", 3, "model.num_heads", 3),
    ("net_dropout", 0, "model.dropout", 0.0),
    ("batch_norm", True, "model.batch_norm", True),
    ("the epoch of the best AUC", 1, "trainer.epochs", 1),
]
# salmon1802/QNN, checkpoints/Criteo_x4_10_h5/QNN_T26_Criteo_001_53135920.log
QNN_X4 = [
    ("batch_size", 10000, "trainer.global_batch_size", 10000),
    ("num_layers", 4, "model.dcn_num_layers", 4),
    ("num_row", 5, "model.qnn_num_rows", 5),
    ("num_heads", 1, "model.num_heads", 1),
    ("net_dropout", 0.1, "model.dropout", 0.1),
    ("batch_norm", False, "model.batch_norm", False),
]
PUBLISHED = [
    ("kaggle_full", BARS + BARS_DLRM, 10),
    ("kaggle_full_dcnv2", BARS + BARS_DCNV2, 10),
    ("finalnet_criteo_x4", CRITEO_X4 + FINALNET_X4, 10),
    ("dcnv3_criteo_x4", CRITEO_X4 + DCNV3_X4, 10),
    ("qnn_criteo_x4", CRITEO_X4 + QNN_X4, 10),
    ("dcnv3_avazu_x4", DCNV3_AVAZU_X4, 2),
]


@pytest.mark.parametrize(("name", "sources", "min_count"), PUBLISHED)
def test_the_recipes_of_the_records_are_the_published_settings(
    name: str, sources: list[tuple[str, object, str, object]], min_count: int
) -> None:
    config = OmegaConf.create(asdict(compose_train(f"experiment={name}")))
    for source, published, key, expected in sources:
        assert OmegaConf.select(config, key) == expected, (key, source, published)
    twin = name.removesuffix("_dcnv2")
    assert compose_preprocess(f"experiment={twin}").encoding.min_count == min_count


def test_the_mlperf_encodings_fit_the_mlperf_tables() -> None:
    for name in ("mlperf_dlrm_v1", "mlperf_dcnv2"):
        assert compose_preprocess(f"experiment={name}").encoding.num_embeddings == MLPERF_ROWS
    assert compose_preprocess("experiment=mlperf_dcnv2").multi_hot.sizes == MULTI_HOT


def test_plans_of_mlperfs_models_expect_the_ids_of_their_rows() -> None:
    """214 a row in DLRM-DCNv2, one a feature in the DLRM before it; without a dataset the specs have to say so."""
    expected = {"mlperf_dcnv2": [float(size) for size in MULTI_HOT], "mlperf_dlrm_v1": [1.0] * 26}
    for name, sizes in expected.items():
        tables = resolve_tables(compose_train(f"experiment={name}").tables, None)
        assert [ids for table in tables for ids in table.expected_pooling_factors] == sizes
