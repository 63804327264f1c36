"""The configuration of dlrm-generate. Values and their explanations stand in conf/generate.yaml."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from dlrm_app.config.checks import at_least_zero, one_of, positive, threads_problems, within
from dlrm_app.config.train import TablesConfig
from dlrm_app.files import output_problems

FORMATS = ("criteo", "dataset")


@dataclass(slots=True)
class SignalConfig:
    auc: float = MISSING
    click_rate: float = MISSING


@dataclass(slots=True)
class GenerateConfig:
    output: str = MISSING
    format: str = MISSING
    rows: int = MISSING
    start_row: int = MISSING
    seed: int = MISSING
    max_cardinality: int | None = None
    zipf: float = MISSING
    signal: SignalConfig = field(default_factory=SignalConfig)
    tables: TablesConfig = field(default_factory=TablesConfig)
    alpha: float = MISSING
    num_dense: int = MISSING
    val_rows: int = MISSING
    test_rows: int = MISSING
    threads: int | None = None
    overwrite: bool = MISSING

    def problems(self) -> list[str]:
        """What cannot work, each with what to do about it."""
        return [
            *one_of("format", self.format, FORMATS),
            *positive("rows", self.rows),
            *at_least_zero("start_row", self.start_row),
            *within("seed", self.seed, 0, 2**63 - 1),
            *positive("max_cardinality", self.max_cardinality),
            *within("zipf", self.zipf, 0, 4),
            *within("signal.auc", self.signal.auc, 0.5, 0.95),
            *within("signal.click_rate", self.signal.click_rate, 0.01, 0.99),
            *threads_problems("threads", self.threads),
            *(self._dataset_problems() if self.format == "dataset" else self._file_problems()),
        ]

    def _file_problems(self) -> list[str]:
        output = Path(self.output)
        if problems := output_problems("output", output):
            return problems
        rules = [
            (
                output.is_file() and not self.overwrite,
                f"output={output} exists: choose another name, or overwrite=true to replace it",
            ),
            (
                bool(self.tables.specs) or self.tables.from_dataset,
                f"tables are for format=dataset, format={self.format} has columns of its own: "
                "add format=dataset, or leave tables= away",
            ),
        ]
        return [message for is_wrong, message in rules if is_wrong]

    def _dataset_problems(self) -> list[str]:
        problems = [
            *within("alpha", self.alpha, 0, 4),
            *at_least_zero("num_dense", self.num_dense),
            *at_least_zero("val_rows", self.val_rows),
            *at_least_zero("test_rows", self.test_rows),
        ]
        if not self.tables.specs:
            problems.append(
                "format=dataset needs tables, whose rows it draws ids of: add tables=merlin_tiny, or another"
            )
        return [*problems, *output_problems("output", Path(self.output), is_folder=True)]
