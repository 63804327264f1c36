"""Shared memory between ranks carries what gloo carries, to the bit, and nobody waits for a rank that is gone."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.distributed.shared_memory import rings
from dlrm_app.distributed.shared_memory.group import MachineGroup, begin_sum, machine_group
from dlrm_app.distributed.shared_memory.rings import MOST_BYTES
from tests.ranks import on_ranks

LONG = MOST_BYTES // 4
"""Rows of 8 bytes, of which a message between two ranks is longer than a ring."""


def ramp(runtime: Runtime, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[R · rows, width] values of this rank's own."""
    count = runtime.world_size * rows
    return (torch.arange(count * width) * (runtime.rank + 3) % 1009).view(count, width).to(dtype)


def exchange(runtime: Runtime, most: int, group: dist.ProcessGroup, values: torch.Tensor) -> torch.Tensor:
    """Uneven pieces of ``values``, of up to ``most`` rows; one of them is empty."""
    size = runtime.world_size
    drawn = torch.randint(most // 2, most, (size, size), generator=torch.Generator().manual_seed(most))
    drawn[0, -1] = 0
    sizes = drawn.tolist()
    received, sent = [row[runtime.rank] for row in sizes], sizes[runtime.rank]
    output = values.new_empty(sum(received), values.shape[1])
    dist.all_to_all_single(output, values[: sum(sent)], received, sent, group=group)
    return output


def is_as_gloo(runtime: Runtime, group: dist.ProcessGroup) -> bool:
    kinds = [(2, 1, torch.int32), (300, 3, torch.int64), (300, 8, torch.bfloat16), (LONG, 2, torch.float32)]
    return all(
        torch.equal(
            exchange(runtime, most, group, ramp(runtime, most, width, dtype)),
            exchange(runtime, most, dist.group.WORLD, ramp(runtime, most, width, dtype)),
        )
        for most, width, dtype in kinds
    )


def is_right_in_another_order(runtime: Runtime, group: dist.ProcessGroup) -> bool:
    """Two messages under way, each longer than a ring, the second waited for first; equal pieces."""
    size = runtime.world_size
    sent = [
        torch.arange(size)[:, None] * 10 + runtime.rank + torch.full((size, LONG), 1000 * kind)
        for kind in range(2)
    ]
    received = [torch.empty_like(each) for each in sent]
    works = [
        dist.all_to_all_single(mine, theirs, group=group, async_op=True)
        for mine, theirs in zip(received, sent, strict=True)
    ]
    for work in reversed(works):
        assert work is not None
        work.wait()
    expected = [1000 * kind + runtime.rank * 10 + torch.arange(size) for kind in range(2)]
    return all(bool((got == row[:, None]).all()) for got, row in zip(received, expected, strict=True))


def sums(runtime: Runtime, group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """(by shared memory, by gloo)."""
    values = torch.randn(10_001, generator=torch.Generator().manual_seed(runtime.rank))
    of_world = values.clone()
    dist.all_reduce(of_world)
    begin_sum(values, group).wait()
    return values, of_world


def on_rank(runtime: Runtime) -> tuple[bool, bool, torch.Tensor, torch.Tensor]:
    group = machine_group(runtime)
    assert isinstance(group, MachineGroup)
    assert (
        machine_group(replace(runtime, local_world_size=1)) is dist.group.WORLD
    )  # ranks of several machines
    as_gloo, in_any_order = is_as_gloo(runtime, group), is_right_in_another_order(runtime, group)
    return as_gloo, in_any_order, *sums(runtime, group)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_shared_memory_gives_what_gloo_gives(num_ranks: int) -> None:
    drawn = [torch.randn(10_001, generator=torch.Generator().manual_seed(rank)) for rank in range(num_ranks)]
    expected = sum(drawn[1:], start=drawn[0])  # in the order of the ranks
    for as_gloo, in_any_order, summed, of_world in on_ranks(on_rank, num_ranks):
        assert as_gloo
        assert in_any_order
        assert torch.equal(summed, expected)
        torch.testing.assert_close(of_world, expected)
        assert num_ranks > 2 or torch.equal(of_world, expected)


def left_alone(path: Path, runtime: Runtime) -> None:
    group = machine_group(runtime)
    if runtime.rank == 1:
        os._exit(0)  # as when it is killed: nothing is said
    started = time.monotonic()
    try:
        begin_sum(torch.ones(3), group).wait()
    except RuntimeError as error:
        path.write_text(f"{os.getpid()} {time.monotonic() - started:.1f} {error}")


def test_a_rank_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(EOFError):  # of rank 1
        on_ranks(partial(left_alone, tmp_path / "said"), 2)
    process, seconds, said = (tmp_path / "said").read_text().split(" ", 2)
    assert float(seconds) < 30
    assert said == "Connection closed by peer: rank 1 has ended"
    assert not list(rings.FOLDER.glob(f"dlrm-{process}-*"))


def without_room(runtime: Runtime) -> bool:
    rings.FOLDER = Path("/nowhere")
    return machine_group(runtime) is dist.group.WORLD


def test_where_there_is_no_such_memory_gloo_does_it() -> None:
    assert on_ranks(without_room, 2) == [True, True]
