"""The request of a command: its checked configuration, and the input files that it names."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dlrm_app.config.datasets import AUTO, SPLITS_BY, TIME_KEYS, InputConfig, PreprocessConfig, SplitConfig
from dlrm_app.config.values import SPLITS
from dlrm_app.dataset.manifest import TIME, KeptColumn, Manifest
from dlrm_app.encoding.column_settings import ColumnSettings, setting_problems
from dlrm_app.encoding.columns import ColumnRules, base_transform, column_rules, read_base, vocabulary_day
from dlrm_app.encoding.vector_tables import vector_file_problems, with_files_of
from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.logs.beginning import source_spec
from dlrm_app.logs.labels import with_one_label
from dlrm_app.logs.parquet_columns import parquet_spec, refuse_other_types
from dlrm_app.logs.parser import body
from dlrm_app.logs.read_spec import read_spec, with_crosses
from dlrm_app.logs.sources.find_sources import find_sources
from dlrm_app.logs.sources.lake import with_versions
from dlrm_app.logs.sources.parquet_units import footer_of, read_footers
from dlrm_app.logs.sources.source import InputFile, drop_beginnings, each_source
from dlrm_app.logs.sources.text_units import beginning_of
from dlrm_app.logs.sources.units import MIB
from dlrm_app.logs.spec import VECTOR, Cures, Spec
from dlrm_app.logs.zones import offsets_of, seconds_of
from dlrm_app.preprocessing.passes.plan import InputPlan
from dlrm_app.preprocessing.passes.targets import base_click_problems
from dlrm_app.preprocessing.passes.time_split import TimeSplit
from dlrm_app.preprocessing.work.work_folder import begun_config
from dlrm_app.records import Json
from dlrm_app.stores.names import named
from dlrm_app.text import listed, without_credentials
from dlrm_app.typed import setting

logger = logging.getLogger(__name__)

_EXECUTION_KEYS = ("threads", "memory_gib", "executor", "dask", "ranks", "timeout_minutes", "output")


@dataclass(frozen=True)
class Request:
    """A command's configuration, checked, and its input. Choices of ``auto`` are open until the work begins.

    config: the configuration, with what other datasets and earlier runs decide
    base: the dataset whose encodings are used or grown
    inputs: the input and the splits, with the columns that were typed
    """

    config: PreprocessConfig
    base: Manifest | None
    inputs: InputPlan


@dataclass(frozen=True)
class DatasetPlan:
    """The dataset to make, with every choice made.

    config: the configuration
    auto: the record of the choices; None if none were made
    inputs: the input, and the split that each row goes to
    columns: the rules of the columns
    """

    config: PreprocessConfig
    auto: Json | None
    inputs: InputPlan
    columns: ColumnRules

    @property
    def memory_bytes(self) -> int:
        """The memory that passes may use."""
        return int(self.config.memory_gib * 2**30)

    def settings(self) -> Json:
        """The configuration as plan.json and the manifest keep it."""
        return kept_settings(self.config) | ({} if self.auto is None else {"auto": self.auto})


def kept_settings(config: PreprocessConfig) -> Json:
    """``config`` as plan.json and the manifest keep it: without the keys of execution, and without credentials.

    The keys of sampling, of several labels, of splits by time and of vectors are left out unless they are given.
    """
    settings = {key: value for key, value in asdict(config).items() if key not in _EXECUTION_KEYS}
    if config.sampling.negatives is None:
        del settings["sampling"]
    columns = (each for each in config.dataset.columns if isinstance(each, Mapping))
    derived = (each for each in config.dataset.derived or () if isinstance(each, Mapping))
    has_rows = any(each.get("role") == VECTOR for each in columns)
    if not (has_rows or any(each.get("kind") == "vectors" for each in derived)):
        del settings["vectors"]
    for key in ("negatives_kept", "labels"):
        if settings["dataset"][key] is None:
            del settings["dataset"][key]
    for key in TIME_KEYS:
        if settings["split"][key] is None:
            del settings["split"][key]
    kept: Json = json.loads(named(without_credentials(json.dumps(settings))))  # as it will be read back
    return kept


def read_request(config: PreprocessConfig) -> Request:
    """Checks ``config`` and finds its input files. Raises ConfigError with every problem."""
    config = replace(config, dataset=with_one_label(config.dataset))
    base, encoding, dense = read_base(config.encoding), config.encoding, config.dense
    if base is not None:
        encoding = replace(encoding, crosses=base.config.get("encoding", {}).get("crosses"))
    spec = replace(read_spec(config.dataset, encoding.crosses), by_position=config.input.by_position)
    spec = spec.keeping(config.keep)
    spec = with_files_of(spec, vocabulary_day(encoding, base))
    has_train = config.input.train is not None and "train" not in config.input.unlabelled
    has_clicks = spec.label is not None and has_train
    columns = _column_settings(replace(config, encoding=encoding), has_clicks)
    problems = setting_problems(columns, spec, base)
    problems += vector_file_problems(spec, base, encoding.grow_from is not None)
    if config.sampling.negatives is not None and not has_clicks:
        rule, cure = "needs the labels of the training rows", "leave it out, or give labels"
        problems.append(Problem("sampling.negatives", rule, cure))
    refuse_if(problems + _split_problems(config.split, spec))
    if base is not None:
        dense = replace(dense, transform=base_transform(base, spec, dense.transform))
    given = _with_versions(config.input, begun_config(Path(config.output)).get("input", {}))
    sources = find_sources(given, spec.quoting)
    refuse_if(base_click_problems(base, sources) if base else [])
    config = replace(config, encoding=encoding, dense=dense, input=given)
    return Request(config, base, _plan_inputs(config, spec, sources))


def _column_settings(config: PreprocessConfig, has_clicks: bool) -> ColumnSettings:
    sizes, dtype = config.multi_hot.sizes, config.vectors.dtype
    return ColumnSettings(config.encoding, config.dense, sizes, config.keep, has_clicks, dtype)


def plan_dataset(request: Request, config: PreprocessConfig, auto: Json | None) -> DatasetPlan:
    """The plan for ``request``, whose choices are made in ``config``; ``auto``: their record.

    Raises ConfigError if chosen columns do not fit.
    """
    inputs, base = request.inputs, request.base
    if request.config.encoding.crosses == AUTO:
        spec = with_crosses(inputs.spec, config.encoding.crosses)
        files = tuple(replace(each, derived=spec.derived) for each in inputs.file_specs)
        inputs = replace(inputs, spec=spec, file_specs=files)
    columns = _column_settings(config, inputs.has_clicks)
    refuse_if(setting_problems(columns, inputs.spec, None) if base is None else [])
    return DatasetPlan(config, auto, inputs, column_rules(columns, inputs.spec, base))


def _with_versions(given: InputConfig, before: Json) -> InputConfig:
    """``given`` with versions of lake tables: those of an earlier run's input, ``before``, otherwise the newest."""
    names = {split: getattr(given, split) for split in SPLITS}
    versions = {split: with_versions(f"input.{split}", names[split], before.get(split)) for split in SPLITS}
    return replace(given, **versions)


