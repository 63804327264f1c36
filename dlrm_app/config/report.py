"""dlrm-report's configuration. Values and their explanations are in conf/report.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.schema import Section
from dlrm_app.typed import quoted


@dataclass(slots=True)
class ReportConfig(Section):
    runs: list[str] = field(default_factory=list)
    output: Annotated[str, Meta(pattern=r"\.html$")] | None = None
    split: Literal["val", "test"] | None = None


def with_runs(words: Sequence[str]) -> list[str]:
    """The words after ``dlrm-report``, with the run folders, which are typed
    without a key, joined into one ``runs=[…]``.
    """
    folders: list[str] = []
    rest: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        is_option = word.startswith("-") or (before in ("--cfg", "-c") and word in ("job", "schema"))
        is_key = "=" in word and not Path(word).is_dir()
        (rest if is_option or is_key else folders).append(word)
    if not folders:
        return rest
    names = ",".join(map(quoted, folders))
    return [*rest, f"runs=[{names}]"]
