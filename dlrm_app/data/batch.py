"""Decoded rows → the model's input: the only module that knows both the arrays and KeyedJaggedTensor."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from dlrm_app.data.batch_order import Order, eval_order, train_order
from dlrm_app.data.manifest import Manifest
from dlrm_app.data.prefetch import prefetch_items
from dlrm_app.data.reader import SplitReader
from dlrm_app.data.rows import Rows, join


@dataclass
class Batch(Pipelineable):
    """``dense_features`` [B, N] float32, ``sparse_features`` with a key per feature, ``labels`` [B] float32.

    Rows from ``num_valid`` on are padding: dense 0, empty bags, label 0.
    """

    dense_features: torch.Tensor
    sparse_features: KeyedJaggedTensor
    labels: torch.Tensor
    num_valid: int

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """A copy on ``device``."""
        return Batch(
            self.dense_features.to(device, non_blocking=non_blocking),
            self.sparse_features.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            self.num_valid,
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that ``stream`` uses the tensors."""
        self.dense_features.record_stream(stream)
        self.sparse_features.record_stream(stream)
        self.labels.record_stream(stream)

    def pin_memory(self) -> "Batch":
        """A copy in page-locked memory, from which copies to a GPU run beside other work."""
        return Batch(
            self.dense_features.pin_memory(),
            self.sparse_features.pin_memory(),
            self.labels.pin_memory(),
            self.num_valid,
        )


class BatchMaker:
    """Turns Rows into a Batch of ``batch_size`` rows with ``features`` as keys."""

    def __init__(self, manifest: Manifest, features: Sequence[str], batch_size: int) -> None:
        multi_hot = {column.name for column in manifest.sparse if column.multi_hot}
        self._features = list(features)
        self._is_multi_hot = [name in multi_hot for name in features]
        self._batch_size = batch_size
        # one-hot batches differ in their values alone: the rest is made once and shared
        self._ones = torch.ones(len(features) * batch_size, dtype=torch.int32)
        self._length_per_key = [batch_size] * len(features)
        self._offset_per_key = [batch_size * index for index in range(len(features) + 1)]

    def make(self, rows: Rows) -> Batch:
        """The batch; padded where there are fewer rows than its size."""
        missing = self._batch_size - len(rows)
        dense, labels = rows.dense, rows.labels
        if missing:
            dense = np.concatenate([dense, np.zeros((missing, dense.shape[1]), np.float32)])
            labels = np.concatenate([labels, np.zeros(missing, np.float32)])
        if missing or any(self._is_multi_hot):
            sparse = self._ragged(rows)
        else:
            sparse = self._one_hot(rows)
        return Batch(torch.from_numpy(dense), sparse, torch.from_numpy(labels), len(rows))

    def _one_hot(self, rows: Rows) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(rows.one_hot.reshape(-1)),
            lengths=self._ones,
            stride=self._batch_size,
            length_per_key=self._length_per_key,
            offset_per_key=self._offset_per_key,
        )

    def _ragged(self, rows: Rows) -> KeyedJaggedTensor:
        lengths = np.zeros((len(self._features), self._batch_size), np.int32)
        values: list[NDArray[np.int32]] = []
        one_hot, bags = iter(rows.one_hot), iter(rows.bags)
        for index, is_multi_hot in enumerate(self._is_multi_hot):
            if is_multi_hot:
                bag = next(bags)
                lengths[index, : len(rows)] = np.diff(bag.offsets)
                values.append(bag.values)
            else:
                lengths[index, : len(rows)] = 1
                values.append(next(one_hot))
        length_per_key = [len(ids) for ids in values]
        return KeyedJaggedTensor(
            keys=self._features,
            values=torch.from_numpy(np.concatenate(values) if values else np.empty(0, np.int32)),
            lengths=torch.from_numpy(lengths.reshape(-1)),
            stride=self._batch_size,
            length_per_key=length_per_key,
            offset_per_key=[0, *np.cumsum(length_per_key).tolist()],
        )


