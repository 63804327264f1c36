"""Decoded rows → the model's input. The only module that knows both arrays and KeyedJaggedTensor."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.dataset.vector_columns import width_of
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.loader.batch_order import BatchPlan, Order, eval_order
from dlrm_app.loader.prefetch import prefetch_items
from dlrm_app.loader.reader import SplitReader
from dlrm_app.loader.rows import Ranges, copy_rows, count_rows, side_by_side
from dlrm_app.loader.supervision import Supervision

CPU = torch.device("cpu")
MAX_WORKERS = 8
Self = TypeVar("Self", bound="_Batches")


@dataclass(frozen=True)
class Loading:
    """Settings: ``prefetch`` batches are made ahead for ``device``; ``num_workers`` threads decode their row groups."""

    prefetch: int = 4
    num_workers: int = 1
    device: torch.device = CPU


PLAIN = Loading()


def choose_loading(prefetch: int, num_workers: int | None, runtime: Runtime) -> Loading:
    """Chooses the loading of this rank. ``num_workers`` None: half of this rank's threads, from 1 to 8.

    A worker decodes millions of rows a second, far more than training on CPU needs, so there one is enough and the
    other half of the threads is the model's. A GPU needs the rows of several workers, and the cores are otherwise idle.
    """
    if num_workers is None:
        num_workers = min(max(runtime.num_threads // 2, 1), MAX_WORKERS)
    return Loading(prefetch, num_workers, runtime.device)


@lru_cache(maxsize=16)
def one_hot_lengths(size: int, device: torch.device) -> torch.Tensor:
    """The lengths of bags of one id: ones, int32 [size]. Made once for each device and shared by all batches there."""
    return torch.ones(size, dtype=torch.int32).to(device)


@dataclass
class Batch(Pipelineable):
    """A batch: ``dense_features`` [B, N + W] float32, the values of dense columns and behind them the numbers of
    vectors, ``sparse_features`` with a key per feature, labels and weights.

    ``sparse_features`` has a weight for each id if the elements of a feature have weights: 1 for the others'. Rows from
    ``num_valid`` on are padding: dense 0, empty bags, labels 0. ``is_one_hot``: every bag holds one id, and
    ``sparse_features`` uses the shared ``one_hot_lengths``.
    """

    dense_features: torch.Tensor
    sparse_features: KeyedJaggedTensor
    supervision: Supervision
    num_valid: int
    is_one_hot: bool = False

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """A copy on ``device``; tensors that are there already are not copied."""
        sparse = self.sparse_features
        dense = self.dense_features.to(device, non_blocking=non_blocking)
        supervision = self.supervision.to(device, non_blocking=non_blocking)
        if not self.is_one_hot:
            return Batch(dense, sparse.to(device, non_blocking=non_blocking), supervision, self.num_valid)
        moved = KeyedJaggedTensor(
            keys=sparse.keys(),
            values=sparse.values().to(device, non_blocking=non_blocking),
            lengths=one_hot_lengths(len(sparse.lengths()), device),
            stride=sparse.stride(),
            length_per_key=sparse.length_per_key(),
            offset_per_key=sparse.offset_per_key(),
        )
        return Batch(dense, moved, supervision, self.num_valid, is_one_hot=True)

    def record_stream(self, stream: torch.Stream) -> None:
        """Records for the allocator that ``stream`` uses the tensors."""
        for values in (self.dense_features, self.sparse_features, self.supervision):
            values.record_stream(stream)


class BatchMaker:
    """Copies rows into Batches of ``batch_size`` rows with ``features`` as keys.

    ``num_labels``: the labels that rows have. ``is_weighted``: they have weights too.

    For a GPU the tensors lie in page-locked memory. torch reuses it once its batches are deleted and their copies to
    the device are done.
    """

    def __init__(
        self,
        manifest: Manifest,
        features: Sequence[str],
        batch_size: int,
        device: torch.device = CPU,
        num_labels: int = 1,
        is_weighted: bool = False,
    ) -> None:
        multi_hot = {column.name for column in manifest.sparse if column.multi_hot}
        have_weights = {column.name for column in manifest.sparse if column.weights}
        self._features = list(features)
        self._weighed = [place for place, name in enumerate(features) if name in have_weights]
        """The places of the features whose elements have weights."""
        self._num_dense = len(manifest.dense) + width_of(manifest.vectors)
        self._batch_size = batch_size
        self._device = device
        self._pinned = device.type == "cuda"
        self._is_one_hot = not multi_hot & set(features)
        self._num_labels, self._is_weighted = num_labels, is_weighted

    def make(self, rows: Ranges) -> list[Batch]:
        """The consecutive batches in ``rows``; a batch with too few rows is padded."""
        size, num_features = self._batch_size, len(self._features)
        num_copied = num_features + len(self._weighed)  # the bits of weights follow the ids
        addresses = rows.addresses(num_copied)
        num_rows, num_ids = count_rows(addresses, rows.ranges, rows.rows_per_lane, rows.num_batches)
        # one-hot batches differ only in their values; their lengths are made once and shared
        is_one_hot = self._is_one_hot and bool(num_rows.min() == size)
        dense = self._empty((len(num_rows), size, self._num_dense), torch.float32)
        num_numbers = self._num_labels + self._is_weighted
        numbers = self._empty((len(num_rows), num_numbers, size), torch.float32)
        ids = self._empty((int(num_ids.sum()),), torch.int32)
        lengths = self._empty((len(num_rows), num_copied, 0 if is_one_hot else size), torch.int32)
        ends = np.cumsum(num_ids).reshape(num_ids.shape)
        arrays = dense.numpy(), numbers.numpy(), ids.numpy(), ends - num_ids, lengths.numpy()
        copy_rows(addresses, rows.ranges, rows.rows_per_lane, *arrays)
        counts = num_ids.tolist()
        bags = torch.split(ids, num_ids.sum(1).tolist())
        batches = []
        for k, num_valid in enumerate(num_rows.tolist()):
            if num_valid < size:
                for values in (dense[k], numbers[k].t(), lengths[k].t()):
                    values[num_valid:].zero_()  # padding
            num_of_each = counts[k][:num_features]
            values, weights_of_ids = self._with_weights(bags[k], num_of_each)
            of_rows = (
                one_hot_lengths(num_features * size, CPU)
                if is_one_hot
                else lengths[k, :num_features].view(-1)
            )
            sparse = KeyedJaggedTensor(
                keys=self._features,
                values=values,
                weights=weights_of_ids,
                lengths=of_rows,
                stride=size,
                length_per_key=num_of_each,
                offset_per_key=[0, *accumulate(num_of_each)],
            )
            batches.append(Batch(dense[k], sparse, self._supervision(numbers[k]), num_valid, is_one_hot))
        return batches

    def _supervision(self, numbers: torch.Tensor) -> Supervision:
        """``numbers`` [S, B]: the labels, then the weights if rows have any."""
        if not self._is_weighted:
            return Supervision.unweighted(numbers)
        return Supervision(numbers[:-1], numbers[-1])

    def _with_weights(
        self, copied: torch.Tensor, num_ids: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(ids, a weight for each: 1 unless its feature has weights; None if no feature has)."""
        if not self._weighed:
            return copied, None
        ids, bits = torch.split(copied, [sum(num_ids), len(copied) - sum(num_ids)])
        weights = self._empty(ids.shape, torch.float32).fill_(1.0)
        parts = torch.split(weights, list(num_ids))
        given = torch.split(bits.view(torch.float32), [num_ids[place] for place in self._weighed])
        for place, values in zip(self._weighed, given, strict=True):
            parts[place].copy_(values)
        return ids, weights

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)

    def make_all(self, source: Generator[Ranges, None, None]) -> Generator[Batch, None, None]:
        """The batches of ``source``, made in the calling thread. Closes ``source``."""
        if self._pinned:
            # a new thread has GPU 0 as its current device, and page-locking there would make a context for every rank
            torch.cuda.set_device(self._device)
        with closing(source):
            for rows in source:
                yield from self.make(rows)


