"""The dense part of DLRM on CPU beside torchrec's: forward, backward and optimizer, without tables and data.

    python benchmarks/dense_part.py --threads 2

In turn, so that both see the same machine; medians. The embeddings are random; 26 features × 32, MLPs 512-256-32 and
512-256-1, Adam. "floor": the products of the linear layers alone, at the rate of a product of 2,048 × 512 × 512.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torchrec.models.dlrm import DLRM, InteractionArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.display.table import text_table
from dlrm_app.model.dlrm import DotInteraction
from dlrm_app.model.layers.perceptrons import speed_up
from dlrm_app.model.precision import multiplies_bf16

FEATURES, DIM, NUM_DENSE = 26, 32, 13
BOTTOM, TOP = [512, 256, DIM], [512, 256, 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dense = torch.randn(options.batch_size, NUM_DENSE)
    embedded = torch.randn(options.batch_size, FEATURES, DIM, requires_grad=True)
    bottom = torch.randn(options.batch_size, DIM, requires_grad=True)
    theirs = make_theirs()
    ours = make_ours(theirs)
    steps = {
        "interaction": (
            interaction(theirs.inter_arch, bottom, embedded),
            interaction(ours.inter_arch, bottom, embedded),
        ),
        "whole, fp32": (step(theirs, dense, embedded, False), step(ours, dense, embedded, True)),
    }
    if multiplies_bf16(torch.device("cpu")):
        steps["whole, bf16"] = tuple(in_bf16(each) for each in steps["whole, fp32"])
    else:
        print("no bf16: this CPU has no units for it")
    rows = []
    for name, (plain, fast) in steps.items():
        before, after = medians([plain, fast], options.rounds)
        rows.append(
            [
                name,
                f"{before * 1e3:.2f}",
                f"{after * 1e3:.2f}",
                f"{before / after:.2f}",
                f"{floor_ms(name, options.batch_size):.2f}",
            ]
        )
    print(text_table(["forward and backward", "torchrec ms", "ours ms", "ratio", "floor ms"], rows))


def make_theirs() -> DLRM:
    tables = [
        EmbeddingBagConfig(name=f"t{n}", embedding_dim=DIM, num_embeddings=10, feature_names=[f"f{n}"])
        for n in range(FEATURES)
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    return DLRM(bags, NUM_DENSE, BOTTOM, TOP)


def make_ours(theirs: DLRM) -> DLRM:
    ours = copy.deepcopy(theirs)
    ours.inter_arch = DotInteraction(FEATURES)
    speed_up(ours)
    return ours


def interaction(arch: InteractionArch, bottom: torch.Tensor, embedded: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        crossed = arch(bottom, embedded)
        torch.autograd.grad(crossed, (bottom, embedded), torch.ones_like(crossed))

    return run


def step(model: DLRM, dense: torch.Tensor, embedded: torch.Tensor, in_one_pass: bool) -> Callable[[], None]:
    weights = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    optimizer = torch.optim.Adam(weights, fused=in_one_pass or None)
    labels = torch.zeros(len(dense), 1)
    loss = nn.BCEWithLogitsLoss()

    def run() -> None:
        optimizer.zero_grad()
        logits = model.over_arch(model.inter_arch(model.dense_arch(dense), embedded))
        loss(logits.float(), labels).backward()
        embedded.grad = None
        optimizer.step()

    return run


def in_bf16(run: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            run()

    return inside


def medians(runs: list[Callable[[], None]], rounds: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, of_run in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            of_run.append(time.perf_counter() - start)
    return [statistics.median(of_run[3:]) for of_run in seconds]


def floor_ms(name: str, rows: int) -> float:
    """What the linear layers' products take at the rate of a large one; for the interaction those of its pairs."""
    dtype = torch.bfloat16 if "bf16" in name else torch.float32
    left, right = torch.randn(2048, 512).to(dtype), torch.randn(512, 512).to(dtype)
    (seconds,) = medians([lambda: torch.mm(left, right)], 20)
    rate = 2 * 2048 * 512 * 512 / seconds
    vectors = FEATURES + 1
    pairs = vectors * (vectors - 1) // 2
    if name == "interaction":
        return rows * pairs * DIM * 2 * 3 / rate * 1e3
    widths = [[NUM_DENSE, *BOTTOM], [DIM + pairs, *TOP]]
    products = sum(a * b for layers in widths for a, b in pairwise(layers)) * 3
    return rows * 2 * (products - NUM_DENSE * BOTTOM[0]) / rate * 1e3  # raw features have no gradient


if __name__ == "__main__":
    main()