def _make_all(source: Iterator[Rows], maker: BatchMaker) -> Iterator[Batch]:
    pin = torch.cuda.is_available()
    for rows in source:
        batch = maker.make(rows)
        yield batch.pin_memory() if pin else batch


def _read_beside(reader: SplitReader, orders: Sequence[Order], start_step: int) -> Iterator[Rows]:
    """The batches of all ``orders``, which take as many steps: those of one step one behind the other."""
    for parts in zip(*(reader.read(order, start_step) for order in orders), strict=True):
        yield parts[0] if len(parts) == 1 else join([(rows, 0, len(rows)) for rows in parts])


class _Batches:
    """Iterates over the batches of orders side by side, decoded beforehand in a thread. Leaving ``with`` ends the thread."""

    def __init__(
        self, reader: SplitReader, orders: Sequence[Order], maker: BatchMaker, start_step: int, prefetch: int
    ) -> None:
        self._reader = reader
        self._orders = orders
        self._maker = maker
        self._start_step = start_step
        self._prefetch = prefetch
        self._running: list[Generator[Batch, None, None]] = []

    def __len__(self) -> int:
        return max(0, self._orders[0].num_steps - self._start_step)

    def __iter__(self) -> Iterator[Batch]:
        # no reference to self, so that an iteration that nobody holds any more ends at once, in its own thread
        made = _make_all(_read_beside(self._reader, self._orders, self._start_step), self._maker)
        stream = prefetch_items(made, self._prefetch)
        self._running.append(stream)
        return stream

    def __enter__(self) -> "_Batches":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads of all iterations begun."""
        while self._running:
            self._running.pop().close()


class TrainBatches(_Batches):
    """The training batches of ``rank`` in ``epoch``, from batch number ``start_batch`` on.

    With ``ensemble_size`` K above 1 a batch is K pieces, one for each model, and piece k follows an order of its own: that
    of epoch ``epoch`` · K + k. Every piece holds this rank's share of ``global_batch_size`` rows.
    ``num_dropped`` rows, those after the last whole global batch of the epoch's sequence, are left out.
    What ``check_lanes`` refuses must not come here. Raises DataError without a labelled train split.
    """

    def __init__(
        self,
        manifest: Manifest,
        features: Sequence[str],
        *,
        global_batch_size: int,
        lanes: int = 64,
        seed: int = 0,
        epoch: int = 0,
        ensemble_size: int = 1,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        prefetch: int = 4,
    ) -> None:
        reader = SplitReader(manifest, "train", features)
        orders = [
            train_order(
                reader.group_rows,
                global_batch_size=global_batch_size,
                lanes=lanes,
                seed=seed,
                epoch=epoch * ensemble_size + k,
                rank=rank,
                world_size=world_size,
                shuffle=shuffle,
            )
            for k in range(ensemble_size)
        ]
        self.dense_columns = [column.name for column in manifest.dense]
        self.num_dropped = sum(reader.group_rows) - orders[0].num_steps * global_batch_size
        maker = BatchMaker(manifest, features, orders[0].batch_size * ensemble_size)
        super().__init__(reader, orders, maker, start_batch, prefetch)

    def read(self, batch: int) -> Batch:
        """Batch number ``batch`` of the epoch alone."""
        return self._maker.make(next(_read_beside(self._reader, self._orders, batch)))

    def describe(self, batch: int) -> list[str]:
        """Where the rows of batch number ``batch`` lie: a shard and row group each."""
        groups = dict.fromkeys(piece.group for order in self._orders for piece in order.pieces(batch))
        return [self._reader.describe(group) for group in groups]


class EvalBatches(_Batches):
    """Every row of ``split`` once over all ranks, in the order of the files, ``batch_size`` rows per rank.

    All ranks get the same number of batches; the last ones are padded. Raises DataError if the split is missing
    or has no labels.
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
        prefetch: int = 4,
    ) -> None:
        reader = SplitReader(manifest, split, features)
        order = eval_order(reader.group_rows, batch_size=batch_size, rank=rank, world_size=world_size)
        super().__init__(reader, [order], BatchMaker(manifest, features, batch_size), 0, prefetch)
