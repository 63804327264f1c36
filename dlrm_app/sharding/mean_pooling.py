"""Mean pooling that is the mean under every sharding.

torchrec 1.8 divides the sums of row_wise and table_row_wise tables by their bags' lengths after the exchange. It
divides every other multi-hot feature of the collection as well (sum-pooled ones too, and those that were averaged
already), and takes the means of grid_shard's parts for parts of the mean. Nothing says so: the model just learns
something else.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionContext, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ParameterSharding, ShardingType
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

ROW_SPLIT = {ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value}


class ExactMeanCollection(ShardedEmbeddingBagCollection):
    """Tables split by rows give sums; those that are to be means are divided here, and no others."""

    def __init__(
        self,
        module: EmbeddingBagCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        **options: Any,
    ) -> None:
        super().__init__(module, table_name_to_parameter_sharding, **options)
        self._has_mean_pooling_callback = False
        self._to_divide = {
            feature
            for table in module.embedding_bag_configs()
            for feature in table.feature_names
            if table.pooling == PoolingType.MEAN
            and table_name_to_parameter_sharding[table.name].sharding_type in ROW_SPLIT
        }
        self._widths = torch.tensor(self._embedding_dims, device=self._device)
        self._rows: torch.Tensor | None = None
        """[keys] where each key's bags are in ``_divisor``'s table of lengths."""

    @classmethod
    def create_embedding_bag_sharding(
        cls, sharding_infos: list[EmbeddingShardingInfo], *arguments: Any, **options: Any
    ) -> Any:
        """torchrec's, with sums in place of means where a bag's rows lie on several ranks."""
        if sharding_infos[0].param_sharding.sharding_type in ROW_SPLIT:
            sharding_infos = [
                replace(info, embedding_config=replace(info.embedding_config, pooling=PoolingType.SUM))
                for info in sharding_infos
            ]
        return super().create_embedding_bag_sharding(sharding_infos, *arguments, **options)

    def input_dist(self, ctx: EmbeddingBagCollectionContext, features: KeyedJaggedTensor) -> Any:
        """torchrec's; keeps what the sums of these bags are to be divided by."""
        awaitable = super().input_dist(ctx, features)
        if self._to_divide:
            ctx.divisor = self._divisor(features)
        return awaitable

    def compute_and_output_dist(self, ctx: EmbeddingBagCollectionContext, input: Any) -> Any:
        """torchrec's, followed by the division."""
        awaitable = super().compute_and_output_dist(ctx, input)
        if self._to_divide:
            awaitable.callbacks.append(partial(_divide, divisor=ctx.divisor))
        return awaitable

    def _divisor(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """float [B, widths of the output's keys]: a bag's length, or 1."""
        lengths = features.lengths().view(len(features.keys()), -1).clamp(min=1)
        rows_and_one = torch.cat([lengths, torch.ones_like(lengths[:1])]).float()
        if self._rows is None:  # once: a copy to a GPU in every step would wait for it
            self._rows = torch.tensor(self._find_rows(features.keys()), device=lengths.device)
        chosen = rows_and_one[self._rows]  # [keys, B]
        return chosen.T.repeat_interleave(self._widths, dim=1, output_size=sum(self._embedding_dims))

    def _find_rows(self, features: Sequence[str]) -> list[int]:
        """The row of each of the output's keys; one behind the last where nothing is divided."""
        row_of = {key: row for row, key in enumerate(features)}
        # the output's keys are the features: torchrec adds the table's name where several tables read one, and none do
        return [row_of[key] if key in self._to_divide else len(row_of) for key in self._embedding_names]


def _divide(pooled: KeyedTensor, divisor: torch.Tensor) -> KeyedTensor:
    return KeyedTensor(pooled.keys(), pooled.length_per_key(), pooled.values() / divisor, key_dim=1)
