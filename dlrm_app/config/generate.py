"""The configuration of dlrm-generate. Values and their explanations stand in conf/generate.yaml."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from dlrm_app.config.train import TablesConfig

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
        rules = [*self._rules(), *(self._dataset_rules() if self.format == "dataset" else self._file_rules())]
        return [message for is_wrong, message in rules if is_wrong]

    def _rules(self) -> list[tuple[bool, str]]:
        signal = self.signal
        return [
            (
                self.format not in FORMATS,
                f"format={self.format} is not known: choose one of {', '.join(FORMATS)}",
            ),
            (self.rows < 1, f"rows={self.rows}: there must be at least 1"),
            (self.start_row < 0, f"start_row={self.start_row}: rows are counted from 0"),
            (
                not 0 <= self.seed < 2**63,
                f"seed={self.seed}: give a whole number from 0 to 2^63 - 1",
            ),
            (
                self.max_cardinality is not None and self.max_cardinality < 1,
                f"max_cardinality={self.max_cardinality}: a column needs at least 1 id; null is no limit",
            ),
            (
                not 0 <= self.zipf <= 4,
                f"zipf={self.zipf}: give an exponent from 0 (all ids equally often) to 4 (the first id nearly always)",
            ),
            (
                not 0.5 <= signal.auc <= 0.95,
                f"signal.auc={signal.auc}: give the best reachable AUC, from 0.5 (no signal) to 0.95",
            ),
            (
                not 0.01 <= signal.click_rate <= 0.99,
                f"signal.click_rate={signal.click_rate}: give a share of positives from 0.01 to 0.99",
            ),
            (
                self.threads is not None and self.threads < 1,
                f"threads={self.threads}: give at least 1, or null for one per core",
            ),
        ]

    def _file_rules(self) -> list[tuple[bool, str]]:
        output = Path(self.output)
        return [
            (
                self.output != "" and output.is_dir(),
                f"output={output} is a folder: give the name of a file, such as {output}/clicks.tsv",
            ),
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

    def _dataset_rules(self) -> list[tuple[bool, str]]:
        return [
            (
                not self.tables.specs,
                "format=dataset needs tables, whose rows it draws ids of: add tables=merlin_tiny, or another",
            ),
            (
                not 0 <= self.alpha <= 4,
                f"alpha={self.alpha}: give an exponent from 0 (all ids equally often) to 4 (the first id nearly always)",
            ),
            (self.num_dense < 0, f"num_dense={self.num_dense}: give at least 0"),
            (self.val_rows < 0, f"val_rows={self.val_rows}: give at least 0, which is no val split"),
            (self.test_rows < 0, f"test_rows={self.test_rows}: give at least 0, which is no test split"),
            (
                Path(self.output).is_file(),
                f"output={self.output} is a file: give the name of a folder, which is made",
            ),
        ]
