"""dlrm-preprocess: checks the configuration, the input and the output, then runs the stages."""

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from dlrm_app.config.datasets import AUTO, DenseConfig, EncodingConfig, InputConfig, PreprocessConfig
from dlrm_app.config.schema import SPLITS
from dlrm_app.dataset.encoding_files import verify_encoding_files
from dlrm_app.dataset.manifest import MANIFEST, KeptColumn, Manifest, read_manifest
from dlrm_app.dataset.shard_files import verify_shards
from dlrm_app.errors import ConfigError, DataError, DlrmError, refuse_all, refuse_if
from dlrm_app.files import explained_disk_errors, is_file, output_problems
from dlrm_app.preprocessing.choose import choice_table, choose, open_choices, with_choices
from dlrm_app.preprocessing.encode.columns import (
    column_problems,
    read_encoding,
    read_known,
)
from dlrm_app.preprocessing.finish import report
from dlrm_app.preprocessing.passes.look import look_at
from dlrm_app.preprocessing.passes.plan import Plan
from dlrm_app.preprocessing.passes.targets import known_click_problems
from dlrm_app.preprocessing.read.beginning import source_spec
from dlrm_app.preprocessing.read.parquet_columns import parquet_spec, refuse_other_types
from dlrm_app.preprocessing.read.parser import body
from dlrm_app.preprocessing.read.spec import Cures, Spec, read_spec
from dlrm_app.preprocessing.stages import Stages
from dlrm_app.preprocessing.units.executor import Executor, LocalExecutor
from dlrm_app.preprocessing.units.lake import with_versions
from dlrm_app.preprocessing.units.parquet_units import footer_of, read_footers
from dlrm_app.preprocessing.units.source import (
    Source,
    find_sources,
    has_changed,
    refuse_other_input,
)
from dlrm_app.preprocessing.units.unit_text import beginning_of
from dlrm_app.preprocessing.units.work_folder import (
    WORK,
    BegunRun,
    begun_passes,
    forget_passes,
    locked,
    open_keys,
    read_run,
    remove_temporary_files,
    write_run,
)
from dlrm_app.records import leaves
from dlrm_app.text import first_lines, in_brief, listed, without_credentials

logger = logging.getLogger(__name__)

MIB = 1 << 20
MAX_DIFFERENCES = 8
"""The number of differing settings that an error shows, and the characters of each value."""
CONTINUE = "then run the same command again; it continues where it stopped"
_EXECUTION_KEYS = ("threads", "memory_gib", "executor", "dask", "output")
_FREE = ["dataset.published_rows", "auto"]
"""Settings that may differ from those of a finished dataset."""


def preprocess(config: PreprocessConfig) -> Manifest:
    """Makes the dataset that ``config`` describes, or continues an unfinished one. Returns its manifest.

    Raises ConfigError for settings that cannot work, DataError for damaged input, DlrmError for a full disk.
    """
    known = read_known(config.encoding)
    if known is not None:
        crosses = known.config.get("encoding", {}).get("crosses")
        config = replace(config, encoding=replace(config.encoding, crosses=crosses))
    spec = read_spec(config.dataset, config.encoding.crosses)
    refuse_if(_column_problems(config, spec, known))
    encoding = read_encoding(config.encoding, spec, known)
    config = replace(config, dense=replace(config.dense, transform=encoding.transform(config.dense)))
    config = replace(config, input=_with_versions(config))
    sources = find_sources(config.input)
    refuse_if(known_click_problems(known, sources) if known else [])
    plan = _make_plan(config, spec, sources)
    identity = {key: value for key, value in asdict(config).items() if key not in _EXECUTION_KEYS}
    identity = json.loads(without_credentials(json.dumps(identity)))  # as it will be read back
    finished = _finished(identity, plan)
    if finished is not None:
        return finished
    plan = with_file_specs(plan)
    start = time.perf_counter()
    with _executor(config) as executor, explained_disk_errors(plan.output, CONTINUE), locked(plan.output):
        run, is_resumed = _open_work(config, identity, plan, known)
        config = _with_sections(config, run.config)
        if known is None:
            plan = _with_crosses(plan, config)
            encoding = read_encoding(config.encoding, plan.spec, known)
        manifest = Stages(config, plan, encoding, executor).run(run.config)
        remove_temporary_files(plan.output)
        shutil.rmtree(plan.output / WORK)
    report(manifest, None if is_resumed else time.perf_counter() - start)
    return manifest


def _column_problems(config: PreprocessConfig, spec: Spec, known: Manifest | None) -> list[str]:
    problems = column_problems(config.encoding, config.dense, config.multi_hot.sizes, spec, known)
    if config.dense.target_columns not in (None, AUTO) and not _has_clicks(config, spec):
        problems.append(
            "dense.target_columns needs the clicks of training rows: give a labelled input.train, or leave it out"
        )
    one_hot = [column.name for column in spec.sparse if column.separator is None]
    problems += [
        f"keep={name} is no sparse column of one value: name one of {listed(one_hot, 12)}"
        for name in config.keep
        if name not in one_hot
    ]
    return problems


