"""GDCN, FinalNet, DCNv3 and QNN written out over a list of vectors, and the losses of their branches by hand.

Weights by name, as in the application's models. Shapes: B batch rows, F features, D width of a vector, S branches.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

Weights = Mapping[str, nn.Parameter]
Vectors = list[torch.Tensor]
"""F tensors [B, D]."""


def count_layers(weights: Weights, prefix: str) -> int:
    return len({name[len(prefix) :].split("/")[1] for name in weights if name.startswith(f"{prefix}/")})


def relu_mlp(weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    for number in range(count_layers(weights, f"{prefix}/_mlp")):
        layer = f"{prefix}/_mlp/{number}/_linear"
        x = F.relu(F.linear(x, weights[f"{layer}/weight"], weights[f"{layer}/bias"]))
    return x


def gated_cross(weights: Weights, x0: torch.Tensor) -> torch.Tensor:
    x = x0
    for number in range(count_layers(weights, "inter_arch/layers")):
        cross, gate, bias = (
            weights[f"inter_arch/layers/{number}/{name}"] for name in ("cross/weight", "gate/weight", "bias")
        )
        x = x0 * (x @ cross.T + bias) / (1 + torch.exp(-(x @ gate.T))) + x
    return x


def gdcn(weights: Weights, vectors: Vectors, top: str, trains: bool) -> torch.Tensor:
    x = relu_mlp(weights, f"{top}/model/0", gated_cross(weights, torch.cat(vectors, 1)))
    return F.linear(x, weights[f"{top}/model/1/weight"], weights[f"{top}/model/1/bias"]).squeeze(1)


def gdcn_parallel(weights: Weights, vectors: Vectors, top: str, trains: bool) -> torch.Tensor:
    x0 = torch.cat(vectors, 1)
    both = torch.cat([gated_cross(weights, x0), relu_mlp(weights, f"{top}/mlp", x0)], 1)
    return F.linear(both, weights[f"{top}/last/weight"], weights[f"{top}/last/bias"]).squeeze(1)


def batch_norm(weights: Weights, prefix: str, x: torch.Tensor, trains: bool) -> torch.Tensor:
    """Of [B, C], by the batch's moments, which move the running ones; or by those if nothing is trained."""
    running = weights[f"{prefix}/running_mean"], weights[f"{prefix}/running_var"]
    mean, variance = (x.mean(0), x.var(0, correction=0)) if trains else running
    if trains:
        running[0].data.lerp_(mean.detach(), 0.1)
        running[1].data.lerp_(x.detach().var(0), 0.1)
    return (x - mean) / (variance + 1e-5).sqrt() * weights[f"{prefix}/weight"] + weights[f"{prefix}/bias"]


def finalnet(weights: Weights, vectors: Vectors, top: str, trains: bool) -> torch.Tensor:
    plain, gated = torch.cat(vectors, 1), []
    for feature, vector in enumerate(vectors):  # each place's gate is linear in that place of all vectors
        gate = sum(weights["inter_arch/linear/weight"][feature, k] * other for k, other in enumerate(vectors))
        gated.append(vector * (gate + weights["inter_arch/linear/bias"][feature]))
    logits = []
    for branch, x in enumerate([torch.cat([plain, *gated], 1), plain]):
        for number in range(count_layers(weights, f"{top}/block{branch + 1}")):
            layer = f"{top}/block{branch + 1}/{number}"
            x = F.linear(x, weights[f"{layer}/linear/weight"], weights[f"{layer}/linear/bias"])
            kept, factor = x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]
            x = F.relu(batch_norm(weights, f"{layer}/norm", torch.cat([kept, kept * factor], 1), trains))
        head = f"{top}/heads/layers/{branch}"
        logits.append(F.linear(x, weights[f"{head}/weight"], weights[f"{head}/bias"]).squeeze(1))
    return torch.stack([(logits[0] + logits[1]) / 2, *logits], 1)


HEADS = 2
"""Of the DCNv3 and the QNN that tests train."""


