"""A sharder without torchrec's limits on CPU: every sharding type on every device, and means that are means."""

import torch
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from dlrm_app.sharding.mean_pooling import ExactMeanCollection

# They keep weights in key-value stores that this release of fbgemm-gpu does not carry.
UNAVAILABLE_KERNELS = {
    EmbeddingComputeKernel.KEY_VALUE.value,
    EmbeddingComputeKernel.SSD_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.DRAM_VIRTUAL_TABLE.value,
    EmbeddingComputeKernel.DRAM_SSD_VIRTUAL_TABLE.value,
}


class AnyShardingSharder(EmbeddingBagCollectionSharder):
    """torchrec offers row-wise types only to CUDA, though they run over gloo as well."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Every type that an EmbeddingBagCollection can be sharded by."""
        return [kind.value for kind in ShardingType]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """torchrec's, less those that are not built here."""
        kernels = super().compute_kernels(sharding_type, compute_device_type)
        return [kernel for kernel in kernels if kernel not in UNAVAILABLE_KERNELS]

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
