"""The passes of a run in their order, each over the units that have not landed yet."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.data.manifest import DenseColumn, Manifest, SparseColumn, read_manifest
from dlrm_app.errors import DataError
from dlrm_app.files import written_whole
from dlrm_app.preprocess.encode.columns import (
    columns_of,
    dense_columns,
    extended,
    hash_columns,
    per_column,
    refuse_missing_vocabularies,
    vocab_columns,
)
from dlrm_app.preprocess.encode.vocabulary import BYTES_PER_VALUE, AddUp, refuse_if_too_large
from dlrm_app.preprocess.job.encode_pass import EncodeUnits
from dlrm_app.preprocess.job.executor import Executor, Single, Work
from dlrm_app.preprocess.job.finish import MadeShard, Results, finish, made_shards, refuse_if_many_rejects
from dlrm_app.preprocess.job.journal import Journal, Result, expect_another_file, open_journal, passes_over
from dlrm_app.preprocess.job.passes import CountLines
from dlrm_app.preprocess.job.work_plan import Cuts, Plan, cut_lines, identity
from dlrm_app.preprocess.read.source import Source
from dlrm_app.preprocess.read.units import DamagedFileError, TextFeed
from dlrm_app.preprocess.statistics.distinct import CountDistinct
from dlrm_app.preprocess.statistics.study import Study, total_moments
from dlrm_app.preprocess.write.shuffle import Gather

_GZIP_RATIO = 20
"""Text is at most about so many times as large as its gzip file."""


@dataclass(frozen=True)
class Stages:
    """One run: what it was asked, what it is to do, and who does it."""

    config: PreprocessConfig
    plan: Plan
    executor: Executor

    def run(self) -> Manifest:
        """Does everything that has not been done, and writes the manifest."""
        cuts = self._cut() if self.plan.fractions else None
        dense, sparse = self._columns(cuts)
        journal, results = self._encode(cuts, dense, sparse)
        sparse = self._count_distinct(journal, results, sparse)
        shards = made_shards(self.plan, journal, results)
        if self.plan.shuffle == "full" and "train" in self.plan.splits:
            shards["train"] = self._gather(journal, results)
        return finish(self.plan, journal, results, shards, dense, sparse, identity(self.config))

    def _cut(self) -> Cuts:
        journal = open_journal(self.plan.output, "lines")
        results = self._over_units("counting lines", CountLines(self.plan, journal), journal, {"train"})
        return cut_lines({(r["source"], r["unit"]): r["lines"] for r in results}, self.plan.fractions)

    def _columns(self, cuts: Cuts | None) -> tuple[list[DenseColumn], list[SparseColumn]]:
        config, spec = self.config, self.plan.spec
        if config.encoding.kind == "from_dataset":
            manifest = read_manifest(Path(config.encoding.path or ""))
            refuse_missing_vocabularies(manifest)
            _copy_vocabularies(manifest, self.plan.output)
            return columns_of(manifest)
        wants_counts, wants_moments = config.encoding.kind == "vocab", config.dense.transform == "standardize"
        moments = None
        sparse = [] if wants_counts else hash_columns(config, spec)
        if wants_counts or wants_moments:
            journal = open_journal(self.plan.output, "study")
            study = Study(self.plan, cuts, wants_counts, journal)
            results = self._over_units("studying values", study, journal, self.plan.studied)
            if wants_moments:
                moments = total_moments(results, len(spec.dense))
            if wants_counts:
                sparse = vocab_columns(spec, self._make_vocabularies(journal, results))
        return dense_columns(config, spec, moments), extended(sparse, config, spec)

    def _make_vocabularies(self, counted: Journal, results: Results) -> list[Result]:
        names = [column.name for column in self.plan.spec.sparse]
        memory_bytes = int(self.config.memory_gib * 2**30)
        journal = open_journal(self.plan.output, "vocab")
        add_up = AddUp(
            self.plan,
            counted,
            tuple((r["source"], r["unit"], tuple(r["entries"])) for r in results),
            self.config.encoding.min_count or 1,
            tuple(per_column(self.config.encoding.top_k, names)),
            memory_bytes,
            journal,
        )
        found = self._over_numbers("adding up", add_up, journal, len(names))
        refuse_if_too_large(sum(result["kept"] for result in found), BYTES_PER_VALUE, memory_bytes)
        return found

    def _encode(
        self, cuts: Cuts | None, dense: list[DenseColumn], sparse: list[SparseColumn]
    ) -> tuple[Journal, Results]:
        journal = open_journal(self.plan.output, "encode")
        wants_sketch = self.config.encoding.kind != "vocab"
        work = EncodeUnits(self.plan, cuts, tuple(dense), tuple(sparse), wants_sketch, journal)
        results = self._over_units("encoding", work, journal, set(self.plan.splits))
        for source in self.plan.sources:
            source.check_unchanged()
        refuse_if_many_rejects(self.plan, journal, results, self.config.rejects.max_fraction)
        return journal, results

    def _count_distinct(
        self, encoded: Journal, results: Results, sparse: list[SparseColumn]
    ) -> list[SparseColumn]:
        if self.config.encoding.kind == "vocab":
            return sparse
        num_features = len(self.plan.spec.sparse)
        journal = open_journal(self.plan.output, "distinct")
        units = tuple((r["source"], r["unit"]) for r in results)
        work = CountDistinct(encoded, units, tuple(sparse[:num_features]), journal)
        groups = self._over_numbers("counting distinct values", work, journal, work.num_groups)
        found = [feature for group in groups for feature in group["features"]]
        return [replace(c, **r) for c, r in zip(sparse, found, strict=False)] + sparse[num_features:]

    def _gather(self, encoded: Journal, results: Results) -> list[MadeShard]:
        units = [r for r in results if "train" in r["splits"]]
        rows = sum(r["splits"]["train"]["rows"] for r in units)
        num_parts = max(-(-rows // self.config.layout.shuffled_shard_rows), 1)
        runs = tuple(encoded.path(r["source"], r["unit"], ".run") for r in units)
        journal = open_journal(self.plan.output, "gather")
        gather = Gather(runs, num_parts, self.plan.layout, journal)
        found = self._over_numbers("gathering", gather, journal, num_parts)
        return [
            (journal.path(0, part, ".train.parquet"), result["shard"]) for part, result in enumerate(found)
        ]

    def _over_numbers(self, name: str, work: Work, journal: Journal, count: int) -> list[Result]:
        """Does ``work`` on the numbers under ``count`` that have not landed; gives all results."""
        todo = sorted(set(range(count)) - set(journal.done_units(0)))
        with closing(self.executor.run(work, [Single(number) for number in todo])) as done:
            for _ in tqdm(done, name, len(todo), disable=not todo):
                pass
        return [journal.load(0, number) for number in range(count)]

    def _over_units(self, name: str, work: Work, journal: Journal, splits: set[str]) -> list[Result]:
        """Does ``work`` on the units of the sources of ``splits`` that have not landed; gives all results, in order."""
        plan = self.plan
        sources = [source for source in plan.sources if source.split in splits]
        feeds = [feed for source in sources for feed in missing_units(source, plan.unit_bytes, journal)]
        done = sum(result["file_bytes"] for result in _landed(sources, journal))
        total = sum(source.bytes for source in sources)
        with tqdm(desc=name, total=total, initial=done, unit="B", unit_scale=True, disable=not feeds) as bar:
            try:
                with closing(
                    self.executor.run(work, feeds)
                ) as results:  # an error must not leave threads at work
                    for result in self._watched(results, journal):
                        bar.update(result["file_bytes"])
            except DamagedFileError as error:
                raise DataError(f"{error}, then {self._cure(error.place, journal)}") from error
        return _landed(sources, journal)

    def _cure(self, place: int, journal: Journal) -> str:
        """What to do once a damaged source is mended. What was made of it is forgotten, unless later passes build on it."""
        output = self.plan.output
        if any(other != journal.folder for other in passes_over(output, place)):
            return f"delete {output} and start again"
        journal.forget(place)
        expect_another_file(output, place)
        return "run the same command again; it goes on where it stopped"

    def _watched(self, results: Iterable[Result], journal: Journal) -> Iterator[Result]:
        """The results, while the malformed lines among them could still be few enough in the end."""
        total = sum(source.bytes * (_GZIP_RATIO if source.is_gzip else 1) for source in self.plan.sources)
        size = lines = rejects = 0
        limit = self.config.rejects.max_fraction
        seen = []
        for result in results:
            yield result
            if "splits" not in result:
                continue
            seen.append(result)
            size, lines = size + result["size"], lines + result["lines"]
            rejects += sum(part["rejects"] for part in result["splits"].values())
            if rejects > limit * lines * max(total / max(size, 1), 1):
                seen.sort(key=lambda result: (result["source"], result["unit"]))
                refuse_if_many_rejects(self.plan, journal, seen, limit)


def _landed(sources: Iterable[Source], journal: Journal) -> list[Result]:
    """The results of all units that are done, in order."""
    return [
        journal.load(source.place, unit) for source in sources for unit in journal.done_units(source.place)
    ]


def missing_units(source: Source, unit_bytes: int, journal: Journal) -> list[TextFeed]:
    """Feeds of the units that have not landed: one for each in a plain file, one for all of a gzip file."""
    done = journal.done_units(source.place)
    if not source.is_gzip:
        num_units = max(-(-source.bytes // unit_bytes), 1)
        todo = sorted(set(range(num_units)) - set(done))
        return [TextFeed(source, unit_bytes, unit, unit + 1) for unit in todo]
    if done and done == list(range(len(done))) and journal.load(source.place, done[-1])["is_last"]:
        return []
    return [TextFeed(source, unit_bytes, skip=frozenset(done))]


def _copy_vocabularies(manifest: Manifest, output: Path) -> None:
    assert manifest.path is not None
    for column in manifest.sparse:
        if column.encoding["kind"] == "vocab":
            target = output / column.encoding["file"]
            target.parent.mkdir(exist_ok=True)
            with written_whole(target) as temporary:
                shutil.copyfile(manifest.path / column.encoding["file"], temporary)
