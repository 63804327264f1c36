"""The dense part of a model on CPU beside torchrec's: forward, backward and optimizer, without tables and data.

    python benchmarks/dense_part.py --threads 2
    python benchmarks/dense_part.py --model dcn --compile

In turn, so that both see the same machine; medians. The embeddings are random; 26 features × 32, MLPs 512-256-32 and
512-256-1, Adam; DCNv2 with 3 layers of rank 512, projections of 256 and 8 vectors. "floor": the products of the linear
layers and of the interaction alone, at the rate of a product of 2,048 × 512 × 512 by the faster
library. --compile: torch.compile of torchrec's
too, which compiles for a minute first.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.kernels.faster_layers import speed_up
from dlrm_app.kernels.freed_memory import keep_freed_memory
from dlrm_app.kernels.products import multiply
from dlrm_app.model.dlrm import DotInteraction
from dlrm_app.model.precision import multiplies_bf16
from dlrm_app.table import text_table

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FEATURES, DIM, NUM_DENSE = 26, 32, 13
BOTTOM, TOP = [512, 256, DIM], [512, 256, 1]
VECTORS = FEATURES + 1
LAYERS, RANK = 3, 512
BRANCH = [256, 8 * DIM]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", choices=("dlrm", "dcn", "projection"), default="dlrm")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)  # both as in dlrm-train
    keep_freed_memory()
    torch.manual_seed(0)
    dense = torch.randn(options.batch_size, NUM_DENSE)
    embedded = torch.randn(options.batch_size, FEATURES, DIM, requires_grad=True)
    bottom = torch.randn(options.batch_size, DIM, requires_grad=True)
    theirs = make_theirs(options.model)
    ours = make_ours(theirs)
    steps = {
        "interaction": [interaction(model, bottom, embedded) for model in (theirs, ours)],
        "whole, fp32": [step(theirs, dense, embedded, False), step(ours, dense, embedded, True)],
    }
    if options.compile:
        steps["whole, fp32"].append(step(copy.deepcopy(theirs), dense, embedded, True, torch.compile))
    if multiplies_bf16(torch.device("cpu")):
        steps["whole, bf16"] = [in_bf16(each) for each in steps["whole, fp32"]]
    else:
        print("no bf16: this CPU has no units for it")
    rows = []
    for name, runs in steps.items():
        times = medians(runs, options.rounds)
        floor = floor_ms(name, options.model, options.batch_size)
        compiled = f"{times[2] * 1e3:.2f}" if len(times) > 2 else ""
        figures = [times[0] * 1e3, times[1] * 1e3, times[0] / times[1], floor]
        rows.append([name, *(f"{each:.2f}" for each in figures), f"{floor / times[1] / 1e3:.0%}", compiled])
    titles = ["forward and backward", "torchrec ms", "ours ms", "ratio", "floor ms", "floor / ours"]
    print(text_table([*titles, "compiled ms"], rows))


def make_theirs(kind: str) -> DLRM:
    tables = [
        EmbeddingBagConfig(name=f"t{n}", embedding_dim=DIM, num_embeddings=10, feature_names=[f"f{n}"])
        for n in range(FEATURES)
    ]
    bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    if kind == "dcn":
        return DLRM_DCN(bags, NUM_DENSE, BOTTOM, TOP, LAYERS, RANK)
    if kind == "projection":
        return DLRM_Projection(bags, NUM_DENSE, BOTTOM, TOP, BRANCH, BRANCH)
    return DLRM(bags, NUM_DENSE, BOTTOM, TOP)


def make_ours(theirs: DLRM) -> DLRM:
    ours = copy.deepcopy(theirs)
    if type(theirs) is DLRM:
        ours.inter_arch = DotInteraction(FEATURES)
    return speed_up(ours)


def interaction(model: DLRM, bottom: torch.Tensor, embedded: torch.Tensor) -> Callable[[], None]:
    weights = list(model.inter_arch.parameters())

    def run() -> None:
        crossed = model.inter_arch(bottom, embedded)
        torch.autograd.grad(crossed, (bottom, embedded, *weights), torch.ones_like(crossed))

    return run


def step(
    model: DLRM,
    dense: torch.Tensor,
    embedded: torch.Tensor,
    in_one_pass: bool,
    compiled: Callable[[Forward], Forward] = lambda forward: forward,
) -> Callable[[], None]:
    weights = [
        weight
        for part in (model.dense_arch, model.inter_arch, model.over_arch)
        for weight in part.parameters()
    ]
    optimizer = torch.optim.Adam(weights, fused=in_one_pass or None)
    labels = (
        torch.arange(len(dense)).remainder(2).float().unsqueeze(1)
    )  # of one kind alone gradients become subnormal, which is slow
    loss = nn.BCEWithLogitsLoss()

    @compiled
    def forward(dense: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model.over_arch(model.inter_arch(model.dense_arch(dense), embedded))
        return logits

    def run() -> None:
        optimizer.zero_grad()
        loss(forward(dense, embedded).float(), labels).backward()
        embedded.grad = None
        optimizer.step()

    return run


def in_bf16(run: Callable[[], None]) -> Callable[[], None]:
    def inside() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            run()

    return inside


def medians(runs: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, of_run in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            of_run.append(time.perf_counter() - start)
    return [statistics.median(of_run[3:]) for of_run in seconds]


def floor_ms(name: str, kind: str, rows: int) -> float:
    """What the products take at the rate of a large one: of the interaction, or of the whole."""
    dtype = torch.bfloat16 if "bf16" in name else torch.float32
    left, right = torch.randn(2048, 512).to(dtype), torch.randn(512, 512).to(dtype)
    seconds = min(medians([lambda: torch.mm(left, right), lambda: multiply(left, right)], 20))
    rate = 2 * 2048 * 512 * 512 / seconds
    flat, pairs = VECTORS * DIM, VECTORS * (VECTORS - 1) // 2
    crossing, crossed = {
        "dlrm": (pairs * DIM, DIM + pairs),
        "dcn": (LAYERS * 2 * flat * RANK, flat),
        "projection": (2 * (flat * BRANCH[0] + BRANCH[0] * BRANCH[1]) + 8 * 8 * DIM, DIM + 8 * 8),
    }[kind]
    if name == "interaction":
        return rows * 2 * 3 * crossing / rate * 1e3
    layers = [*pairwise([NUM_DENSE, *BOTTOM]), *pairwise([crossed, *TOP])]
    products = sum(a * b for a, b in layers) + (0 if kind == "dlrm" else crossing)
    return rows * 2 * (3 * products - NUM_DENSE * BOTTOM[0]) / rate * 1e3  # raw features have no gradient


if __name__ == "__main__":
    main()
