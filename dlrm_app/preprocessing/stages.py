"""The passes of a run in their order, each over the units that have not landed yet."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from dlrm_app.config.datasets import PreprocessConfig
from dlrm_app.dataset.encoding_files import copy_encoding_files
from dlrm_app.dataset.lineage import Growth, Lineage
from dlrm_app.dataset.manifest import DenseColumn, Manifest, Shard, SparseColumn
from dlrm_app.errors import DataError
from dlrm_app.journal import Journal, R
from dlrm_app.preprocessing.encode.columns import (
    Encoding,
    MadeColumns,
    columns_of,
    dense_columns,
    extended,
    hash_columns,
    known_groups,
    lineage_after,
    per_column,
    sharing_groups,
    target_sources,
    with_derivations,
)
from dlrm_app.preprocessing.encode.dense import is_target
from dlrm_app.preprocessing.encode.sparse import FIRST_ID
from dlrm_app.preprocessing.finish import RejectLimit, finish
from dlrm_app.preprocessing.passes.contents import tells_rows_apart
from dlrm_app.preprocessing.passes.counting import count_distinct
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit, EncodeUnits
from dlrm_app.preprocessing.passes.growth import Rule
from dlrm_app.preprocessing.passes.plan import (
    CountedUnit,
    CountLines,
    Cuts,
    Plan,
    cut_lines,
    unit_feeds,
)
from dlrm_app.preprocessing.passes.shuffle import Gather
from dlrm_app.preprocessing.passes.study import StudiedUnit, Study, standardized
from dlrm_app.preprocessing.passes.targets import (
    AddUpClicks,
    CountClicks,
    grow_target,
    learnt_rows,
    refuse_if_clicks_are_too_many,
    write_learnt,
)
from dlrm_app.preprocessing.passes.vocabulary import BYTES_PER_VALUE, AddedUp, AddUp, refuse_if_too_large
from dlrm_app.preprocessing.read.arrow_rows import open_cursor
from dlrm_app.preprocessing.units.executor import Executor, Feed, NumberedItem, Pass, SingleFeed
from dlrm_app.preprocessing.units.parquet_units import InputFeed, InputUnit
from dlrm_app.preprocessing.units.remote import in_threads
from dlrm_app.preprocessing.units.source import DamagedFileError, Source
from dlrm_app.preprocessing.units.unit_text import TextFeed, source_prefix, unit_number
from dlrm_app.preprocessing.units.work_folder import begun_passes, pass_journal
from dlrm_app.progress import work_bar
from dlrm_app.text import day_number

logger = logging.getLogger(__name__)
_LOOK_ROWS = 1 << 17
"""Rows by which it is judged if contents tell rows apart."""


U = TypeVar("U", CountedUnit, StudiedUnit, EncodedUnit)
"""The record of a pass over units."""


@dataclass(frozen=True)
class Stages:
    """One run: what it was asked, what it is to do, and who does it."""

    config: PreprocessConfig
    plan: Plan
    encoding: Encoding
    executor: Executor

    def run(self, identity: dict[str, Any]) -> Manifest:
        """Runs all passes that have not been done, and writes the manifest; ``identity``: its configuration."""
        plan = replace(self.plan, cuts=self.cut(), are_told_apart=self._are_told_apart())
        return replace(self, plan=plan)._run(identity)

    def _are_told_apart(self) -> bool:
        """True if contents tell rows apart, in a unit of the training input; it is read only if rows are dealt by their contents."""
        deals = self.config.dense.target_columns is not None or self.plan.splits_by == "content"
        if not deals or (self.encoding.known is not None and self.plan.splits_by != "content"):
            return True
        source = next(iter(self.plan.sources_of({"train"})), None)
        if source is None:
            return True
        columns = self.plan.columns_of(source) if source.format == "parquet" else {}
        feed = unit_feeds(source, columns, self.plan.unit_bytes, lambda unit: unit == 0)[0]
        spec = self.plan.file_specs[source.index]
        for text in feed.items():
            return tells_rows_apart(islice(open_cursor(text, spec).rows(_LOOK_ROWS, None), 1), spec)
        return True

    def _run(self, identity: dict[str, Any]) -> Manifest:
        columns = self.make_columns()
        journal, units = self.encode(columns)
        if self.encoding.hashed:
            files = [journal.path(unit.text.name, ".sketch") for unit in units]
            num_raw = len(self.plan.spec.sparse)
            distinct = count_distinct(files, columns.sparse[:num_raw])
            columns = replace(columns, sparse=distinct + columns.sparse[num_raw:])
        shards = self.collect_shards(journal, units)
        return finish(self.plan, journal, units, shards, columns, identity)

    def cut(self) -> Cuts | None:
        """The cuts of the training input into splits, if there are any."""
        if not self.plan.fractions or self.plan.splits_by != "end":
            return None
        work = CountLines(self.plan, self._journal("lines", CountedUnit))
        sources = self.plan.sources_of({"train"})
        texts = [source for source in sources if source.format != "parquet"]
        lines = {(u.text.source, u.text.unit): u.lines for u in self._over_units(work, texts)}
        for source in sources:
            units = self.plan.units_of(source) if source.format == "parquet" else []  # its footer has counted
            lines |= {(source.index, number): rows.stop - rows.start for number, rows in enumerate(units)}
        return cut_lines(dict(sorted(lines.items())), self.plan.fractions)

    def make_columns(self) -> MadeColumns:
        """The columns that rows are encoded as, their vocabularies, moments and targets included."""
        config, spec, parent = self.config, self.plan.spec, self.encoding.grows_from
        if parent is not None:
            return self._grow(parent, self._study(wants_counts=True, wants_moments=False))
        if self.encoding.known is not None:
            copy_encoding_files(self.encoding.known, self.plan.output)
            return columns_of(self.encoding.known)
        dense = dense_columns(config.dense.transform, spec)
        sparse = hash_columns(config.encoding.num_embeddings, spec)
        growth: list[Growth] = []
        wants_counts = self.encoding.has_vocabularies
        wants_moments = any(column.transform == {"kind": "standardize"} for column in dense)
        units = self._study(wants_counts, wants_moments) if wants_counts or wants_moments else []
        if wants_moments:
            dense = standardized(dense, units)
        if wants_counts:
            names = [column.name for column in spec.sparse]
            sharing = sharing_groups(config.encoding.shared, names)
            groups = [group for group in sharing if names[group[0]] not in self.encoding.hashed]
            by_name, growth = self._make_vocabularies(units, groups)
            sparse = sorted([*sparse, *by_name.values()], key=lambda column: names.index(column.name))
        dense, sparse = with_derivations(dense, sparse, spec)
        sparse = extended(sparse, config.multi_hot.sizes, config.dense, spec)
        dense += self._make_targets(dense, sparse)
        day = self.encoding.day
        return MadeColumns(dense, sparse, None if day is None else Lineage(day, growth=growth))

    def _study(self, wants_counts: bool, wants_moments: bool) -> list[StudiedUnit]:
        sees_others = self.encoding.grows_from is not None
        journal = self._journal("study", StudiedUnit)
        study = Study(self.plan, wants_counts, wants_moments, sees_others, journal)
        sources = self.plan.sources if sees_others else self.plan.sources_of(self.plan.studied)
        return self._over_units(study, sources)

    def _make_vocabularies(
        self, units: Sequence[StudiedUnit], groups: Sequence[tuple[int, ...]]
    ) -> tuple[dict[str, SparseColumn], list[Growth]]:
        """(the columns of ``groups`` by name, what the day did to each)."""
        raw, counted = self.plan.spec.sparse, self._journal("study", StudiedUnit)
        add_up = AddUp(
            self.plan,
            tuple(counted.path(u.text.name, ".counts") for u in units),
            tuple(map(sum, zip(*(u.entries for u in units), strict=True))),
            tuple(groups),
            tuple(self._rules()),
            self.encoding.day is not None,
            self.encoding.grows_from,
            self._memory_bytes,
            self._journal("vocab", AddedUp),
        )
        added = self._over_numbers(add_up, len(groups))
        columns = [each.column for each in added]
        if rare := [c.name for c in columns if c.distinct and c.num_embeddings == FIRST_ID]:
            logger.warning(
                f"no value of {', '.join(rare)} is seen encoding.min_count={self.config.encoding.min_count} times: "
                "all of them share one id; lower it"
            )
        num_values = sum(column.num_embeddings - FIRST_ID for column in columns)
        refuse_if_too_large(num_values, BYTES_PER_VALUE, self._memory_bytes)
        made = [(raw[number], c) for group, c in zip(groups, columns, strict=True) for number in group]
        named = {r.name: replace(c, name=r.name, multi_hot=r.separator is not None) for r, c in made}
        return named, [each.growth for each in added if each.growth is not None]

    def _rules(self) -> list[Rule]:
        """The rules by which the vocabulary of each feature is made."""
        config, names = self.config.encoding, [column.name for column in self.plan.spec.sparse]
        day = 0 if self.encoding.day is None else day_number(self.encoding.day)
        columns = (per_column(each, names) for each in (config.min_count, config.top_k, config.capacity))
        return [
            Rule(day, least or 1, capacity if top_k is None else FIRST_ID + top_k, config.expire_days)
            for least, top_k, capacity in zip(*columns, strict=True)
        ]

    def _grow(self, parent: Manifest, units: Sequence[StudiedUnit]) -> MadeColumns:
        """The columns of ``parent`` once the values of ``units`` are added."""
        if not (parent.lineage and parent.lineage.growth):
            logger.info(
                f"{parent.path} keeps no values that wait for an id: those that it saw too seldom are counted from today on"
            )
        columns, day = columns_of(parent), self.encoding.day or ""
        groups = known_groups(parent, [column.name for column in self.plan.spec.sparse])
        grown, growth = self._make_vocabularies(units, groups)
        sparse = [
            replace(new, encoding={**c.encoding, **new.encoding}) if (new := grown.get(c.name)) else c
            for c in columns.sparse
        ]
        number, output = day_number(day), self.plan.output
        dense = [grow_target(c, parent, output, sparse, number) if is_target(c) else c for c in columns.dense]
        return MadeColumns(dense, sparse, lineage_after(parent, day, growth))

    def _make_targets(
        self, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn]
    ) -> list[DenseColumn]:
        """The twins of ``dense.target_columns``."""
        sources = target_sources(sparse, self.config.dense.target_columns)
        if not sources:
            return []
        columns = tuple(sparse[number] for number in sources)
        refuse_if_clicks_are_too_many(columns, self._memory_bytes)
        counted = self._journal("clicks", CountedUnit)
        count = CountClicks(self.plan, tuple(dense), tuple(sparse), sources, counted)
        units = tuple(self._over_units(count, self.plan.sources_of({"train"})))
        samples = [counted.path(unit.text.name, ".contents") for unit in units]
        contents = write_learnt(samples, self.plan.output) if self.plan.are_told_apart else {}
        add_up = AddUpClicks(
            self.plan, counted, units, columns, contents, self._journal("targets", DenseColumn)
        )
        return self._over_numbers(add_up, len(columns))

    def encode(self, columns: MadeColumns) -> tuple[Journal[EncodedUnit], list[EncodedUnit]]:
        """Encodes all units. Raises DataError if too many lines are malformed or the input changes."""
        journal = self._journal("encode", EncodedUnit)
        has_targets = self.encoding.known is None and self.config.dense.target_columns is not None
        folded = self._journal("targets", DenseColumn).folder if has_targets else None
        wants_sketch = bool(self.encoding.hashed)
        dense, sparse = tuple(columns.dense), tuple(columns.sparse)
        learnt = learnt_rows(dense, self.plan.output)
        wants_contents = self.plan.splits_by == "content"
        work = EncodeUnits(self.plan, dense, sparse, wants_sketch, journal, folded, wants_contents, learnt)
        limit = RejectLimit(self.plan, journal, self.config.rejects.max_fraction)
        units = self._over_units(work, self.plan.sources, limit.check)
        in_threads(Source.check_unchanged, self.plan.sources)
        limit.refuse(units)
        return journal, units

    def collect_shards(
        self, encoded: Journal[EncodedUnit], units: Sequence[EncodedUnit]
    ) -> dict[str, list[tuple[Path, Shard]]]:
        """The shards of each split that have rows, in order, and where they lie; rows of a full shuffle are gathered into theirs."""
        shards: dict[str, list[tuple[Path, Shard]]] = {split: [] for split in self.plan.splits}
        for unit in units:
            for split, part in unit.splits.items():
                if part.shard is not None and part.shard.rows:
                    shards[split].append((encoded.folder / part.shard.path, part.shard))
        if self.plan.shuffle == "full" and "train" in self.plan.splits:
            training = [unit for unit in units if "train" in unit.splits]
            rows = sum(unit.splits["train"].rows for unit in training)
            num_parts = -(-rows // self.config.layout.shuffled_shard_rows)
            runs = tuple(encoded.path(unit.text.name, ".run") for unit in training)
            journal = self._journal("gather", Shard)
            gather = Gather(runs, num_parts, self.plan.row_group_rows, journal)
            gathered = self._over_numbers(gather, num_parts)
            shards["train"] = [(journal.folder / shard.path, shard) for shard in gathered if shard.rows]
        return shards

    @property
    def _memory_bytes(self) -> int:
        return int(self.config.memory_gib * 2**30)

    def _journal(self, name: str, record: type[R]) -> Journal[R]:
        return pass_journal(self.plan.output, name, record)

    def _over_numbers(self, work: Pass[NumberedItem, R], count: int) -> list[R]:
        """Runs ``work`` on the numbers below ``count`` that are not done; returns all records."""
        items = [NumberedItem(number) for number in range(count)]
        feeds = [SingleFeed(item) for item in items if not work.journal.is_done(item.name)]
        with closing(self.executor.run(work, feeds)) as records:
            for _ in work_bar(records, desc=work.title, total=len(feeds), disable=not feeds):
                pass
        return [work.journal.load(item.name) for item in items]

    def _over_units(
        self, work: Pass[InputUnit, U], sources: Sequence[Source], check: Callable[[U], None] | None = None
    ) -> list[U]:
        """Runs ``work`` on the units of ``sources`` that have not landed; gives all records, in order.

        ``check`` is called with each record as it comes.
        """
        feeds: list[Feed[InputUnit]] = [
            feed for source in sources for feed in missing_units(self.plan, source, work.journal)
        ]
        total = sum(source.bytes for source in sources)
        done = sum(record.text.file_bytes for record in _landed(sources, work.journal))
        with work_bar(
            desc=work.title, total=total, initial=done, unit="B", unit_scale=True, disable=not feeds
        ) as bar:
            try:
                # an error must not leave threads at work
                with closing(self.executor.run(work, feeds)) as records:
                    for record in records:
                        bar.update(record.text.file_bytes)
                        if check is not None:
                            check(record)
            except DamagedFileError as error:
                raise DataError(f"{error}, then {self._repair_hint(error.source, work.journal)}") from error
        return _landed(sources, work.journal)

    def _repair_hint(self, source: int, journal: Journal[U]) -> str:
        """The cure for a damaged source, once it is replaced. Forgets its records, unless later passes build on them."""
        output = self.plan.output
        if begun_passes(output, source) - {journal.folder.name}:
            return f"delete {output} and start again"
        journal.forget(source_prefix(source))
        return "run the same command again; it continues where it stopped"


def _landed(sources: Iterable[Source], journal: Journal[U]) -> list[U]:
    """The records of all units that are done, in order."""
    names = [name for source in sources for name in journal.done(source_prefix(source.index))]
    return [journal.load(name) for name in names]


def missing_units(plan: Plan, source: Source, journal: Journal[U]) -> Sequence[InputFeed]:
    """Feeds of the units that are not done."""
    names, unit_bytes = journal.done(source_prefix(source.index)), plan.unit_bytes
    done = frozenset(map(unit_number, names))
    if not source.is_compressed:
        columns = plan.columns_of(source) if source.format == "parquet" else {}
        return unit_feeds(source, columns, unit_bytes, lambda unit: unit not in done)
    if done and done == set(range(len(done))) and journal.load(names[-1]).text.is_last:
        return []
    return [TextFeed(source, unit_bytes, skip=done)]
