"""One step of two tables on the device named on the command line, by fbgemm and by torch.nn.EmbeddingBag."""

import json
import sys

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

ROWS, DIM, BATCH, LEARNING_RATE = (100, 50), 16, 32, 0.5
TOLERANCE = 1e-5


def main() -> None:
    device = torch.device(sys.argv[1])
    torch.manual_seed(0)
    on_gpu = device.type == "cuda"
    location = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, location, compute) for rows in ROWS],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=LEARNING_RATE,
        pooling_mode=PoolingMode.SUM,
        device=device,
    )
    bags = [torch.nn.EmbeddingBag(rows, DIM, mode="sum", device=device) for rows in ROWS]
    for weight, bag in zip(tables.split_embedding_weights(), bags, strict=True):
        weight.data.copy_(bag.weight.data)
    lengths = torch.randint(0, 4, (len(ROWS) * BATCH,))  # empty bags too
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    ends = offsets[BATCH::BATCH].tolist()
    ids = [
        torch.randint(0, rows, (int(n),)) for rows, n in zip(ROWS, lengths.view(2, -1).sum(1), strict=True)
    ]
    gradient = torch.randn(BATCH, len(ROWS) * DIM, device=device)

    pooled = tables(torch.cat(ids).to(device), offsets.to(device))
    torch.autograd.backward(pooled, gradient)
    starts = [offsets[:BATCH], offsets[BATCH : 2 * BATCH] - ends[0]]
    expected = torch.cat(
        [bag(i.to(device), s.to(device)) for bag, i, s in zip(bags, ids, starts, strict=True)], dim=1
    )
    torch.autograd.backward(expected, gradient)
    differences = [(pooled - expected).abs().max()]
    for weight, bag in zip(tables.split_embedding_weights(), bags, strict=True):
        assert bag.weight.grad is not None
        differences.append((weight - (bag.weight - LEARNING_RATE * bag.weight.grad)).abs().max())
    difference = max(float(value) for value in differences)
    print(json.dumps({"difference": difference, "is_right": difference < TOLERANCE}))


if __name__ == "__main__":
    main()
