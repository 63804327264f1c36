"""The configuration of dlrm-report. Values and their explanations stand in conf/report.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING

from dlrm_app.config.checks import batch_rows, one_of, threads_problems
from dlrm_app.text import quoted


@dataclass(slots=True)
class ReportConfig:
    runs: list[str] = field(default_factory=list)
    output: str | None = None
    split: str | None = None
    paired: bool = MISSING
    which: str = MISSING
    confidence: float = MISSING
    batch_size: int = MISSING
    threads: int | None = None

    def problems(self) -> list[str]:
        """What types cannot express; every problem, with what to do about it."""
        problems = [
            *one_of("which", self.which, ("newest", "best")),
            *batch_rows("batch_size", self.batch_size),
            *threads_problems("threads", self.threads),
        ]
        if self.split is not None:
            problems += one_of("split", self.split, ("val", "test"))
        if not 0 < self.confidence < 1:
            problems.append(f"confidence must lie between 0 and 1, as 0.95, got {self.confidence}")
        if self.output is not None and not self.output.endswith(".html"):
            problems.append(f"output is a page: give a name that ends in .html, got {self.output!r}")
        return problems


def with_runs(words: Sequence[str]) -> list[str]:
    """The words behind ``dlrm-report`` with its run folders, which are typed as they are, as one ``runs=[…]``."""
    folders: list[str] = []
    rest: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        is_option = word.startswith("-") or (before in ("--cfg", "-c") and word == "job")
        is_key = "=" in word and not Path(word).is_dir()
        (rest if is_option or is_key else folders).append(word)
    if not folders:
        return rest
    names = ",".join(map(quoted, folders))
    return [*rest, f"runs=[{names}]"]
