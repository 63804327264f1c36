"""The configuration of dlrm-generate. Values and their explanations are in conf/generate.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, Section
from dlrm_app.config.train import TablesConfig
from dlrm_app.config.values import Count, Seed, Share, Threads, Whole
from dlrm_app.errors import Problem
from dlrm_app.files import output_problems


@dataclass(slots=True)
class SignalConfig(Section):
    auc: Annotated[float, Meta(ge=0.5, le=0.95)] = REQUIRED
    click_rate: Annotated[float, Meta(ge=0.01, le=0.99)] = REQUIRED


@dataclass(slots=True)
class OrdersConfig(Section):
    rate: Annotated[float, Meta(ge=0, le=0.99)] = REQUIRED
    auc: Annotated[float, Meta(ge=0.5, le=0.95)] = REQUIRED
    missing: Annotated[float, Meta(ge=0, lt=1)] = REQUIRED


@dataclass(slots=True)
class HistoriesConfig(Section):
    length: Annotated[int, Meta(ge=0, le=100)] = REQUIRED


@dataclass(slots=True)
class CatalogueConfig(Section):
    width: Annotated[int, Meta(ge=0, le=4096)] = REQUIRED
    size: Count = REQUIRED
    rows_an_item: Count = REQUIRED


@dataclass(slots=True)
class GenerateConfig(Section):
    output: str = REQUIRED
    format: Literal["criteo", "dataset"] = REQUIRED
    rows: Count = REQUIRED
    start_row: Whole = REQUIRED
    seed: Seed = REQUIRED
    max_cardinality: Count | None = None
    zipf: Annotated[float, Meta(ge=0, le=4)] = REQUIRED
    signal: SignalConfig = field(default_factory=SignalConfig)
    # 32-bit ids suffice for this many days with new_ids=1 in the largest column
    days: Annotated[int, Meta(ge=1, le=366)] = REQUIRED
    first_day: str = REQUIRED
    negatives_kept: Annotated[float, Meta(gt=0, le=1)] = REQUIRED
    weights: Annotated[float, Meta(ge=0, le=3)] = REQUIRED
    orders: OrdersConfig = field(default_factory=OrdersConfig)
    histories: HistoriesConfig = field(default_factory=HistoriesConfig)
    catalogue: CatalogueConfig = field(default_factory=CatalogueConfig)
    new_ids: Share = REQUIRED
    drift: Share = REQUIRED
    tables: TablesConfig = field(default_factory=TablesConfig)
    alpha: Annotated[float, Meta(ge=0, le=4)] = REQUIRED
    num_dense: Whole = REQUIRED
    val_rows: Whole = REQUIRED
    test_rows: Whole = REQUIRED
    threads: Threads | None = None
    overwrite: bool = REQUIRED

    def rules(self) -> Iterator[Problem]:
        is_dataset = self.format == "dataset"
        if is_dataset and not self.tables.specs:
            cure = "give merlin=tiny or another size, or tables=FILE.yaml"
            yield Problem("format=dataset", "needs tables, whose rows it draws ids of", cure)
        elif not is_dataset and (self.tables.specs or self.tables.from_dataset):
            rule = "are for format=dataset, format=criteo has columns of its own"
            yield Problem("tables", rule, "add format=dataset, or leave out tables=")
        usual = {
            "weights": (self.weights, 0),
            "negatives_kept": (self.negatives_kept, 1),
            "orders.rate": (self.orders.rate, 0),
            "histories.length": (self.histories.length, 0),
            "catalogue.width": (self.catalogue.width, 0),
            "days": (self.days, 1),
        }
        for key, (value, default) in usual.items():
            if is_dataset and value != default:
                yield Problem(key, "is of format=criteo", f"leave out {key}= or format=", value)
        try:
            date.fromisoformat(self.first_day) + timedelta(self.days)
        except (ValueError, OverflowError):
            cure = "give one such as 2026-01-01"
            yield Problem("first_day", "must be a date that so many days can follow", cure, self.first_day)
        output = Path(self.output)
        faults = output_problems("output", output, is_folder=is_dataset or self.days > 1)
        yield from faults
        is_there = not faults and (output.is_file() or (output.is_dir() and any(output.iterdir())))
        if is_there and not self.overwrite:
            cure = "choose another name, or overwrite=true to replace it"
            yield Problem(f"output={output}", "exists", cure)