def _plan_inputs(config: PreprocessConfig, spec: Spec, sources: Sequence[InputFile]) -> InputPlan:
    fractions = {"val": config.split.val, "test": config.split.test}
    kinds = {column.name: column.kind or "" for column in (*spec.sparse, *spec.kept)}
    split = config.split
    return InputPlan(
        spec=spec,
        sources=tuple(sources),
        unlabelled=frozenset(config.input.unlabelled),
        fractions={name: fraction for name, fraction in fractions.items() if fraction},
        unit_bytes=config.layout.unit_mib * MIB,
        row_group_rows=config.layout.row_group_rows,
        shuffle=config.shuffle,
        seed=config.seed,
        output=Path(config.output),
        kept_columns=tuple(KeptColumn(name, kinds.get(name, TIME)) for name in config.keep),
        splits_by=split.by,
        time_split=TimeSplit(split.by, _moments(split), split.missing) if split.is_by_time else None,
        sampled=config.sampling.negatives or 1.0,
        kept_before=config.dataset.kept_shares(),
    )


def _split_problems(split: SplitConfig, spec: Spec) -> list[Problem]:
    """Problems of a split by time: of its column, its zone and the order of its moments."""
    if not split.is_by_time:
        return []
    column = next((column for column in spec.columns if column.name == split.by), None)
    if column is None or column.role != "time":
        what = f"{split.by}, which is no column" if column is None else f"a column of role {column.role}"
        cure = (
            f"give it role: time with its kind in the dataset's columns, or choose {' or '.join(SPLITS_BY)}"
        )
        return [Problem(f"split.by={split.by}", f"names {what}", cure)]
    try:
        moments = _moments(split)
    except ConfigError as error:
        return [problem.within("split", ".") for problem in error.problems]
    if len(moments) == 2 and moments["val"] >= moments["test"]:
        rule = f"is not before split.test_from={split.test_from}, where val ends"
        return [Problem(f"split.val_from={split.val_from}", rule, "give an earlier moment")]
    return []


def _moments(split: SplitConfig) -> dict[str, float]:
    """Split → the second since 1970 from which rows belong to it, where ``split`` gives it."""
    if split.zone is not None:
        offsets_of(split.zone)  # refuses unknown zones, needed or not
    given = {"val": split.val_from, "test": split.test_from}
    return {name: seconds_of(text, split.zone) for name, text in given.items() if text is not None}


def with_file_specs(request: Request) -> Request:
    """``request`` with the format of each source. Raises ConfigError for mistakes that affect every line."""
    plan = request.inputs
    read_footers(plan.sources)
    refuse_if(_empty_split_problems(plan))

    def file_spec(source: InputFile) -> Spec:
        looks = f"dlrm-check {setting('input', without_credentials(source.path))} output=log.yaml"
        cures = Cures(
            f"input.unlabelled=[{source.split}]", f"correct dataset.columns, or let {looks} propose them"
        )
        find_spec = parquet_spec if source.format == "parquet" else source_spec
        return find_spec(source, plan.spec, plan.has_label(source.split), cures)

    specs = each_source(file_spec, plan.sources)
    drop_beginnings(plan.sources)
    refuse_other_types(plan.sources, specs)
    names = {column.name for column in plan.spec.columns}
    others = dict.fromkeys(c.name for spec in specs for c in spec.fields if c.name not in names)
    if others:
        logger.info(
            f"columns that dataset={plan.spec.name} does not name are left out: {listed([*others], 8)}"
        )
    return replace(request, inputs=replace(plan, file_specs=tuple(specs)))


def _empty_split_problems(plan: InputPlan) -> list[Problem]:
    by_split: dict[str, list[InputFile]] = {}
    for source in plan.sources:
        by_split.setdefault(source.split, []).append(source)
    return [
        Problem(f"input.{split}", "has no line in its files", "give files with rows")
        for split, sources in by_split.items()
        if all(_is_empty(source, plan.spec) for source in sources)
    ]


def _is_empty(source: InputFile, spec: Spec) -> bool:
    """True if the source has no line, except a header."""
    if source.format == "parquet":
        return bool(footer_of(source).num_rows == 0)
    for text in beginning_of(source).items():
        return not any(start < stop for _, start, stop in body(text, spec)) and text.finish().is_last
    return True