def _with_crosses(plan: Plan, config: PreprocessConfig) -> Plan:
    """``plan`` with the chosen crosses."""
    spec = read_spec(config.dataset, config.encoding.crosses)
    files = tuple(replace(each, derived=spec.derived) for each in plan.file_specs)
    return replace(plan, spec=spec, file_specs=files)


def _has_clicks(config: PreprocessConfig, spec: Spec) -> bool:
    has_train = config.input.train is not None and "train" not in config.input.unlabelled
    return spec.label is not None and has_train


def _with_sections(config: PreprocessConfig, values: Mapping[str, Any]) -> PreprocessConfig:
    """``config`` with the sections ``encoding`` and ``dense`` of ``values``."""
    encoding, dense = EncodingConfig(**values["encoding"]), DenseConfig(**values["dense"])
    return replace(config, encoding=encoding, dense=dense)


def _without_choices(
    config: PreprocessConfig, identity: dict[str, Any], plan: Plan, before: Mapping[str, Any]
) -> dict[str, Any]:
    """``identity`` with every choice made: as in the earlier run ``before``, or else by a look at the rows."""
    left = open_choices(identity)
    identity = with_choices(identity, before)
    if not (to_choose := open_choices(identity)):
        return {**identity, "auto": before["auto"]} if left and "auto" in before else identity
    wants_numbers = bool(to_choose.get("dense", {}).keys() - {"target_columns"})
    summary = look_at(plan, config.threads, wants_numbers=wants_numbers)
    config = _with_sections(config, identity)
    if isinstance(config.multi_hot.sizes, list):  # its length is the number of columns
        config = replace(config, encoding=replace(config.encoding, crosses=None))
    choice = choose(summary, config.encoding, config.dense, plan.spec, _has_clicks(config, plan.spec))
    logger.info(
        f"chosen by a look at {summary.seen:,} of about {summary.rows:,} rows:\n{choice_table(choice)}"
    )
    reasons = [list(reason) for reason in choice.reasons]
    made = {"rows": summary.rows, "seen": summary.seen, "keys": left, "reasons": reasons}
    identity = {**identity, "encoding": choice.encoding, "dense": choice.dense, "auto": made}
    config = _with_sections(config, identity)
    spec = _with_crosses(plan, config).spec
    refuse_if(_column_problems(config, spec, None))
    return identity


def _with_versions(config: PreprocessConfig) -> InputConfig:
    """The input, with versions of lake tables added: those of the dataset in OUTPUT, otherwise the newest."""
    output = Path(config.output)
    try:
        run = read_manifest(output) if is_file(output / MANIFEST) else read_run(output)
    except DlrmError:  # reported when the output is opened
        run = None
    before = run.config.get("input", {}) if run else {}
    names = {split: getattr(config.input, split) for split in SPLITS}
    versions = {split: with_versions(f"input.{split}", names[split], before.get(split)) for split in SPLITS}
    return replace(config.input, **versions)


def _make_plan(config: PreprocessConfig, spec: Spec, sources: Sequence[Source]) -> Plan:
    fractions = {name: getattr(config.split, name) for name in ("val", "test")}
    return Plan(
        spec=spec,
        sources=tuple(sources),
        unlabelled=frozenset(config.input.unlabelled),
        fractions={name: fraction for name, fraction in fractions.items() if fraction},
        unit_bytes=config.layout.unit_mib * MIB,
        row_group_rows=config.layout.row_group_rows,
        shuffle=config.shuffle,
        seed=config.seed,
        output=Path(config.output),
        kept=tuple(
            KeptColumn(c.name, c.kind or "") for name in config.keep for c in spec.sparse if c.name == name
        ),
        splits_by=config.split.by,
    )


def _executor(config: PreprocessConfig) -> AbstractContextManager[Executor]:
    if config.executor == "local":
        return nullcontext(LocalExecutor(config.threads))
    from dlrm_app.preprocessing.units.dask_executor import open_cluster  # Dask is an extra

    return open_cluster(config.dask.address or "")


def _finished(identity: dict[str, Any], plan: Plan) -> Manifest | None:
    """The manifest if OUTPUT holds exactly this dataset, finished. Raises DlrmError if it holds another one."""
    output = plan.output
    if not is_file(output / MANIFEST):
        refuse_if(output_problems("output", output, is_folder=True))
        if output.exists() and any(output.iterdir()) and not (output / WORK).is_dir():
            raise ConfigError([f"output={output} exists and is no dataset folder: give another name"])
        return None
    manifest = read_manifest(output)
    state = "a finished dataset"
    _refuse_other_config(manifest.config, with_choices(identity, manifest.config), output, state, _FREE)
    known = {source.path: source.version for source in manifest.sources}
    refuse_other_input(known, plan.sources, output, state)
    read = {source.path: source for source in manifest.sources}
    if changed := [str(source.path) for source in plan.sources if has_changed(source, read[source.path])]:
        rule = "has other bytes than were read, of the same size and date"
        cure = f"delete {output} and run the same command"
        raise ConfigError([f"{path} {rule}: {cure}" for path in changed])
    try:
        verify_shards(manifest)
        verify_encoding_files(manifest)
    except DlrmError as error:
        raise DataError(f"{error}\nto make it again: delete {output} and run the same command") from error
    shutil.rmtree(output / WORK, ignore_errors=True)  # left by a run that ended just before deleting it
    logger.info(f"{output} is finished already; nothing to do")
    report(manifest)
    return manifest


