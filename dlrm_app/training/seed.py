"""What trainer.seed decides: the initial weights, the order of the rows, and torch's own generators.

Each table draws its weights from (seed, table, row) in model/initial_weights.py, so that every sharding plan starts
alike; model/build.py draws the dense part's; data/batch_order.py shuffles by (manifest, seed, epoch, batch size).
"""

import torch


def set_seed(seed: int) -> None:
    """Seeds torch's generators, on every rank alike."""
    torch.manual_seed(seed)


def random_state() -> str:
    """torch's CPU generator state, as text."""
    return torch.get_rng_state().numpy().tobytes().hex()


def set_random_state(text: str) -> None:
    """Restores what ``random_state`` gave."""
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8))
