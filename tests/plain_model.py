"""A DLRM in plain torch, written from the papers, to compare the sharded one with."""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from dlrm_app.tables.table import Table
from tests.plain_branches import FORMS
from tests.random_batches import element_weights


class PlainModel(nn.Module):
    """nn.EmbeddingBag tables, an MLP below and above, and one of three interactions; or none, with ``stride``."""

    stride: int | None = None
    num_shared = 4
    """Of the experts, how many all labels read."""
    over_arch = "over_arch"
    """The names of the top MLP's weights begin so; one of several labels has the numbered part."""

    def __init__(self, kind: str, tables: Sequence[Table], dense: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.kind = kind
        self.tables = tables
        self.table_of = {feature: table.name for table in tables for feature in table.features}
        self.bags = nn.ModuleDict(
            {
                t.name: nn.EmbeddingBag(
                    t.rows, t.dim, mode="sum" if t.attention else str(t.pooling), include_last_offset=True
                )
                for t in tables
            }
        )
        self.dense = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(v.clone()) for name, v in dense.items()}
        )

    def layers(self, prefix: str) -> list[tuple[nn.Parameter, nn.Parameter | None]]:
        """(weight, bias if there is one) of every linear layer under ``prefix``, in order."""
        weights = [name for name in self.dense if name.startswith(prefix) and name.endswith("weight")]
        biases = [name.removesuffix("weight") + "bias" for name in weights]
        parameters = dict(self.dense.items())
        return [(parameters[w], parameters.get(b)) for w, b in zip(weights, biases, strict=True)]

    def relu_mlp(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        for weight, bias in self.layers(prefix):
            x = F.relu(F.linear(x, weight, bias))
        return x

    def pooled(self, ids: dict[str, list[list[int]]]) -> list[torch.Tensor]:
        """[B, D] for every feature in the tables' order."""
        vectors = []
        for feature, table in self.table_of.items():
            flat = torch.tensor([i for bag in ids[feature] for i in bag], dtype=torch.int64)
            offsets = torch.tensor([0, *[len(bag) for bag in ids[feature]]]).cumsum(0)
            weights = [w for bag in ids[feature] for w in element_weights(feature, bag)]
            of_table = next(each for each in self.tables if each.name == table)
            given = torch.tensor(weights) if of_table.weighted else None
            vectors.append(self.bags[table](flat, offsets, given))
        places = list(self.table_of)
        for each in self.tables:
            if each.attention:
                target = vectors[places.index(each.attention.target)]
                lists = [feature for feature in each.features if feature != each.attention.target]
                for number, feature in enumerate(lists):
                    vectors[places.index(feature)] = self.attended(each, number, ids[feature], target)
        return vectors

    def attended(
        self, table: Table, number: int, bags: list[list[int]], target: torch.Tensor
    ) -> torch.Tensor:
        """Row by row, as the paper on DIN writes it: an MLP over (h, t, h - t, h t) of each element."""
        assert table.attention is not None
        (unit,) = [
            name.rpartition("/layers")[0]
            for name in self.dense
            if name.endswith(f"units/{table.name}/{number}/units/0/layers/0/weight")
        ]
        rows = []
        for bag, t in zip(bags, target, strict=True):
            h = self.bags[table.name].weight[torch.tensor(bag, dtype=torch.int64)]  # [L, D]
            x = torch.cat([h, t.expand_as(h), h - t, h * t], dim=1)
            *hidden, last = self.layers(f"{unit}/")
            for weight, bias in hidden:
                x = F.relu(F.linear(x, weight, bias))
            scores = F.linear(x, *last).squeeze(1)
            rows.append((scores.softmax(0) if table.attention.softmax else scores) @ h)
        return torch.stack(rows)

    def forward(self, dense: torch.Tensor, ids: dict[str, list[list[int]]]) -> torch.Tensor:
        bottom_mlp = "dense_arch"
        if "dense_arch/0/frequencies" in self.dense:
            dense, bottom_mlp = self.with_waves(dense), "dense_arch/1"
        if self.kind == "concat":
            return self.top(torch.cat([self.strided_means(torch.cat(self.pooled(ids), dim=1)), dense], dim=1))
        if self.kind == "dcn_parallel":
            return self.parallel(self.with_dense_vectors(dense, self.pooled(ids)))
        if self.kind in FORMS:
            vectors = self.with_dense_vectors(dense, self.pooled(ids))
            outputs = FORMS[self.kind](dict(self.dense.items()), vectors, self.over_arch, self.training)
            return outputs if self.training or outputs.dim() == 1 else outputs[:, 0]
        bottom = self.relu_mlp(bottom_mlp, dense)
        vectors = torch.stack([bottom, *self.pooled(ids)], dim=1)  # [B, F + 1, D]
        if self.kind == "dlrm":
            crossed = torch.cat([bottom, self.pair_dots(vectors)], dim=1)
        elif self.kind == "dcn":
            crossed = self.cross(vectors.flatten(1))
        else:
            crossed = torch.cat([bottom, self.projected_dots(vectors)], dim=1)
        return self.top(crossed)

    def with_waves(self, dense: torch.Tensor) -> torch.Tensor:
        """Values and, feature by feature, ReLUs of sums of their sines and cosines."""
        frequencies, weight, bias = (
            self.dense[f"dense_arch/0/{x}"] for x in ("frequencies", "weight", "bias")
        )
        functions = []
        for n in range(dense.shape[1]):
            angles = 2 * math.pi * dense[:, [n]] * frequencies[n]
            functions.append(F.relu(F.linear(torch.cat([angles.sin(), angles.cos()], 1), weight[n], bias[n])))
        return torch.cat([dense, *functions], dim=1)

    def with_dense_vectors(self, dense: torch.Tensor, embedded: list[torch.Tensor]) -> list[torch.Tensor]:
        """[B, D] for every feature: a dense value times its own vector, and the place on its polyline if it has one."""
        own = next(
            value
            for name, value in self.dense.items()
            if name in ("dense_arch/weight", "dense_arch/1/weight")
        )  # [N, D]
        vectors = [dense[:, [n]] * own[n] for n in range(len(own))]
        if "dense_arch/points" in self.dense:
            vectors = [each + self.bent(n, dense[:, n]) for n, each in enumerate(vectors)]
        return [*vectors, *embedded]

    def bent(self, number: int, values: torch.Tensor) -> torch.Tensor:
        """[B, D]: each point, 5 times, by how near the values are to its knot; knots stand evenly between 0 and 1."""
        points = self.dense["dense_arch/points"][number]
        last = len(points) - 1
        return sum(
            5 * F.relu(1 - (values - place / last).abs() * last)[:, None] * points[place]
            for place in range(last + 1)
        )

    def parallel(self, vectors: list[torch.Tensor]) -> torch.Tensor:
        """Full-rank cross layers and an MLP, both read by the last layer."""
        x0 = x = torch.cat(vectors, dim=1)
        for weight, bias in self.layers("inter_arch"):
            x = x0 * (x @ weight.T + bias) + x
        last = self.dense[f"{self.over_arch}/last/weight"], self.dense[f"{self.over_arch}/last/bias"]
        return F.linear(torch.cat([x, self.relu_mlp(f"{self.over_arch}/mlp", x0)], dim=1), *last).squeeze(-1)

    def top(self, crossed: torch.Tensor) -> torch.Tensor:
        if any("/experts/" in name for name in self.dense):
            crossed = self.mixed(crossed, int(self.over_arch.rpartition("/")[2]))
        *hidden, (weight, bias) = self.layers(self.over_arch)
        for w, b in hidden:
            crossed = F.relu(F.linear(crossed, w, b))
        return F.linear(crossed, weight, bias).squeeze(-1)

    def mixed(self, crossed: torch.Tensor, label: int) -> torch.Tensor:
        """What the top MLP of ``label`` reads, row by row and expert by expert, as the papers on MMoE and PLE write it.

        In a level with x_k, the input of label k, and x_s, that of the shared experts, label k gets
        the sum over experts e that it sees of softmax(G_k x_k)_e e(x), and the shared input that over all by G_s x_s.
        """
        levels = {name.split("/")[3] for name in self.dense if name.startswith("over_arch/experts/levels")}
        num_labels = len({name.split("/")[1] for name in self.dense if name.startswith("over_arch/")}) - 1
        inputs = [crossed] * (num_labels + 1)
        for level in sorted(levels):
            root = f"over_arch/experts/levels/{level}"
            names = [name for name in self.dense if name.startswith(f"{root}/experts/")]
            count = len({name.split("/")[5] for name in names})
            gates = [
                self.dense[name] for name in sorted(n for n in self.dense if n.startswith(f"{root}/gates/"))
            ]
            num_own = (count - self.num_shared) // num_labels
            reads = [num_labels] * self.num_shared + [k for k in range(num_labels) for _ in range(num_own)]
            outputs = [self.relu_mlp(f"{root}/experts/{e}/", inputs[reads[e]]) for e in range(count)]
            mixed = []
            for number, gate in enumerate(gates):
                seen = [e for e in range(count) if number == num_labels or reads[e] in (number, num_labels)]
                weights = F.linear(inputs[number], gate).exp()
                total = sum(weights[:, [at]] * outputs[e] for at, e in enumerate(seen))
                mixed.append(total / weights.sum(1, keepdim=True))
            inputs = mixed
        return inputs[label]

    def strided_means(self, values: torch.Tensor) -> torch.Tensor:
        """Window by window, as TensorFlow's guide to padding="SAME" has it."""
        if self.stride is None:
            return values
        width = values.shape[1]
        count = math.ceil(width / self.stride)
        first = -((count * self.stride - width) // 2)
        starts = [first + place * self.stride for place in range(count)]
        return torch.stack([values[:, max(0, a) : a + self.stride].mean(1) for a in starts], dim=1)

    def pair_dots(self, vectors: torch.Tensor) -> torch.Tensor:
        count = vectors.shape[1]
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        return torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i, j in pairs], dim=1)

    def cross(self, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for layer in range(len([n for n in self.dense if "W_kernels" in n])):
            w = self.dense[f"inter_arch/crossnet/W_kernels/{layer}"]
            v = self.dense[f"inter_arch/crossnet/V_kernels/{layer}"]
            b = self.dense[f"inter_arch/crossnet/bias/{layer}"].flatten()
            x = x0 * (x @ v.T @ w.T + b) + x
        return x

    def projected_dots(self, vectors: torch.Tensor) -> torch.Tensor:
        batch, _, dim = vectors.shape
        one = self.relu_mlp("inter_arch/interaction_branch1", vectors.flatten(1)).reshape(batch, -1, dim)
        two = self.relu_mlp("inter_arch/interaction_branch2", vectors.flatten(1)).reshape(batch, dim, -1)
        return (one @ two).flatten(1)
