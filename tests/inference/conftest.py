"""A small trained run, and exports of it that many tests read. Each costs seconds: none of them is changed in place."""

import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.config.export import ExportConfig
from dlrm_app.config.predict import PredictConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference import verification
from dlrm_app.inference.export import export_model
from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.predict.predict import predict
from dlrm_app.inference.problems import check_predict
from dlrm_app.inference.record import ExportRecord
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.loader.batch import EvalBatches
from tests.commands import MadeOnce
from tests.composed import compose_config
from tests.inference.mixed import make_mixed
from tests.inference.shop import NUM_ROWS, NUM_TEST, SHOP, draw_rows, write_csv
from tests.loader.dataset_fixture import write_dataset
from tests.preprocessing.running import AUTO
from tests.preprocessing.running import run as preprocess
from tests.small_run import train_here

CPP = Path(__file__).resolve().parents[2] / "dlrm_app" / "inference" / "cpp"
TABLES = """
embedding_dim: 8
specs:
  - {name: t_c0, rows: 50, features: [c0]}
  - {name: t_c1, rows: 1000, features: [c1], data_type: fp16}
  - {name: t_bags, rows: 30, features: [m0, m1], pooling: mean}
"""


def first_rows(trained: Path, num_rows: int) -> Inputs:
    """The first rows of the test split of TRAINED/dataset, as a scoring model takes them."""
    features, manifest = ["c0", "c1", "m0", "m1"], read_manifest(trained / "dataset")
    with EvalBatches(manifest, "test", features, batch_size=num_rows) as batches:
        return to_inputs(next(iter(batches)))


def export_here(*overrides: str) -> ExportRecord:
    """What ``dlrm-export`` does, in this process and on one thread, with hardly a look at the time of a call."""
    is_delta = any(word.startswith("apply=") for word in overrides)
    words = ["threads=1", *overrides, *["judgement=ignore"] * (not is_delta)]  # few rows are learnt by heart
    with mock.patch.object(verification, "_SECONDS", 0.01):
        return export_model(compose_config("export", ExportConfig, words)).record


LEARNS = ["trainer.global_batch_size=64", "optimizer.sparse.lr=0.3"]  # so that ids matter


@pytest.fixture(scope="session")
def trained(made_once: MadeOnce) -> Path:
    """A folder with ``dataset`` and ``run``: one-hot and multi-hot features, a shared table, mean pooling, fp16."""

    def make(folder: Path) -> None:
        write_dataset(folder / "dataset", rows={"train": 2000, "val": 500, "test": 701}, multi_hot=(30, 30))
        (folder / "tables.yaml").write_text(TABLES)
        keys = [f"data.path={folder}/dataset", f"tables={folder}/tables.yaml", "trainer.epochs=3"]
        train_here(folder / "run", *keys, *LEARNS)

    return made_once("trained", make)


@pytest.fixture(scope="session")
def script_export(trained: Path, made_once: MadeOnce) -> Path:
    """An export as TorchScript, which takes a second where the compiled one takes half a minute."""
    keys = [f"checkpoint={trained}/run", "format=torchscript"]
    return made_once("script", lambda folder: export_here(*keys, f"output={folder}"))


@pytest.fixture(scope="session")
def package_export(trained: Path, made_once: MadeOnce) -> Path:
    """A compiled export and the same model as TorchScript; all tables in int8 but one. Half a minute of compiling."""
    keys = [f"checkpoint={trained}/run", "format=[aoti,torchscript]", "quantize=int8"]
    keys += ["quantize_tables={t_c0: fp16}", "max_auc_loss=0.01"]
    return made_once("package", lambda folder: export_here(*keys, f"output={folder}"))


@pytest.fixture(scope="session")
def mixed(made_once: MadeOnce) -> Path:
    """A folder with ``data``, ``run`` and ``test.csv`` of a model with attention and weights of elements."""
    return made_once("mixed", make_mixed)


@pytest.fixture(scope="session")
def mixed_export(mixed: Path, made_once: MadeOnce) -> Path:
    """Its compiled export, and TorchScript."""
    keys = [f"checkpoint={mixed}/run", "format=[aoti,torchscript]", "max_auc_loss=0.01"]
    return made_once("mixed-package", lambda folder: export_here(*keys, f"output={folder}"))


@pytest.fixture(scope="session")
def triton_export(mixed: Path, made_once: MadeOnce) -> Path:
    """Its export for Triton."""
    keys = [f"checkpoint={mixed}/run", "format=triton", "max_auc_loss=0.01"]
    return made_once("triton", lambda folder: export_here(*keys, f"output={folder}"))


@pytest.fixture(scope="session")
def shop(made_once: MadeOnce) -> Path:
    """A folder with ``dataset``, ``run``, its ``export``, and the lines of the test split as ``test.csv``."""

    def make(folder: Path) -> None:
        rows = draw_rows()
        folder.mkdir()
        (folder / "shop.yaml").write_text(SHOP)
        write_csv(folder / "all.csv", rows)
        write_csv(folder / "test.csv", rows[-NUM_TEST:])
        keys = [f"dataset={folder}/shop.yaml", f"input.train={folder}/all.csv"]
        keys += [f"split.test={NUM_TEST / NUM_ROWS}", "encoding.crosses=[[user,item]]"]
        chosen = [each for each in AUTO if not each.startswith("encoding.crosses")]
        preprocess(folder / "dataset", *keys, *chosen)
        train_here(folder / "run", f"data.path={folder}/dataset", *LEARNS)
        export_here(f"checkpoint={folder}/run", "format=torchscript", f"output={folder}/export")

    return made_once("shop", make)


@pytest.fixture(scope="session")
def other_shop(shop: Path, made_once: MadeOnce) -> Path:
    """A folder with the ``export`` of a model of the same data with other weights, its delta, and one of other columns."""

    def make(folder: Path) -> None:
        folder.mkdir()
        train_here(folder / "run", f"data.path={shop}/dataset", "trainer.seed=1", *LEARNS)
        words = [f"checkpoint={folder}/run", "format=torchscript"]
        export_here(*words, f"output={folder}/export")
        export_here(*words, f"since={shop}/export", f"output={folder}/delta")

    return made_once("other_shop", make)


def predicted(output: Path, *overrides: str) -> pa.Table:
    """What ``dlrm-predict`` writes, run in this process."""
    config = compose_config("predict", PredictConfig, ["threads=1", *overrides, f"output={output}"])
    check_predict(config)
    predict(config)
    return pq.read_table(output)


@pytest.fixture(scope="session")
def expected(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """The scores of the dataset's test split."""
    output = tmp_path_factory.mktemp("expected") / "scores.parquet"
    return predicted(output, f"model={shop}/export", f"data.path={shop}/dataset")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs."""
    for program in ("cmake", "g++"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}: apt-get install cmake g++")
    folder = tmp_path_factory.mktemp("cpp")
    for arguments in (
        ["-S", str(CPP), "-B", str(folder), f"-DPython3_EXECUTABLE={sys.executable}"],
        ["--build", str(folder), "--parallel", "2"],
    ):
        done = subprocess.run(["cmake", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder
