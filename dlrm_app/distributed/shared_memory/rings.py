"""Bytes between ranks of one machine through memory that they share: a ring for each pair, no thread and no system call.

What a rank sends it copies into the ring at once, as far as there is room; what it waits for it copies out, and goes on
sending meanwhile what did not fit. So messages of any length pass, in the order in which they were begun, and nobody but
the two ranks' own threads has work with them.
"""

import ctypes
import fcntl
import mmap
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch.distributed import Store

from dlrm_app.kernels.compiled import njit

FOLDER = Path("/dev/shm")
MOST_BYTES = 8 << 20
"""Of all rings that a rank sends by: what fits is on its way before the receiver asks for it."""
_HEADER = 128
"""Two lines of the cache: how much was written, how much was read."""
_SPINS, _YIELDS, _SLEEPS = 200, 2000, 500
"""How often a waiting rank looks again at once, after letting others run, and after sleeping, before Python has a turn."""
_SLEEP = 50
"""Microseconds."""
_FROM, _LEFT, _WIDTH, _STRIDE, _IN_ROW = range(5)
"""A span of memory: the address of its next row, the bytes left of all rows, those of a row, from row to row, done of this row."""

_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@dataclass
class Message:
    """What goes to each rank and comes from each: a span [R, 5] for each."""

    sent: np.ndarray
    received: np.ndarray
    kept: Sequence[torch.Tensor]
    """Whose memory that is."""
    has_left: bool = False
    has_arrived: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for it."""
        return self.has_left and self.has_arrived


class Rings:
    """This rank's rings. Every rank begins the same messages in the same order, from one thread."""

    def __init__(self, path: Path, capacity: int, rank: int, num_ranks: int, timeout: timedelta) -> None:
        self._rank, self._num_ranks, self._timeout = rank, num_ranks, timeout
        self._file = os.open(path, os.O_RDWR)
        # let go by the kernel when this process ends, however it does: the others look
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        pairs = np.full((num_ranks, num_ranks), -1)
        pairs[~np.eye(num_ranks, dtype=bool)] = np.arange(num_ranks * (num_ranks - 1))
        rings = base + pairs * (_HEADER + capacity)
        self._outgoing, self._incoming = rings[rank], rings[:, rank].copy()
        self._capacity = capacity
        self._sending: deque[Message] = deque()
        self._receiving: deque[Message] = deque()
        self._nothing = np.zeros((num_ranks, _IN_ROW + 1), np.int64)

    def begin(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> Message:
        """Sends ``sent[r]`` to rank r, whose ``received`` for this one is as long; on the CPU.

        Each is contiguous, or some columns of a matrix, whose rows are sent one after the other. ``sent`` must stay as it is, and ``received`` be left alone, until ``finish``.
        """
        received[self._rank].copy_(sent[self._rank])
        message = Message(self._spans(sent), self._spans(received), [*sent, *received])
        self._sending.append(message)
        self._receiving.append(message)
        self._advance()
        return message

    def finish(self, message: Message) -> None:
        """Waits until ``message`` has arrived. Raises RuntimeError, as gloo does, if a rank has ended or says nothing."""
        deadline = None
        while not message.is_done:
            if self._advance(message):
                deadline = None
            elif not message.is_done:
                now = time.monotonic()
                deadline = deadline or now + self._timeout.total_seconds()
                self._refuse_loss(now > deadline)

    def _spans(self, parts: Sequence[torch.Tensor]) -> np.ndarray:
        spans = np.array([_span(part) for part in parts], np.int64)
        spans[self._rank, _LEFT] = 0
        return spans

    def _advance(self, wanted: Message | None = None) -> bool:
        """Moves what can be moved, message by message, until ``wanted`` is done; whether any byte was.

        Waits a little for what others have to do, if one is ``wanted``. What is to be sent never waits for what is to come.
        """
        has_moved, patience = False, _SPINS + _YIELDS + _SLEEPS if wanted else 0
        while self._sending or self._receiving:
            must_send, must_receive = bool(self._sending), bool(self._receiving)
            sent = self._sending[0].sent if must_send else self._nothing
            received = self._receiving[0].received if must_receive else self._nothing
            moved, to_send, to_receive = _move(
                self._outgoing,
                self._incoming,
                self._capacity,
                sent,
                received,
                patience,
                must_send,
                must_receive,
            )
            has_moved |= moved
            has_left, has_arrived = must_send and not to_send, must_receive and not to_receive
            if has_left:
                self._sending.popleft().has_left = True
            if has_arrived:
                self._receiving.popleft().has_arrived = True
            if not (has_left or has_arrived) or (wanted and wanted.is_done):
                break
        return has_moved

    def _refuse_loss(self, is_late: bool) -> None:
        for rank in range(self._num_ranks):
            if rank == self._rank:
                continue
            with suppress(BlockingIOError):  # it holds its lock
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
                raise RuntimeError(f"Connection closed by peer: rank {rank} has ended")
        if is_late:
            raise RuntimeError(f"Timed out waiting {self._timeout} for bytes in shared memory")


def open_rings(store: Store, rank: int, num_ranks: int, timeout: timedelta) -> Rings | None:
    """Rings between all ranks, who meet in ``store``; None on every rank if the machine has no such memory to give to one."""
    capacity = MOST_BYTES // max(1, num_ranks - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    if rank == 0:
        path = FOLDER / f"dlrm-{os.getpid()}-{secrets.token_hex(8)}"
        store.set(
            "path", str(path) if _make(path, num_ranks * (num_ranks - 1) * (_HEADER + capacity)) else ""
        )
    path_text = store.get("path").decode()
    rings = None
    if path_text:
        with suppress(OSError, ValueError):  # of another machine or container
            rings = Rings(Path(path_text), capacity, rank, num_ranks, timeout)
    store.set(f"has/{rank}", str(rings is not None))
    have_all = all(store.get(f"has/{each}") == b"True" for each in range(num_ranks))
    if rank == 0:
        path.unlink(missing_ok=True)  # it lives as long as a rank has it
    return rings if have_all else None


def _make(path: Path, size: int) -> bool:
    """Takes the memory: a file system that is full says so here, and not by a signal in the middle of a step."""
    try:
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        path.unlink(missing_ok=True)
        return False
    return True


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    """The int64 at ``address``; what its writer wrote before is seen by whatever comes after."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(address), generate


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    """Writes the int64 ``value``, after all that came before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(address, types.int64), generate


@intrinsic
def _copy(typing_context: Any, source: Any, target: Any, size: Any) -> Any:
    """memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, size = arguments
        pointers = [builder.inttoptr(each, cgutils.voidptr_t) for each in (target, source)]
        cgutils.raw_memcpy(builder, *pointers, size, 1)
        return context.get_dummy_value()

    return types.void(source, target, size), generate


def _span(part: torch.Tensor) -> tuple[int, int, int, int, int]:
    if part.is_contiguous():
        return part.data_ptr(), part.nbytes, part.nbytes, 0, 0
    assert part.dim() == 2
    assert part.stride(1) == 1
    size = part.element_size()
    return part.data_ptr(), part.nbytes, part.size(1) * size, part.stride(0) * size, 0


@njit(nogil=True, cache=True)
def _pass(ring, at, capacity, span, size, is_sent):  # type: ignore[no-untyped-def]  # compiled
    """Copies ``size`` bytes of ``span`` to or from ``ring``, from position ``at`` on."""
    while size:
        here, there = span[_FROM] + span[_IN_ROW], ring + _HEADER + at
        piece = min(size, span[_WIDTH] - span[_IN_ROW], capacity - at)
        if is_sent:
            _copy(here, there, piece)
        else:
            _copy(there, here, piece)
        size -= piece
        span[_LEFT] -= piece
        at = (at + piece) % capacity
        span[_IN_ROW] += piece
        if span[_IN_ROW] == span[_WIDTH]:
            span[_FROM] += span[_STRIDE]
            span[_IN_ROW] = 0


@njit(nogil=True, cache=True)
def _push(ring, capacity, span):  # type: ignore[no-untyped-def]  # compiled
    written = _load(ring)
    size = min(span[_LEFT], capacity - (written - _load(ring + 64)))
    _pass(ring, written % capacity, capacity, span, size, True)
    _store(ring, written + size)
    return size


@njit(nogil=True, cache=True)
def _pull(ring, capacity, span):  # type: ignore[no-untyped-def]  # compiled
    read = _load(ring + 64)
    size = min(span[_LEFT], _load(ring) - read)
    _pass(ring, read % capacity, capacity, span, size, False)
    _store(ring + 64, read + size)
    return size


@njit(nogil=True, cache=True)
def _move(outgoing, incoming, capacity, sent, received, patience, must_send, must_receive):  # type: ignore[no-untyped-def]
    """Sends and receives until one of both is done, or nothing could be moved ``patience`` times in a row.

    (Whether anything was moved, the bytes left to send, and to receive.)
    """
    idle, has_moved = 0, False
    while True:
        moved, to_send, to_receive = 0, 0, 0
        for rank in range(len(sent)):
            if sent[rank, _LEFT]:
                moved += _push(outgoing[rank], capacity, sent[rank])
            if received[rank, _LEFT]:
                moved += _pull(incoming[rank], capacity, received[rank])
            to_send += sent[rank, _LEFT]
            to_receive += received[rank, _LEFT]
        if moved:
            idle, has_moved = 0, True
        if (must_send and not to_send) or (must_receive and not to_receive) or idle >= patience:
            return has_moved, to_send, to_receive
        idle += 1
        if idle > _SPINS + _YIELDS:
            _usleep(np.uint32(_SLEEP))
        elif idle > _SPINS:
            _sched_yield()
