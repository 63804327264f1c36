"""The make-believe GPU refuses and notices what a real one does."""

from collections.abc import Callable

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from dlrm_app.machine import has_old_torchrec
from tests.cuda_without_gpu.make_believe import CPU, GPU, TO_GPU, TO_HOST, MakeBelieveGpu

WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    TO_GPU: lambda values: torch.tensor([1.0], device=values.device),
    TO_HOST: lambda values: values.tolist(),
    "_local_scalar_dense": lambda values: bool(values.isnan().any()),
    "size of a mask": lambda values: values[values > 1],
    "nonzero": lambda values: values.nonzero(),
    "repeat_interleave": lambda values: values.repeat_interleave(values.long()),
    "synchronize": lambda values: torch.cuda.current_stream(values.device).synchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_is_noticed_and_refused(wait: str) -> None:
    with MakeBelieveGpu() as gpu:
        values = torch.arange(3.0, device=GPU)
        WAITS[wait](values)
        assert gpu.waits == [wait]
        with pytest.raises(AssertionError, match=wait), gpu.refusing_waits():
            WAITS[wait](values)


def test_torchrec_takes_a_batch_there_for_one_of_a_gpu() -> None:
    """It counts the ids of each key, which waits, and does not make the counts up as for the meta device.

    torchrec copies without a wait and then waits; 1.6 copies with one.
    """
    with MakeBelieveGpu() as gpu:
        values, lengths = torch.arange(6, device=GPU), torch.tensor([3, 1, 1, 1], device=GPU)
        gpu.waits.clear()
        assert KeyedJaggedTensor(["a", "b"], values, lengths=lengths).length_per_key() == [4, 2]
        assert gpu.waits == [TO_HOST, "synchronize"][: 1 if has_old_torchrec() else 2]


def test_work_that_stays_on_the_gpu_is_not_a_wait() -> None:
    with MakeBelieveGpu() as gpu:
        weights = torch.ones(3, 2, device=GPU, requires_grad=True)
        (weights.sum() * torch.tensor(2.0)).backward()
        assert weights.grad is not None
        assert weights.grad.is_cuda
        assert gpu.waits == []
        assert torch.equal(weights.grad.to(CPU), torch.full((3, 2), 2.0))


def test_two_devices_in_one_operation_are_refused() -> None:
    with MakeBelieveGpu():
        values = torch.arange(3.0, device=GPU)
        with pytest.raises(RuntimeError, match="same device"):
            torch.cat([values, torch.zeros(1)])
