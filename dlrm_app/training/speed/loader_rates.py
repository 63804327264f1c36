"""How fast a rank's cores make batches of a dataset: rows, and ids beside them."""

import time
from collections.abc import Sequence
from statistics import median

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.runs.checkpoint.resume import with_lanes
from dlrm_app.sharding.estimate.work import Loaded
from dlrm_app.training.setup import epoch_batches

REPEATS = 3
LEAST_SECONDS = 1e-10
"""Of a row or an id: a difference of two measurements may be nothing."""

Read = tuple[Loaded, float]
"""What was read in so many seconds."""


def measure_loader_rates(
    config: TrainConfig, manifest: Manifest, features: Sequence[str], runtime: Runtime
) -> tuple[float, float]:
    """``fit_rates`` of the training rows with one of ``features`` and with all of them."""
    config = with_lanes(config, None, runtime.world_size)
    return fit_rates(*(read_epoch(config, manifest, few, runtime) for few in (features[:1], features)))


def read_epoch(config: TrainConfig, manifest: Manifest, features: Sequence[str], runtime: Runtime) -> Read:
    """An epoch, and the seconds that this rank's cores were taken for: that all of them were, and for a GPU that passed.

    Beside a step on CPU other threads read while one waits, so only what they work counts.
    """
    seconds = []
    for _ in range(1 + REPEATS):  # the first one compiles
        with epoch_batches(config, manifest, features, runtime) as batches:
            started = _seconds(runtime)
            sizes = [(len(batch.labels), len(batch.sparse_features.values())) for batch in batches]
            seconds.append(_seconds(runtime) - started)
    rows, ids = map(sum, zip(*sizes, strict=True))
    return Loaded(rows, ids), median(seconds[1:])


def fit_rates(few: Read, many: Read) -> tuple[float, float]:
    """(rows without ids, ids) a second, of as many rows with few ids and with many."""
    per_id = max((many[1] - few[1]) / (many[0].ids - few[0].ids), LEAST_SECONDS)
    per_row = max((few[1] - per_id * few[0].ids) / few[0].rows, LEAST_SECONDS)
    return 1 / per_row, 1 / per_id


def _seconds(runtime: Runtime) -> float:
    if runtime.device.type == "cuda":
        return time.perf_counter()
    return time.process_time() / runtime.num_threads
