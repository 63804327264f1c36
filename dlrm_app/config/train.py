"""The configuration of dlrm-train. Values and their explanations stand in conf/train.yaml and its groups."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass(slots=True)
class DataConfig:
    path: str = MISSING
    lanes: int = MISSING
    shuffle: bool = MISSING
    prefetch_batches: int = MISSING


@dataclass(slots=True)
class TrainerConfig:
    epochs: int = MISSING
    global_batch_size: int = MISSING
    seed: int = MISSING
    max_steps: int | None = None
    log_every_steps: int = MISSING
    threads: int | None = None


@dataclass(slots=True)
class TablesConfig:
    """See ``dlrm_app.tables`` for what ``specs`` holds."""

    from_dataset: bool = False
    embedding_dim: int | None = None
    pooling: str = MISSING
    data_type: str = MISSING
    init: str = MISSING
    specs: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class TrainConfig:
    data: DataConfig = field(default_factory=DataConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    output: str | None = None

    def problems(self) -> list[str]:
        return []
