"""Which runs are compared, what each is called, and in what their configurations differ. No torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrm_app.config.report import ReportConfig
from dlrm_app.errors import refuse_if
from dlrm_app.files import write_problems
from dlrm_app.reports.run.run_record import RunRecord, read_run
from dlrm_app.runs.checkpoint.marker import Evaluation

OF_THE_FOLDER = ("output", "resume")
"""Keys that say where a run lies, not what it is."""


@dataclass(frozen=True)
class ComparedRun:
    """A run under the ``name`` that tells it from the others."""

    name: str
    record: RunRecord

    @property
    def batch_size(self) -> int:
        """Rows of a step, all ranks together."""
        return int(self.record.config.get("trainer", {}).get("global_batch_size", 1))

    def final(self, split: str) -> Evaluation | None:
        """Its latest evaluation on ``split``."""
        return self.record.last_eval(split)


def check_runs(config: ReportConfig) -> None:
    """Raises ConfigError with every value that cannot work and every folder that holds no run."""
    problems = config.problems()
    if not config.runs:
        problems.append("name at least one run: dlrm-report RUN, or dlrm-report RUN RUN to compare them")
    problems += [
        f"{folder} holds no run (no config.yaml in it or in the folders below): name a folder that dlrm-train wrote"
        for folder in config.runs
        if not run_folders(Path(folder))
    ]
    if config.output is not None:
        problems += _page_problems(Path(config.output))
    refuse_if(problems)


def _page_problems(output: Path) -> list[str]:
    if problems := write_problems("output", output):
        return problems
    if output.is_dir():
        return [f"output={output} is a folder: give the name of a file"]
    if not output.absolute().parent.is_dir():
        return [f"output={output} needs the folder {output.parent}: make it first"]
    return []


def run_folders(folder: Path) -> list[Path]:
    """``folder`` if it is a run; else the runs in it or one folder further down, as sweeps write them."""
    if (folder / "config.yaml").is_file():
        return [folder]
    return sorted({path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/config.yaml")})


def read_runs(folders: Sequence[str]) -> list[ComparedRun]:
    """Every run in ``folders``, once and in that order. Raises DataError for a damaged one."""
    by_path = {path.resolve(): path for folder in folders for path in run_folders(Path(folder))}
    records = [read_run(path) for path in by_path.values()]
    common = common_folder(list(by_path))
    return [
        ComparedRun(str(path.relative_to(common)), record)
        for path, record in zip(by_path, records, strict=True)
    ]


def common_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all of the absolute ``paths``."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def differences(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Key → every run's value, for the keys whose values are not all the same; a dash where a run has none."""
    flat = [_described(run.record) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values)
    rows = {key: [values.get(key, "–") for values in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _described(record: RunRecord) -> dict[str, str]:
    """A run's configuration by dotted keys, and what it ran on."""
    described = {key: text for key, text in _flat(record.config).items() if key not in OF_THE_FOLDER}
    for key, name in (("world_size", "ranks"), ("device", "device"), ("threads_per_rank", "threads a rank")):
        if key in record.environment:
            described[name] = str(record.environment[key])
    if record.dataset:
        described["dataset's fingerprint"] = str(record.dataset["fingerprint"])[:12]
    return described


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            flat |= _flat(
                {_item_name(item, index): item for index, item in enumerate(value)}, f"{prefix}{key}."
            )
        else:
            flat[f"{prefix}{key}"] = "null" if value is None else str(value)
    return flat


def _item_name(item: object, index: int) -> str:
    return str(item.get("name", index)) if isinstance(item, Mapping) else str(index)
