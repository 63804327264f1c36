"""torchrec's sharded tables, extended: every sharding type on every device, correct mean pooling under every
sharding, collectives in fewer bits, no gradients of weights that are data, and evaluations that do not change the state
of kernels.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torch.nn import functional as F
from torchrec.distributed.batched_embedding_kernel import (
    BaseBatchedEmbedding,
    BaseBatchedEmbeddingBag,
    BatchedDenseEmbedding,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import (
    EmbeddingBagCollectionContext,
    EmbeddingBagCollectionSharder,
    ShardedEmbeddingBagCollection,
)
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import (
    CommOp,
    ParameterSharding,
    QuantizedCommCodecs,
    ShardingEnv,
    ShardingType,
)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from dlrm_app.config.sharding import KERNELS, CollectivesConfig

DENSE = EmbeddingComputeKernel.DENSE.value


ROW_SPLIT = {ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value}


class ExactMeanCollection(ShardedEmbeddingBagCollection):
    """Correct mean pooling under every sharding: tables split by rows return sums, which are divided here.

    torchrec 1.8 divides the sums of row_wise and table_row_wise tables by their bags' lengths after the exchange. It
    also divides every other multi-hot feature of the collection (sum-pooled ones too, and those that are means
    already), and adds up the means of grid_shard's parts. It raises no error: the model only learns
    something else.
    """

    def __init__(
        self,
        module: EmbeddingBagCollection,
        table_name_to_parameter_sharding: dict[str, ParameterSharding],
        **options: Any,
    ) -> None:
        super().__init__(module, table_name_to_parameter_sharding, **options)
        _keep_all_empty_tables_apart(self._lookups)
        if self._is_weighted:
            for kernel in fused_kernels(self):
                _spare_gradients_of_weights(kernel)
        # the means are divided here: torchrec must not divide them again, and must still have the switch
        assert hasattr(self, "_has_mean_pooling_callback")
        self._has_mean_pooling_callback = False
        self._to_divide = {
            feature
            for table in module.embedding_bag_configs()
            for feature in table.feature_names
            if table.pooling == PoolingType.MEAN
            and table_name_to_parameter_sharding[table.name].sharding_type in ROW_SPLIT
        }
        self._runs = [(len([*same]), width) for width, same in groupby(self._embedding_dims)]
        """(keys, width) of each run of keys of one width, in the order of the output."""
        self._rows: torch.Tensor | None = None
        """The row of each key in ``_divisor``'s table of lengths, [keys]."""

    @classmethod
    def create_embedding_bag_sharding(
        cls, sharding_infos: list[EmbeddingShardingInfo], *arguments: Any, **options: Any
    ) -> Any:
        """Calls torchrec's, with sums instead of means if a bag's rows lie on several ranks."""
        if sharding_infos[0].param_sharding.sharding_type in ROW_SPLIT:
            sharding_infos = [
                replace(info, embedding_config=replace(info.embedding_config, pooling=PoolingType.SUM))
                for info in sharding_infos
            ]
        return super().create_embedding_bag_sharding(sharding_infos, *arguments, **options)

    def input_dist(self, ctx: EmbeddingBagCollectionContext, features: KeyedJaggedTensor) -> Any:
        """Calls torchrec's, and keeps the divisors of these bags' sums. Weights that are not read are not sent."""
        if not self._is_weighted:
            features = without_weights(features)
        awaitable = super().input_dist(ctx, features)
        if self._to_divide:
            ctx.divisor = self._divisor(features)
        return awaitable

    def compute_and_output_dist(self, ctx: EmbeddingBagCollectionContext, input: Any) -> Any:
        """Calls torchrec's, and adds the division."""
        awaitable = super().compute_and_output_dist(ctx, input)
        if self._to_divide:
            awaitable.callbacks.append(partial(_divide, divisor=ctx.divisor, runs=self._runs))
        return awaitable

    def _divisor(self, features: KeyedJaggedTensor) -> torch.Tensor:
        """The divisor of each key's vector: a bag's length, or 1. Float [B, keys]: it is kept for the batches ahead."""
        lengths = features.lengths().view(len(features.keys()), -1).clamp(min=1)
        rows_and_one = torch.cat([lengths, torch.ones_like(lengths[:1])]).float()
        if self._rows is None:  # made once: a copy to the GPU in every step would wait for the GPU
            row_of = {key: row for row, key in enumerate(features.keys()) if key in self._to_divide}
            # the output's keys are the features: torchrec adds table names only if several tables read one feature
            rows = [row_of.get(key, len(lengths)) for key in self._embedding_names]
            self._rows = torch.tensor(rows, device=lengths.device)
        return rows_and_one[self._rows].T


