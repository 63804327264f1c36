"""What trainer.seed and trainer.deterministic decide: the initial weights, the order of the rows, torch's generators.

Each table draws its weights from (seed, table, row) in model/initial_weights.py, so that every sharding plan starts
alike; model/build.py draws the dense part's; data/batch_order.py shuffles by (manifest, seed, epoch, batch size).
"""

import os
from collections.abc import Sequence

import numpy as np
import torch

from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime


def set_seed(seed: int) -> None:
    """Seeds torch's generators, on every rank alike."""
    torch.manual_seed(seed)


def set_step_seed(seed: int, step: int, rank: int) -> None:
    """Seeds torch's generators for ``step``, each rank's otherwise: for masks of dropout that no two share.

    A function of its arguments, so a run that goes on, on other ranks too, needs to remember nothing.
    """
    (drawn,) = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn))


def set_deterministic(wanted: bool) -> None:
    """Whether torch and fbgemm choose kernels that add in a fixed order; what has none is then an error.

    fbgemm's backward pass asks the same switch: without it a GPU cuts the gradients of a row that a batch reads more than
    1,024 times into pieces and adds them in any order.
    """
    torch.use_deterministic_algorithms(wanted)
    # filling takes time, and nothing here reads such memory; a property of the module's class
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if wanted:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # or cuBLAS has no fixed order, and torch refuses it


def random_state() -> str:
    """torch's CPU generator state, as text."""
    return _to_text(torch.get_rng_state())


def cuda_random_states(runtime: Runtime) -> list[str]:
    """The generator state of every rank's GPU, by rank; none on CPU. Every rank must call it.

    fbgemm rounds weights of 16 bits by it, each rank its own rows.
    """
    if runtime.device.type != "cuda":
        return []
    return all_gather_objects(_to_text(torch.cuda.get_rng_state(runtime.device)))


def set_random_states(state: str, cuda_states: Sequence[str], runtime: Runtime) -> None:
    """Restores what ``random_state`` and ``cuda_random_states`` gave; those of GPUs on as many ranks only."""
    torch.set_rng_state(_to_state(state))
    if runtime.device.type == "cuda" and len(cuda_states) == runtime.world_size:
        torch.cuda.set_rng_state(_to_state(cuda_states[runtime.rank]), runtime.device)


def _to_text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _to_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
