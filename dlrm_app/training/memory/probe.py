"""trainer.probe_memory: a few steps at full batch before the first epoch, on a model that is thrown away again.

So weights, optimizer state, the place in the data and random numbers are those of a run without it: the real model is built
afterwards, from the same seed or checkpoint.
"""

import gc
import logging
from itertools import islice

import torch

from dlrm_app.config.train import TrainConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.collectives import all_gather_stacked
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan
from dlrm_app.sharding.plan.measured import peak_bytes, used_bytes
from dlrm_app.tables.specs import Table
from dlrm_app.text import memory_text
from dlrm_app.training.memory.estimate import RunMemory, estimate_run
from dlrm_app.training.seed import cuda_random_states, random_state, set_random_states
from dlrm_app.training.setup import Trainable, build_trainable, epoch_batches

logger = logging.getLogger(__name__)

STEPS = 3
"""The first makes what a step needs, the second has a batch under way behind it, the third is like all others."""


def probe_memory(config: TrainConfig, manifest: Manifest, tables: list[Table], runtime: Runtime) -> None:
    """Takes STEPS steps and logs every rank's peak beside what was estimated. What has no room fails here."""
    before = used_bytes(runtime.device)
    generators = random_state(), cuda_random_states(runtime)
    if runtime.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(runtime.device)
    trainable = runtime.together(lambda: build_trainable(config, tables, len(manifest.dense), runtime))
    _take_steps(config, manifest, trainable, runtime)
    plan = trainable.plan
    del trainable
    peak = torch.tensor(
        [float(peak_bytes(runtime.device) - before)], dtype=torch.float64, device=runtime.device
    )
    by_rank = all_gather_stacked(peak).flatten().tolist()
    gc.collect()  # the pipeline and the model know each other
    if runtime.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(runtime.device)
    set_random_states(*generators, runtime)
    if runtime.is_first:
        needed = estimate_run(config, tables, len(manifest.dense), runtime.world_size, runtime.device_type)
        logger.info("%s", "\n".join(report_lines(plan, needed, by_rank)))


def report_lines(plan: EstimatedPlan, needed: RunMemory, peaks: list[float]) -> list[str]:
    """A line for each rank, ``peaks`` in bytes; the context is in none of them."""
    beside = needed.total - needed.context
    lines = [f"memory of {STEPS} steps at full batch, estimated (tables and the rest) and measured:"]
    for rank, (tables, peak) in enumerate(zip(plan.loads.device.tolist(), peaks, strict=True)):
        estimated = f"{memory_text(tables)} + {memory_text(beside)}"
        lines.append(
            f"  rank {rank}: {estimated} = {memory_text(tables + beside)} estimated, {memory_text(peak)} measured, "
            f"{memory_text(plan.cluster.memory)} there"
        )
    return lines


def _take_steps(config: TrainConfig, manifest: Manifest, trainable: Trainable, runtime: Runtime) -> None:
    batches = epoch_batches(config, manifest, trainable.features, runtime)
    trainable.model.train()
    steps = min(STEPS, len(batches))
    with batches:
        stream = islice(batches, steps)
        for _ in range(steps):
            trainable.pipeline.progress(stream)
    trainable.pipeline.detach()
