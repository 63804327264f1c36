"""The passes of a run in their order, each over the units that have not landed yet."""

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tqdm import tqdm

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.dataset.manifest import DenseColumn, Manifest, Shard, SparseColumn, read_manifest
from dlrm_app.errors import DataError
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode.columns import (
    columns_of,
    dense_columns,
    extended,
    hash_columns,
    per_column,
    refuse_missing_files,
    target_sources,
    vocab_columns,
)
from dlrm_app.preprocess.encode.vocabulary import BYTES_PER_VALUE, AddUp, VocabularySize, refuse_if_too_large
from dlrm_app.preprocess.job.finish import finish
from dlrm_app.preprocess.job.reject_limit import RejectLimit, refuse_if_many_rejects
from dlrm_app.preprocess.passes.click_counts import (
    AddUpClicks,
    CountClicks,
    CountedClicks,
    refuse_if_clicks_are_too_many,
)
from dlrm_app.preprocess.passes.distinct import CountDistinct, CountedFeatures
from dlrm_app.preprocess.passes.encode_pass import EncodedUnit, EncodeUnits
from dlrm_app.preprocess.passes.moments import join_moments
from dlrm_app.preprocess.passes.passes import CountedUnit, CountLines
from dlrm_app.preprocess.passes.shuffle import Gather, GatheredShard
from dlrm_app.preprocess.passes.study import StudiedUnit, Study
from dlrm_app.preprocess.units.executor import Executor, Single, Work
from dlrm_app.preprocess.units.gzip_text import DamagedFileError
from dlrm_app.preprocess.units.journal import Journal, R
from dlrm_app.preprocess.units.source import Source
from dlrm_app.preprocess.units.units import TextFeed, TextRange
from dlrm_app.preprocess.units.work_folder import expect_another_file, open_journal, passes_over
from dlrm_app.preprocess.units.work_plan import Cuts, Plan, cut_lines, identity, refuse_empty_cuts

logger = logging.getLogger(__name__)


class UnitRecord(Protocol):
    """The record of a pass over units of text."""

    @property
    def text(self) -> TextRange: ...


U = TypeVar("U", bound=UnitRecord)


