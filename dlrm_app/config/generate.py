"""The configuration of dlrm-generate. Values and their explanations stand in conf/generate.yaml."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

FORMATS = ("criteo",)


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
    threads: int | None = None
    overwrite: bool = MISSING

    def problems(self) -> list[str]:
        """What cannot work, each with its cure."""
        return [message for is_wrong, message in self._rules() if is_wrong]

    def _rules(self) -> list[tuple[bool, str]]:
        output, signal = Path(self.output), self.signal
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
            (
                output.is_dir(),
                f"output={output} is a folder: give the name of a file, such as {output}/clicks.tsv",
            ),
            (
                output.is_file() and not self.overwrite,
                f"output={output} exists: choose another name, or overwrite=true to replace it",
            ),
        ]
