"""Which part of a step is worth looking at, and the key that would make it less."""

import logging
from collections.abc import Mapping

from dlrm_app.config.train import TrainConfig
from dlrm_app.training.instruments.parts import TITLES

logger = logging.getLogger(__name__)

EXCHANGE = ("input_dist", "output_dist", "gradient_exchange")
TABLES = ("lookup", "table_update")


def largest_part(step_ms: Mapping[str, float]) -> str:
    """The part that most of the time goes into, and its share, in words; empty where nothing was measured."""
    total = sum(step_ms.values())
    if not total:
        return ""
    part = max(step_ms, key=lambda name: step_ms[name])
    return f"{TITLES[part]} {step_ms[part] / total:.0%}"


def advise(step_ms: Mapping[str, float], config: TrainConfig, num_ranks: int) -> str | None:
    """What would make a step shorter, with the share that it could save from; None where no key would."""
    total = sum(step_ms.values())

    def share(*parts: str) -> float:
        return sum(step_ms.get(part, 0.0) for part in parts) / total if total else 0.0

    data, exchange, tables = share("data"), share(*EXCHANGE), share(*TABLES)
    if data > 0.15:
        return (
            f"{data:.0%} of a step waits for batches: a lower trainer.threads leaves cores to the reader, a higher "
            f"data.prefetch_batches (now {config.data.prefetch_batches}) bridges a disk's pauses"
        )
    if num_ranks > 1 and exchange > 0.3:
        if config.trainer.pipeline == "base":
            return f"{exchange:.0%} of a step is exchange between ranks: trainer.pipeline=sparse_dist sends ids during the step before"
        if config.sharding.collectives.forward == "fp32":
            return (
                f"{exchange:.0%} of a step is exchange between ranks: sharding.collectives.forward=bf16 and "
                "sharding.collectives.backward=bf16 halve the bytes; a larger trainer.global_batch_size makes fewer messages"
            )
    if tables > 0.4 and config.optimizer.sparse.kind == "adagrad":
        return f"{tables:.0%} of a step is the tables: optimizer=rowwise_adagrad keeps one number a row, not one a weight"
    if share("optimizer", "other") > 0.3:
        return f"{share('optimizer', 'other'):.0%} of a step is the same for any batch: a larger trainer.global_batch_size takes fewer steps"
    return None


class Adviser:
    """Logs each piece of advice once, when two readings in a row come to it: the first has the start's slow steps."""

    def __init__(self, config: TrainConfig, num_ranks: int) -> None:
        self._config, self._num_ranks = config, num_ranks
        self._last: str | None = None
        self._given: set[str | None] = {None}

    def look_at(self, step_ms: Mapping[str, float]) -> None:
        """Takes a reading."""
        advice = advise(step_ms, self._config, self._num_ranks)
        kind = advice and advice.partition("%")[2]  # the same with another share
        if kind == self._last and kind not in self._given:
            self._given.add(kind)
            logger.info("%s", advice)
        self._last = kind