def _open_work(
    config: PreprocessConfig, identity: dict[str, Any], plan: Plan, known: Manifest | None
) -> tuple[BegunRun, bool]:
    """Starts OUTPUT/.work, or checks that an existing one belongs to this run. Returns (its record, True if it existed).

    Choices that ``identity`` (the configuration) leaves open are made when the work starts.
    """
    output = plan.output
    fingerprint = known.fingerprint() if known else None

    def record(before: Mapping[str, Any]) -> BegunRun:
        return BegunRun(_without_choices(config, identity, plan, before), plan.sources, fingerprint)

    try:
        before = read_run(output)
        if before is not None:
            now = record(before.config)
            _refuse_other_run(before, now, plan)
    except ConfigError:
        if begun_passes(output):  # some work could be continued
            raise
        logger.info(f"{output} is unfinished, without work that could be kept: starting again")
        forget_passes(output)
        before = None
    if before is None:
        now = record({})
        write_run(output, now)
        return now, False
    logger.info(f"{output} is unfinished: continuing where it stopped")
    remove_temporary_files(output)
    if before.config["encoding"] != now.config["encoding"]:
        forget_passes(output, "vocab", "waiting")  # the counts of values, from which they are made, are kept
    write_run(output, now)
    return now, True


def _refuse_other_run(before: BegunRun, now: BegunRun, plan: Plan) -> None:
    """Raises ConfigError if the unfinished run ``before`` differs from ``now``.

    Files without finished units may have been replaced, for example damaged ones.
    """
    output, state = plan.output, "an unfinished dataset"
    _refuse_other_config(before.config, now.config, output, state, open_keys(output, before))
    known = {source.path: source.version for source in before.sources}
    for number, source in enumerate(plan.sources):
        if source.path in known and not begun_passes(output, number):
            known[source.path] = source.version
    refuse_other_input(known, plan.sources, output, state)
    if before.encoding != now.encoding:
        encoding = now.config["encoding"]
        key = "path" if encoding["path"] else "grow_from"
        raise ConfigError(
            [f"the dataset at encoding.{key}={encoding[key]} has changed: delete {output} to start again"]
        )


def _refuse_other_config(
    before: Mapping[str, Any], now: Mapping[str, Any], output: Path, state: str, open_keys: Sequence[str]
) -> None:
    """Raises ConfigError naming each key that differs, as then → now. ``state``: a description of ``output``.

    ``open_keys`` and the keys under them may differ.
    """
    old, new = dict(leaves(before)), dict(leaves(now))
    problems = [
        f"{key}: {in_brief(old.get(key))} → {in_brief(new.get(key))}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not f"{key}.".startswith(tuple(f"{name}." for name in open_keys))
    ]
    if problems:
        hint = f"{output} holds {state} of another configuration (then → now): give the same values, or another output=, or delete it"
        raise ConfigError([*first_lines(problems, MAX_DIFFERENCES), hint])


def with_file_specs(plan: Plan) -> Plan:
    """``plan`` with the format of each source. Raises ConfigError for mistakes that affect every line, and for empty splits."""
    read_footers(plan.sources)
    by_split: dict[str, list[Source]] = {}
    for source in plan.sources:
        by_split.setdefault(source.split, []).append(source)
    refuse_if(
        [
            f"the {split} split has no rows: there is no line in the files of input.{split}"
            for split, sources in by_split.items()
            if all(_is_empty(source, plan.spec) for source in sources)
        ]
    )
    specs: list[Spec] = []

    def look_at(source: Source) -> None:
        cures = Cures(f"input.unlabelled=[{source.split}]")
        look = parquet_spec if source.format == "parquet" else source_spec
        specs.append(look(source, plan.spec, plan.has_label(source.split), cures))

    refuse_all([], *(partial(look_at, source) for source in plan.sources))
    refuse_other_types(plan.sources, specs)
    known = {column.name for column in plan.spec.columns}
    others = dict.fromkeys(c.name for spec in specs for c in spec.fields if c.name not in known)
    if others:
        logger.info(
            f"columns that dataset={plan.spec.name} does not name are left out: {listed([*others], 8)}"
        )
    return replace(plan, file_specs=tuple(specs))


def _is_empty(source: Source, spec: Spec) -> bool:
    """True if the source has no line, except a header."""
    if source.format == "parquet":
        return bool(footer_of(source).num_rows == 0)
    for text in beginning_of(source).items():
        return not any(start < stop for _, start, stop in body(text, spec)) and text.finish().is_last
    return True
