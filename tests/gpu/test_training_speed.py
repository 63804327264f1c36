"""dlrm-bench on the device: the last file, and run alone by `make gpu-check`, because other work would slow it."""

from functools import partial

import pytest

from dlrm_app.bench.bench import bench
from dlrm_app.config.compose import compose_config
from dlrm_app.config.like_train import BenchConfig
from tests.gpu.conftest import ON_GPU, RANKS, SECONDS, Note
from tests.ranks import start_ranks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_dlrm_bench_measures_the_loader_and_steps(
    precision: str, settings: list[str], record_property: Note
) -> None:
    """With tables and rows of the size of Criteo's; on the CPU small ones, to try it."""
    large = ["tables=criteo_kaggle", f"trainer.global_batch_size={65536 * RANKS}", "experiment=null"]
    numbers = f"trainer.tf32={precision == 'tf32'}", f"trainer.precision={precision.replace('tf', 'fp')}"
    keys = [*(large if ON_GPU else settings), *numbers]
    for section, speed in start_ranks(partial(bench_of, keys), RANKS, RANKS, SECONDS)[0].items():
        record_property(section, f"{speed:,.0f} rows/s")


def bench_of(keys: list[str]) -> dict[str, float]:
    """Rows a second by section; nothing on other ranks than the first."""
    result = bench(compose_config("bench", BenchConfig, keys))
    return {section.name: section.rows_per_second for section in result.sections} if result else {}