def _read_together(
    reader: SplitReader, orders: Sequence[Order], start_step: int, num_workers: int
) -> Generator[Ranges, None, None]:
    """Reads all ``orders``, of the same number of steps: for each step the rows of one order after another."""
    with ExitStack() as stack:
        reads = (reader.read(order, start_step, num_workers) for order in orders)
        streams = [stack.enter_context(closing(read)) for read in reads]
        yield from map(side_by_side, zip(*streams, strict=True))


@dataclass(eq=False)
class _Batches:
    """Iterates over batches with rows of all ``orders``, made ahead in threads. Leaving ``with`` ends the threads."""

    reader: SplitReader
    orders: Sequence[Order]
    maker: BatchMaker
    start_step: int
    loading: Loading
    _running: list[Generator[Batch, None, None]] = field(default_factory=list)

    def __len__(self) -> int:
        return max(0, self.orders[0].num_steps - self.start_step)

    def __iter__(self) -> Iterator[Batch]:
        # no reference to self, so that an iterator that is no longer used is collected at once, in its own thread
        rows = _read_together(self.reader, self.orders, self.start_step, self.loading.num_workers)
        stream = prefetch_items(self.maker.make_all(rows), self.loading.prefetch)
        self._running.append(stream)
        return stream

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the threads of all iterators."""
        while self._running:
            self._running.pop().close()


class TrainBatches(_Batches):
    """The training batches that ``plan`` describes, of the rows that ``source`` reads."""

    def __init__(self, source: SplitReader, plan: BatchPlan, loading: Loading = PLAIN) -> None:
        orders = plan.orders(source.group_rows)
        batch_size = sum(order.batch_size for order in orders)
        maker = BatchMaker(
            source.manifest,
            source.features,
            batch_size,
            loading.device,
            source.num_labels,
            source.is_weighted,
        )
        self.dense_columns = [column.name for column in source.manifest.dense]
        super().__init__(source, orders, maker, plan.start_batch, loading)

    def read(self, batch: int) -> Batch:
        """Reads batch number ``batch`` of the epoch alone."""
        with closing(_read_together(self.reader, self.orders, batch, num_workers=1)) as rows:
            return self.maker.make(next(rows))[0]

    def describe(self, batch: int) -> list[str]:
        """The shards and row groups that hold the rows of batch number ``batch``."""
        groups = dict.fromkeys(piece.group for order in self.orders for piece in order.pieces(batch))
        return [self.reader.describe(group) for group in groups]


class EvalBatches(_Batches):
    """Every row of ``split``, once over all ranks, in the order of the files, ``batch_size`` rows per rank.

    All ranks get the same number of batches; the last ones are padded. Negatives of a sampled split count for those
    that were left out. Raises DataError if the split is missing or has no labels.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        features: Sequence[str],
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        loading: Loading = PLAIN,
    ) -> None:
        reader = SplitReader(manifest, split, features, all_negatives=True)
        self._kept = {column.name: column for column in manifest.kept}
        order = eval_order(reader.group_rows, batch_size=batch_size, rank=rank, world_size=world_size)
        maker = BatchMaker(
            manifest, features, batch_size, loading.device, reader.num_labels, reader.is_weighted
        )
        super().__init__(reader, [order], maker, 0, loading)

    def kept_keys(self, name: str) -> torch.Tensor | None:
        """The keys of a kept column of this rank's rows, int64 [R]; None if the dataset does not keep it."""
        if name not in self._kept:
            return None
        (first,), (end,) = self.orders[0].firsts.tolist(), self.orders[0].ends.tolist()
        return torch.from_numpy(self.reader.read_kept(self._kept[name], first, end).view(np.int64))
