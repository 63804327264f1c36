"""Run by torchrun: trains every (sharding type, optimizer) given as JSON and writes each run's global losses.

torchrun --nproc-per-node 2 sharded_losses.py '[["row_wise", "adagrad"], …]' OUT.json
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.runtime import Runtime, start_runtime
from dlrm_app.training.build import build_trainable
from tests.random_batches import NUM_DENSE, TABLES, draw, to_batch

NUM_STEPS, BATCH = 20, 32


COMMON = ["data.path=unused", "model.bottom_mlp=[16]", "model.top_mlp=[16]", "optimizer.dense.clip_norm=0.1"]


def losses(sharding_type: str, optimizer: str, runtime: Runtime) -> list[float]:
    overrides = [
        *COMMON,
        "trainer.global_batch_size=64",
        f"optimizer={optimizer}",
        f"sharding.types=[{sharding_type}]",
    ]
    trainable = build_trainable(compose_config("train", TrainConfig, overrides), TABLES, NUM_DENSE, runtime)
    stream = (to_batch(*draw(seed, BATCH), runtime.rank, runtime.world_size) for seed in range(NUM_STEPS))
    found = []
    for _ in range(NUM_STEPS):
        loss, _, _ = trainable.pipeline.progress(stream)
        dist.all_reduce(loss)
        found.append(float(loss) / runtime.world_size)
    return found


def main() -> None:
    cases, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    with start_runtime(num_threads=1) as runtime:
        results = [losses(*case, runtime) for case in cases]
        if runtime.is_first:
            output.write_text(json.dumps(results))


if __name__ == "__main__":
    from dlrm_app.cli.launch import leave

    main()
    leave(0)