@dataclass(frozen=True)
class Stages:
    """One run: what it was asked, what it is to do, and who does it."""

    config: PreprocessConfig
    plan: Plan
    executor: Executor

    def run(self) -> Manifest:
        """Does everything that has not been done, and writes the manifest."""
        cuts = self.cut()
        dense, sparse = self.make_columns(cuts)
        journal, units = self.encode(cuts, dense, sparse)
        sparse = self._count_distinct(journal, units, sparse)
        shards = self.collect_shards(journal, units)
        return finish(self.plan, journal, units, shards, dense, sparse, identity(self.config))

    def cut(self) -> Cuts | None:
        """Where the training input is cut into splits, if it is."""
        if not self.plan.fractions:
            return None
        work = CountLines(self.plan, open_journal(self.plan.output, "lines", CountedUnit))
        units = self._over_units(work, {"train"})
        lines = {(u.text.source, u.text.unit): u.lines for u in units}
        refuse_empty_cuts(sum(lines.values()), self.plan.fractions)
        return cut_lines(lines, self.plan.fractions)

    def make_columns(self, cuts: Cuts | None) -> tuple[list[DenseColumn], list[SparseColumn]]:
        """The columns of the dataset, their vocabularies and moments included."""
        config, spec = self.config, self.plan.spec
        if config.encoding.kind == "from_dataset":
            manifest = read_manifest(Path(config.encoding.path or ""))
            refuse_missing_files(manifest)
            _copy_encoding(manifest, self.plan.output)
            return columns_of(manifest)
        wants_counts, wants_moments = config.encoding.kind == "vocab", config.dense.transform == "standardize"
        moments = None
        sparse = [] if wants_counts else hash_columns(config, spec)
        if wants_counts or wants_moments:
            journal = open_journal(self.plan.output, "study", StudiedUnit)
            units = self._over_units(Study(self.plan, cuts, wants_counts, journal), self.plan.studied)
            if wants_moments:
                moments = join_moments([unit.moments for unit in units], len(spec.dense))
            if wants_counts:
                sparse = vocab_columns(spec, self._make_vocabularies(journal, units))
        dense, sparse = dense_columns(config, spec, moments), extended(sparse, config, spec)
        return dense + self._make_targets(cuts, dense, sparse), sparse

    def _make_targets(
        self, cuts: Cuts | None, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn]
    ) -> list[DenseColumn]:
        """The twins of ``dense.target_columns``."""
        sources = target_sources(sparse, self.config)
        if not sources:
            return []
        columns = tuple(sparse[number] for number in sources)
        refuse_if_clicks_are_too_many(columns, int(self.config.memory_gib * 2**30))
        counted = open_journal(self.plan.output, "clicks", CountedClicks)
        count = CountClicks(self.plan, cuts, tuple(dense), tuple(sparse), sources, counted)
        units = tuple(self._over_units(count, {"train"}))
        add_up = AddUpClicks(self.plan, counted, units, columns, self._target_journal())
        return self._over_numbers(add_up, len(columns))

    def _target_journal(self) -> Journal[DenseColumn]:
        return open_journal(self.plan.output, "targets", DenseColumn)

    def _make_vocabularies(
        self, counted: Journal[StudiedUnit], units: Sequence[StudiedUnit]
    ) -> list[VocabularySize]:
        names = [column.name for column in self.plan.spec.sparse]
        memory_bytes = int(self.config.memory_gib * 2**30)
        add_up = AddUp(
            self.plan,
            counted,
            tuple(units),
            self.config.encoding.min_count or 1,
            tuple(per_column(self.config.encoding.top_k, names)),
            memory_bytes,
            open_journal(self.plan.output, "vocab", VocabularySize),
        )
        sizes = self._over_numbers(add_up, len(names))
        rare = [size.feature for size in sizes if size.distinct and not size.kept]
        if rare:
            logger.warning(
                f"no value of {', '.join(rare)} is seen encoding.min_count={add_up.min_count} times: "
                "all of them share one id; lower it"
            )
        refuse_if_too_large(sum(size.kept for size in sizes), BYTES_PER_VALUE, memory_bytes)
        return sizes

    def encode(
        self, cuts: Cuts | None, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn]
    ) -> tuple[Journal[EncodedUnit], list[EncodedUnit]]:
        """Encodes all units. Raises DataError if too many lines are malformed or the input changes."""
        journal = open_journal(self.plan.output, "encode", EncodedUnit)
        wants_sketch = self.config.encoding.kind != "vocab"
        folded = self._target_journal().folder if self.config.dense.target_columns else None
        work = EncodeUnits(self.plan, cuts, tuple(dense), tuple(sparse), wants_sketch, journal, folded)
        max_rejects = self.config.rejects.max_fraction
        limit = RejectLimit(self.plan, journal, max_rejects)
        units = self._over_units(work, set(self.plan.splits), limit.check)
        for source in self.plan.sources:
            source.check_unchanged()
        refuse_if_many_rejects(self.plan, journal, units, max_rejects)
        return journal, units

    def _count_distinct(
        self, encoded: Journal[EncodedUnit], units: Sequence[EncodedUnit], sparse: list[SparseColumn]
    ) -> list[SparseColumn]:
        if self.config.encoding.kind == "vocab":
            return sparse
        num_features = len(self.plan.spec.sparse)
        work = CountDistinct(
            encoded,
            tuple((unit.text.source, unit.text.unit) for unit in units),
            tuple(sparse[:num_features]),
            open_journal(self.plan.output, "distinct", CountedFeatures),
        )
        groups = self._over_numbers(work, work.num_groups)
        return [column for group in groups for column in group.columns] + sparse[num_features:]

    def collect_shards(
        self, encoded: Journal[EncodedUnit], units: Sequence[EncodedUnit]
    ) -> dict[str, list[tuple[Path, Shard]]]:
        """The shards of each split that have rows, in order, and where they lie; rows of a full shuffle are gathered into theirs."""
        shards: dict[str, list[tuple[Path, Shard]]] = {split: [] for split in self.plan.splits}
        for unit in units:
            for name, part in unit.splits.items():
                if part.shard is not None and part.rows:
                    shards[name].append((encoded.folder / part.shard.path, part.shard))
        if self.plan.shuffle == "full" and "train" in self.plan.splits:
            shards["train"] = self._gather(encoded, units)
        return shards

    def _gather(
        self, encoded: Journal[EncodedUnit], units: Sequence[EncodedUnit]
    ) -> list[tuple[Path, Shard]]:
        units = [unit for unit in units if "train" in unit.splits]
        rows = sum(unit.splits["train"].rows for unit in units)
        num_parts = -(-rows // self.config.layout.shuffled_shard_rows)
        runs = tuple(encoded.path(unit.text.source, unit.text.unit, ".run") for unit in units)
        journal = open_journal(self.plan.output, "gather", GatheredShard)
        gathered = self._over_numbers(Gather(runs, num_parts, self.plan.layout, journal), num_parts)
        return [(journal.folder / made.shard.path, made.shard) for made in gathered if made.shard.rows]

    def _over_numbers(self, work: Work[R], count: int) -> list[R]:
        """Does ``work`` on the numbers under ``count`` that have not landed; gives all records."""
        todo = sorted(set(range(count)) - set(work.journal.done_units(0)))
        with closing(self.executor.run(work, [Single(number) for number in todo])) as records:
            for _ in tqdm(records, work.title, len(todo), disable=not todo):
                pass
        return [work.journal.load(0, number) for number in range(count)]

    def _over_units(
        self, work: Work[U], splits: set[str], check: Callable[[U], None] | None = None
    ) -> list[U]:
        """Does ``work`` on the units of the sources of ``splits`` that have not landed; gives all records, in order.

        ``check`` is called with each record as it comes.
        """
        sources = [source for source in self.plan.sources if source.split in splits]
        feeds = [
            feed for source in sources for feed in missing_units(source, self.plan.unit_bytes, work.journal)
        ]
        total = sum(source.bytes for source in sources)
        done = sum(record.text.file_bytes for record in _landed(sources, work.journal))
        with tqdm(
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
        """What to do once a damaged source is mended. Its records are forgotten, unless later passes build on it."""
        output = self.plan.output
        if any(other != journal.folder for other in passes_over(output, source)):
            return f"delete {output} and start again"
        journal.forget(source)
        expect_another_file(output, self.plan.sources[source])
        return "run the same command again; it goes on where it stopped"


def _landed(sources: Iterable[Source], journal: Journal[U]) -> list[U]:
    """The records of all units that are done, in order."""
    return [
        journal.load(source.index, unit) for source in sources for unit in journal.done_units(source.index)
    ]


def missing_units(source: Source, unit_bytes: int, journal: Journal[U]) -> list[TextFeed]:
    """Feeds of the units that have not landed: one for each in a plain file, one for all of a gzip file."""
    done = journal.done_units(source.index)
    if not source.is_gzip:
        num_units = max(-(-source.bytes // unit_bytes), 1)
        todo = sorted(set(range(num_units)) - set(done))
        return [TextFeed(source, unit_bytes, unit, unit + 1) for unit in todo]
    if done and done == list(range(len(done))) and journal.load(source.index, done[-1]).text.is_last:
        return []
    return [TextFeed(source, unit_bytes, skip=frozenset(done))]


def _copy_encoding(manifest: Manifest, output: Path) -> None:
    for file in manifest.encoding_files:
        target = output / file
        target.parent.mkdir(exist_ok=True)
        with written_whole(target) as temporary:
            shutil.copyfile(manifest.folder / file, temporary)
