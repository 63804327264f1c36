"""A sharder without torchrec's limits on CPU: every sharding type on every device, and means that are means."""

import torch
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.config.sharding import KEY_VALUE_KERNELS
from dlrm_app.sharding.mean_pooling import ExactMeanCollection

DENSE = EmbeddingComputeKernel.DENSE.value


class AnyShardingSharder(EmbeddingBagCollectionSharder):
    """torchrec offers row-wise types only to CUDA, though they run over gloo as well."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Every type that an EmbeddingBagCollection can be sharded by."""
        return [kind.value for kind in ShardingType]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """torchrec's without those that are not built here, and dense under every type: it runs under all of them."""
        kernels = super().compute_kernels(sharding_type, compute_device_type)
        return [*(kernel for kernel in kernels if kernel not in (*KEY_VALUE_KERNELS, DENSE)), DENSE]

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ExactMeanCollection:
        """torchrec's, with our collection in place of its own."""
        return ExactMeanCollection(
            module,
            params,
            env=env,
            fused_params=self.fused_params,
            device=device,
            qcomm_codecs_registry=self.qcomm_codecs_registry,
            module_fqn=module_fqn,
        )
