"""Remembering the tables' initial weights costs far less memory than the tables."""

import subprocess
import sys

SCRIPT = """
import os
import resource

import torch
import torch.distributed as dist
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.tables.specs import Table
from dlrm_app.training.table_health.changed_rows import InitialWeights

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
config = EmbeddingBagConfig(name="t", embedding_dim=64, num_embeddings=1_000_000, feature_names=["f"])
model = EmbeddingBagCollection([config])
for number in range(3):
    if os.fork() == 0:
        ballast = [bytes(1000) for _ in range(number * 1000)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        InitialWeights(model, [Table("t", 1_000_000, 64, ("f",))], torch.device("cpu"))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
        os._exit(0)
    os.wait()
"""


def test_it_takes_a_hash_a_row_and_little_else() -> None:
    """4 MB of hashes for 256 MB of weights; in three processes, for it depends on where malloc begins."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kibibytes = [int(line) for line in done.stdout.splitlines()]
    assert len(kibibytes) == 3
    assert max(kibibytes) < 64 * 1024