def without_weights(features: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """``features`` without weights: torchrec would send them, and multiply by them, even if tables are not weighted."""
    if features.weights_or_none() is None:
        return features
    return KeyedJaggedTensor(
        keys=features.keys(),
        values=features.values(),
        lengths=features.lengths(),
        stride=features.stride(),
        length_per_key=features.length_per_key(),
        offset_per_key=features.offset_per_key(),
    )


def _divide(pooled: KeyedTensor, divisor: torch.Tensor, runs: Sequence[tuple[int, int]]) -> KeyedTensor:
    """Divides the vectors of ``pooled`` [B, widths] by ``divisor`` [B, keys]: one view for each run of equal widths."""
    vectors = torch.split(pooled.values(), [keys * width for keys, width in runs], dim=1)
    divisors = torch.split(divisor, [keys for keys, _ in runs], dim=1)
    divided = [
        (run.view(len(run), keys, width) / by.unsqueeze(2)).view(len(run), keys * width)
        for run, by, (keys, width) in zip(vectors, divisors, runs, strict=True)
    ]
    values = divided[0] if len(divided) == 1 else torch.cat(divided, dim=1)
    return KeyedTensor(pooled.keys(), pooled.length_per_key(), values, key_dim=1)


def _spare_gradients_of_weights(kernel: SplitTableBatchedEmbeddingBagsCodegen) -> None:
    """Tells a fused lookup that the weights of its elements need no gradient: they are columns of the log.

    fbgemm computes one in every backward pass, also if nobody reads it, unless a mask of zeros says for each feature
    that it need not. torchrec 1.8 passes none (torchrec's issue 4712: 5% of a step).
    """
    # one copy to the device, because a copy in each step would wait
    masks: dict[torch.device, torch.Tensor] = {}

    def add_mask(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        weights = options.get("per_sample_weights")
        if weights is None or weights.requires_grad:
            return None
        if weights.device not in masks:
            zeros = torch.zeros(len(kernel.feature_table_map), dtype=torch.int32)
            masks[weights.device] = zeros.to(weights.device)
        return inputs, {**options, "feature_requires_grad": masks[weights.device]}

    kernel.register_forward_pre_hook(add_mask, with_kwargs=True)


def _keep_all_empty_tables_apart(lookups: Sequence[nn.Module]) -> None:
    for lookup in lookups:
        for part in lookup.modules():
            if isinstance(part, BaseBatchedEmbeddingBag | BaseBatchedEmbedding):
                _keep_empty_tables_apart(part)


def _keep_empty_tables_apart(part: BaseBatchedEmbeddingBag[Any] | BaseBatchedEmbedding[Any]) -> None:
    """Counts tables of which this rank holds no row as tables of one row, where fbgemm computes on CPU.

    Its backward pass takes neighbouring tables whose first rows have the same number for one table that several
    features read, with the first one's width and offsets (embedding_backward_split_cpu_template.cpp). So with 5 rows
    on 4 ranks the last rank would update wrong places of the next table. A group without any weights is taken for
    one on a GPU (the invokers ask host_weights.numel()). On CUDA a gradient has its own table's number.
    """
    kernel, rows = part.emb_module, part._local_rows
    if 0 not in rows or kernel.hash_size_cumsum.device.type != "cpu":
        return
    first_rows = [0, *accumulate(max(count, 1) for count in rows)]
    numbers = [*(first_rows[table] for table in part._feature_table_map), first_rows[-1]]
    kernel.hash_size_cumsum.copy_(torch.tensor(numbers))
    kernel.total_hash_size_bits = first_rows[-1].bit_length()
    if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen) and not any(rows):
        empty = kernel._buffers.pop("weights_host")
        assert empty is not None
        kernel.weights_host = nn.Parameter(empty.new_zeros(1))


class AnyShardingSharder(EmbeddingBagCollectionSharder):
    """Offers every sharding type on every device: row-wise types, which torchrec has for CUDA, work with gloo."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Every type that an EmbeddingBagCollection can be sharded by."""
        return [kind.value for kind in ShardingType]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """torchrec's kernels, except those not supported here, and the dense one, which works with every type."""
        return _supported(super().compute_kernels(sharding_type, compute_device_type))

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ExactMeanCollection:
        """Like torchrec's, but makes an ExactMeanCollection."""
        return ExactMeanCollection(
            module,
            params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )


class VectorsSharder(EmbeddingCollectionSharder):
    """Shards tables whose vectors are not pooled, by the types that torchrec has for them (``UNPOOLED_TYPES``)."""

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """The kernels of ``AnyShardingSharder``."""
        return _supported(super().compute_kernels(sharding_type, compute_device_type))

    def shard(
        self, module: EmbeddingCollection, *arguments: Any, **options: Any
    ) -> ShardedEmbeddingCollection:
        """Shards like torchrec, with two fixes on CPU: for empty tables, and for the dense kernel."""
        sharded = super().shard(module, *arguments, **options)
        _keep_all_empty_tables_apart(sharded._lookups)
        for lookup in sharded._lookups:
            for part in lookup.modules():
                if isinstance(part, BatchedDenseEmbedding) and part.emb_module.weights.device.type == "cpu":
                    part.emb_module.forward = partial(_look_up_singly, part)
        return sharded


def _look_up_singly(
    part: BatchedDenseEmbedding, indices: torch.Tensor, offsets: torch.Tensor, *_: object
) -> torch.Tensor:
    """The vector of each id, [V, D], with the weights' gradient as large as the table.

    fbgemm's dense operator on CPU always pools: it does not look at ``PoolingMode.NONE``.
    """
    num_features = Counter(part._feature_table_map)  # of each table; those of one table follow each other
    batch, feature, vectors = (len(offsets) - 1) // len(part._feature_table_map), 0, []
    shapes = part.emb_module.embedding_specs
    weights = part.emb_module.weights.split([rows * dim for rows, dim in shapes])
    for table, shape in enumerate(shapes):
        first, feature = feature, feature + num_features[table]
        ids = indices[offsets[first * batch] : offsets[feature * batch]]
        vectors.append(F.embedding(ids.long(), weights[table].view(shape)))
    return torch.cat(vectors)


def _supported(kernels: Sequence[str]) -> list[str]:
    return [*(kernel for kernel in kernels if kernel in KERNELS and kernel != DENSE), DENSE]


def make_sharders(
    collectives: CollectivesConfig, prefetches: bool = False
) -> "tuple[AnyShardingSharder, VectorsSharder]":
    """Makes the sharders of pooled and of other tables, which exchange values with the precision of ``collectives``.

    ``prefetches``: caches are filled by prefetching.
    """
    settings: dict[str, Any] = {
        "fused_params": {"prefetch_pipeline": True} if prefetches else None,
        "qcomm_codecs_registry": quantized_collectives(collectives),
    }
    return AnyShardingSharder(**settings), VectorsSharder(**settings)


def quantized_collectives(config: CollectivesConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Codecs by kind of collective, for embeddings and their gradients; None if nothing is rounded.

    Values are rounded only while they are sent; all computing stays float32. torchrec's own registry
    replaces bf16 by fp16 on CPU, but gloo supports bf16 now.
    """
    if config.forward == config.backward == "fp32":
        return None
    codecs = get_qcomm_codecs(QCommsConfig(CommType(config.forward), CommType(config.backward)))
    kinds = (
        CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL,
        CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER,
        CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,
    )
    return {kind.name: codecs for kind in kinds}


def fused_kernels(model: nn.Module) -> Iterator[Any]:
    """The fused lookups of the sharded ``model``. torchrec keeps them in lists, which ``modules`` does not visit."""
    for module in model.modules():
        for lookup in getattr(module, "_lookups", ()):
            for part in lookup.modules():
                if isinstance(part, SplitTableBatchedEmbeddingBagsCodegen):
                    yield part


def reset_caches(model: nn.Module) -> None:
    """Empties the caches of rows on GPUs, after the tables behind them have changed."""
    for kernel in fused_kernels(model):
        kernel.reset_cache_states()


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restores the state of fused kernels after the block, so that its forward passes do not count as training steps.

    Adam's and LAMB's bias corrections would count them. With the pipeline ``prefetch`` each lookup locks the
    rows that it finds in a GPU's cache, and the backward pass unlocks them; without one they would stay locked.
    """
    kernels = list(fused_kernels(model))
    before = [(kernel.iter.clone(), kernel.iter_cpu.clone(), kernel.lock_cache_line) for kernel in kernels]
    for kernel in kernels:
        kernel.lock_cache_line = False
    try:
        yield
    finally:
        for kernel, (count, count_cpu, locks) in zip(kernels, before, strict=True):
            kernel.iter.copy_(count)
            kernel.iter_cpu.copy_(count_cpu)
            kernel.lock_cache_line = locks
