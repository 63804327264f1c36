"""Describes what a run depends on: its dataset, the versions of packages, the machine and the launch."""

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path

import torch

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.machine import installed
from dlrm_app.records import Json

PACKAGES = [
    "dlrm-app",
    "torch",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "torchrec",
    "torchmetrics",
    "numpy",
    "pyarrow",
]


def describe_dataset(manifest: Manifest) -> Json:
    """The manifest without its shards: rows by split, features, the best metrics that can be reached."""
    return {
        "dataset": manifest.dataset,
        "path": str(manifest.path),
        "fingerprint": manifest.fingerprint(),
        "num_dense": len(manifest.dense),
        "splits": {
            name: {
                "rows": split.rows,
                "positives": split.positives,
                "rejects": split.rejects,
                "bytes": sum(shard.bytes for shard in split.shards),
            }
            for name, split in manifest.splits.items()
        },
        "sparse": [asdict(column) for column in manifest.sparse],
        "best": manifest.best,
    }


def describe_environment(runtime: Runtime) -> Json:
    """Versions, machine and launch, as recorded beside each run."""
    return {
        "folder": str(Path.cwd()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "packages": {name: number for name in PACKAGES if (number := installed(name))},
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "device": torch.cuda.get_device_name(runtime.device) if runtime.device.type == "cuda" else "cpu",
        "world_size": runtime.world_size,
        "ranks_per_machine": runtime.local_world_size,
        "threads_per_rank": runtime.num_threads,
    }
