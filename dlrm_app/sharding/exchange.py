"""The rate at which ranks exchange bytes: each part at the rate of its path, within a node or between nodes."""

from torchrec.distributed.planner.types import BasicCommsBandwidths, CollectiveType


class NodeBandwidths(BasicCommsBandwidths):
    """torchrec's bandwidths, except that bytes within a node are sent at the node's rate.

    torchrec counts a whole exchange over several nodes at the network's rate, and every all-reduce too, also within one
    node. Of an all-to-all on n nodes a rank sends 1/n within its own node.
    """

    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        """Bytes a millisecond of a collective of ``world_size`` ranks, ``local_world_size`` on each node."""
        if world_size <= local_world_size:
            return self.intra_host_bw
        if collective_type == CollectiveType.ALL_REDUCE:
            return super().get_bw(local_world_size, world_size, collective_type)
        within = local_world_size / world_size
        return 1 / (within / self.intra_host_bw + (1 - within) / self.inter_host_bw)