def masked_cross(weights: Weights, layer: str, factors: Vectors, crossed: Vectors, trains: bool) -> Vectors:
    """One layer, head by head: only batch norm sees the others' rows."""
    halves = [x @ weights[f"{layer}/linear/weight"].T for x in crossed]
    if f"{layer}/batch_norm/norm/weight" in weights:
        norm = f"{layer}/batch_norm/norm"
        flat = torch.stack([half.flatten() for half in halves], 1)  # a column for each head
        halves = [each.reshape(halves[0].shape) for each in batch_norm(weights, norm, flat, trains).unbind(1)]
    results = []
    for factor, x, half in zip(factors, crossed, halves, strict=True):
        centred = half - half.mean(1, keepdim=True)
        normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        normed = normed * weights[f"{layer}/layer_norm/weight"] + weights[f"{layer}/layer_norm/bias"]
        masked = half * normed.clamp(min=0)
        results.append(factor * (torch.cat([half, masked], 1) + weights[f"{layer}/bias"]) + x)
    return results


def dcnv3(weights: Weights, vectors: Vectors, top: str, trains: bool) -> torch.Tensor:
    share = vectors[0].shape[1] // HEADS
    first = []
    for head in range(HEADS):
        shares = [vector[:, head * share : (head + 1) * share] for vector in vectors]
        first.append(torch.cat([each[:, : share // 2] for each in shares], 1))
        first[-1] = torch.cat([first[-1], *(each[:, share // 2 :] for each in shares)], 1)
    logits = []
    for branch, network in enumerate(["exponential", "linear"]):
        x = first
        for number in range(count_layers(weights, f"inter_arch/{network}")):
            layer = f"inter_arch/{network}/{number}"
            x = masked_cross(weights, layer, x if network == "exponential" else first, x, trains)
        head = f"{top}/heads/layers/{branch}"
        of_heads = [F.linear(each, weights[f"{head}/weight"], weights[f"{head}/bias"]) for each in x]
        logits.append(torch.cat(of_heads, 1).mean(1))
    return torch.stack([(logits[0] + logits[1]) / 2, *logits], 1)


def qnn(weights: Weights, vectors: Vectors, top: str, trains: bool) -> torch.Tensor:
    """Without dropout both passes are one."""
    dim = vectors[0].shape[1]
    share, x = dim // HEADS, torch.cat(vectors, 1)
    for number in range(count_layers(weights, "inter_arch/layers")):
        layer = f"inter_arch/layers/{number}/linear"
        hidden = F.relu(F.linear(x, weights[f"{layer}/weight"], weights[f"{layer}/bias"]))
        size, products = x.shape[1] // HEADS, []
        num_rows = hidden.shape[1] // x.shape[1]
        for head in range(HEADS):
            starts = [feature * dim + head * share for feature in range(len(vectors))]
            own = torch.cat([x[:, start : start + share] for start in starts], 1)
            of_head = hidden[:, head * num_rows * size : (head + 1) * num_rows * size]
            products.append(sum(own * of_head[:, r * size : (r + 1) * size] for r in range(num_rows)))
        x = torch.cat(products, 1) + x
    logit = F.linear(x, weights[f"{top}/last/weight"], weights[f"{top}/last/bias"]).squeeze(1)
    return torch.stack([logit] * 3, 1)


FORMS: Mapping[str, Callable[[Weights, Vectors, str, bool], torch.Tensor]] = {
    "gdcn": gdcn,
    "gdcn_parallel": gdcn_parallel,
    "finalnet": finalnet,
    "dcnv3": dcnv3,
    "qnn": qnn,
}
"""Kind → (weights, vectors, name of the top, whether it trains) → logits [B], or those of the score and the branches [B, 1 + S]."""


def training_loss(kind: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of a batch, from what a plain form of ``kind`` gives."""
    if outputs.dim() == 1:
        return F.binary_cross_entropy_with_logits(outputs.to(labels.dtype), labels)
    score, *branches = outputs.to(labels.dtype).sigmoid().unbind(1)
    loss = F.binary_cross_entropy(score, labels)
    if kind == "dcnv3":
        losses = [F.binary_cross_entropy(branch, labels) for branch in branches]
        return loss + sum(each * max(each - loss, torch.tensor(0.0)) for each in losses)
    return loss + sum(F.binary_cross_entropy(branch, score.detach()) for branch in branches)
