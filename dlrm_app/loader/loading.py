"""How batches are made beforehand: how many, by how many threads, and for which device."""

from dataclasses import dataclass

import torch

from dlrm_app.distributed.runtime import Runtime

MOST_WORKERS = 8
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loading:
    """``prefetch`` batches are made beforehand for ``device``, of row groups that ``num_workers`` threads decode."""

    prefetch: int = 4
    num_workers: int = 1
    device: torch.device = _CPU


PLAIN = Loading()


def choose_loading(prefetch: int, num_workers: int | None, runtime: Runtime) -> Loading:
    """``num_workers`` None: half of this rank's threads, from 1 to 8.

    A worker decodes millions of rows a second, far more than a step on CPU takes, so there one is enough and the other
    half is the model's; a GPU takes what several workers give, and then the cores have nothing else to do.
    """
    if num_workers is None:
        num_workers = min(max(runtime.num_threads // 2, 1), MOST_WORKERS)
    return Loading(prefetch, num_workers, runtime.device)
