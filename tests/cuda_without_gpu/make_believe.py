"""A simulated GPU: tensors that say they are on CUDA, computed on CPU, and a record of what a real one waits for.

Unlike torch's FakeTensor they have values, so code that depends on them (sizes of masks, exchanges between ranks) runs
too, and results can be compared with the CPU's. What a GPU refuses is refused: tensors of two devices in one operation.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

aten = torch.ops.aten
CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)

ENDS_ON_THE_HOST = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten.is_nonzero,
    aten.bincount,
    aten.unique_consecutive,
    aten._unique2,
    aten.unique_dim,
}
"""What ends with a number on the host, the size of its result included."""
BY_INDICES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
TAKES_BOTH = {aten._to_copy, aten.copy_, *BY_INDICES}
"""What takes tensors of two devices."""
TO_GPU, TO_HOST = "copy to the GPU", "copy to the host"


class OnGpu(torch.Tensor):
    """Says that it is on cuda:0; ``values`` are on CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "OnGpu":
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), values.stride(), values.storage_offset(), dtype=values.dtype, device="meta"
        )
        made.values = values
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """What code sees; for autograd it is the meta device, since a CPU build has no streams of CUDA."""
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        """False: libraries make up the values of meta tensors."""
        return False

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{operation} outside of MakeBelieveGpu")


class MakeBelieveGpu(TorchDispatchMode):
    """While it lasts, ``device="cuda"`` is such a GPU. ``waits``: what the host waited for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._refuses = False
        stream = mock.Mock(spec=torch.cuda.Stream, synchronize=self._synchronize)
        self._patches = [
            mock.patch("torch.cuda._lazy_init"),
            mock.patch("torch.cuda.current_stream", return_value=stream),
            mock.patch("torch.cuda.synchronize", self._synchronize),
        ]

    def __enter__(self) -> "MakeBelieveGpu":
        for patch in self._patches:
            patch.start()
        self._lifts_only_cpu = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device="cuda") comes here as a copy
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifts_only_cpu)
        for patch in self._patches:
            patch.stop()

    @contextmanager
    def refusing_waits(self) -> Iterator[None]:
        """What the block waits for is an error, where it happens."""
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    def _note(self, wait: str) -> None:
        assert not self._refuses, f"waits for the GPU: {wait}"
        self.waits.append(wait)

    def _synchronize(self, _: object = None) -> None:
        self._note("synchronize")

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
        from_gpu = any(isinstance(value, OnGpu) for value in given)
        wanted = kwargs.pop("device", None)
        # C++ asks for what OnGpu is to autograd, "meta"
        to_gpu = from_gpu if wanted is None else wanted.type in ("cuda", "meta")
        if from_gpu:
            refuse_two_devices(operation, given)
            refuse_gloo(operation, (args, kwargs))
        if wait := wait_of(operation.overloadpacket, args, kwargs, from_gpu, to_gpu):
            self._note(wait)
        if wanted is not None:
            kwargs["device"] = CPU
        on_cpu = pytree.tree_map_only(OnGpu, lambda value: value.values, (args, kwargs))
        result = operation(*on_cpu[0], **on_cpu[1])
        if not to_gpu:
            return result
        wrapped = pytree.tree_map_only(torch.Tensor, OnGpu, result)
        return return_and_correct_aliasing(operation, args, kwargs, wrapped) if from_gpu else wrapped


def refuse_two_devices(operation: Any, given: Sequence[torch.Tensor]) -> None:
    """Numbers may be on any device. A list of indices arrives as a tensor of the meta device, which is left out."""
    assert not any(value.is_meta for value in given if not isinstance(value, OnGpu)), "index with a tensor"
    are_apart = any(not isinstance(value, OnGpu) and value.dim() for value in given)
    if are_apart and operation.overloadpacket not in TAKES_BOTH:
        where = ", ".join(f"{value.device}{list(value.shape)}" for value in given)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operation} got {where}")


def refuse_gloo(operation: Any, given: Any) -> None:
    """Tensors of the GPU travel in the group of all ranks, which has NCCL for them; other groups have only gloo."""
    if operation.namespace == "c10d":
        groups = [each for each in pytree.tree_leaves(given) if isinstance(each, torch.ScriptObject)]
        beside = [
            each for each in groups if "ProcessGroup" in str(each._type()) and not is_of_all_ranks(each)
        ]
        assert not beside, f"{operation}: a tensor of the GPU over gloo"


def is_of_all_ranks(group: torch.ScriptObject) -> bool:
    world = dist.group.WORLD
    assert world is not None
    return dist.ProcessGroup.unbox(group).group_name == world.group_name


def wait_of(packet: Any, args: Any, kwargs: Mapping[str, Any], from_gpu: bool, to_gpu: bool) -> str | None:
    """What the host waits for in an operation; None: it queues a kernel and goes on."""
    if packet is aten._to_copy:
        return None if from_gpu == to_gpu else TO_GPU if to_gpu else TO_HOST
    if packet is aten.copy_:
        to, source = (isinstance(value, OnGpu) for value in args[:2])
        return None if to == source else TO_GPU if to else TO_HOST
    if not from_gpu:
        return None
    if packet in BY_INDICES:
        indices = [index for index in args[1] if index is not None]
        if any(not isinstance(index, OnGpu) for index in indices):
            return TO_GPU
        return "size of a mask" if any(index.dtype == torch.bool for index in indices) else None
    sizes_itself = packet is aten.repeat_interleave and kwargs.get("output_size") is None
    return str(packet).removeprefix("aten.") if sizes_itself or packet in ENDS_ON_THE_HOST else None
