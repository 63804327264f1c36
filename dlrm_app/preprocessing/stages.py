"""The stages of a run in their order; each passes over the units that are not done yet."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

from dlrm_app.dataset.manifest import DenseColumn, Manifest
from dlrm_app.dataset.splits import Shard
from dlrm_app.encoding.columns import MadeColumns
from dlrm_app.encoding.own_clicks import learnt_rows
from dlrm_app.encoding.row_samples import contents_identify_rows
from dlrm_app.encoding.value_shares import deviation_text, deviations
from dlrm_app.journal import Journal
from dlrm_app.logs.arrow_rows import open_cursor
from dlrm_app.logs.sources.source import check_unchanged
from dlrm_app.preprocessing.complete import complete
from dlrm_app.preprocessing.make_columns import ColumnMaker
from dlrm_app.preprocessing.pass_runner import PassRunner
from dlrm_app.preprocessing.passes.distinct import count_distinct
from dlrm_app.preprocessing.passes.encode_pass import EncodedUnit, EncodeUnits
from dlrm_app.preprocessing.passes.plan import CountedUnit, CountLines, cut_lines
from dlrm_app.preprocessing.passes.shuffle import Gather
from dlrm_app.preprocessing.passes.time_order import VAL_TIMES, warn_of_order
from dlrm_app.preprocessing.passes.time_split import (
    TIMES,
    CountTimes,
    RowsByTime,
    TimeCuts,
    TimedUnit,
    cut_times,
    moment_text,
    only_times,
)
from dlrm_app.preprocessing.rejects import RejectLimit
from dlrm_app.preprocessing.request import DatasetPlan
from dlrm_app.preprocessing.work.executor import Executor

logger = logging.getLogger(__name__)
_LOOK_ROWS = 1 << 17
"""Rows that are read to check whether contents identify rows."""


@dataclass(frozen=True)
class Stages:
    """The stages of making the dataset that ``plan`` describes; ``passes`` runs passes over its rows."""

    plan: DatasetPlan
    passes: PassRunner

    @classmethod
    def of(cls, plan: DatasetPlan, executor: Executor) -> "Stages":
        return cls(plan, PassRunner(plan.inputs, executor))

    def run(self) -> Manifest:
        """Runs all passes that are not done, and writes the manifest."""
        lines = self.count_lines()
        inputs, by_end = self.plan.inputs, self.plan.inputs.splits_by == "end"
        cuts = cut_lines(lines, inputs.fractions) if inputs.fractions and by_end else None
        firsts = dict(zip(lines, accumulate(lines.values(), initial=0), strict=False))
        first_lines = firsts if cuts is not None or inputs.sampled < 1 else {}
        inputs = replace(
            inputs,
            cuts=cuts,
            time_cuts=self.cut_by_time(),
            first_lines=first_lines,
            contents_identify_rows=self._contents_identify_rows(),
        )
        manifest = replace(self, plan=replace(self.plan, inputs=inputs))._make()
        self._warn_of_unusual_values(manifest)
        return manifest

    def _warn_of_unusual_values(self, manifest: Manifest) -> None:
        """Warns of splits whose values are unlike those of the dataset whose encoding they have."""
        base = self.plan.columns.base
        for name, split in manifest.splits.items():
            if base is not None and (found := deviations(base.usual_values, split.values)):
                logger.warning(deviation_text(found, f"the rows of {name}"))

    def _warn_of_order(self, journal: Journal[EncodedUnit], units: Sequence[EncodedUnit]) -> None:
        """Warns if lines decide the splits of rows that are not in order of time."""
        inputs = self.plan.inputs
        if inputs.cuts is not None and inputs.spec.times and "val" in inputs.splits:
            newest = [unit.splits["train"].newest for unit in units if "train" in unit.splits]
            val = [journal.path(unit.extent.name, VAL_TIMES) for unit in units if "val" in unit.splits]
            warn_of_order(inputs.spec, newest, val)

    def _make(self) -> Manifest:
        plan, columns = self.plan, ColumnMaker(self.plan, self.passes).make()
        journal, units = self.encode(columns)
        if plan.columns.counted:
            files = [journal.path(unit.extent.name, ".sketch") for unit in units]
            num_raw = len(plan.inputs.spec.sparse)
            counted = count_distinct(files, columns.sparse[:num_raw])
            columns = replace(columns, sparse=counted + columns.sparse[num_raw:])
        shards = self.collect_shards(journal, units)
        self._warn_of_order(journal, units)
        return complete(plan.inputs, journal, units, shards, columns, plan.settings())

    def _contents_identify_rows(self) -> bool:
        """False if rows should be dealt by their contents, but too many rows of the first unit have equal ones."""
        inputs, rules = self.plan.inputs, self.plan.columns
        bundle = next(iter(inputs.bundles(inputs.sources_of({"train"}))), None)
        if bundle is None or not (rules.targets or inputs.splits_by == "content"):
            return True
        feed = inputs.feeds(bundle, lambda unit: unit == 0)[0]
        spec = inputs.file_specs[bundle[0].index]
        for text in feed.items():
            return contents_identify_rows(islice(open_cursor(text, spec).rows(_LOOK_ROWS, None), 1), spec)
        return True

    def count_lines(self) -> dict[tuple[int, int], int]:
        """The number of lines of each unit of the training input, in order; empty if nothing depends on it."""
        inputs = self.plan.inputs
        if inputs.sampled == 1 and (not inputs.fractions or inputs.splits_by != "end"):
            return {}
        work = CountLines(inputs, self.passes.journal("lines", CountedUnit))
        sources = inputs.sources_of({"train"})
        texts = [source for source in sources if source.format != "parquet"]
        lines = {(u.extent.source, u.extent.unit): u.lines for u in self.passes.over_units(work, texts)}
        lines |= dict(unit for bundle in inputs.bundles(sources) for unit in inputs.counted(bundle))
        return dict(sorted(lines.items()))

    def cut_by_time(self) -> TimeCuts | None:
        """The moments that cut the training input, from the times of all its rows; None if times do not decide."""
        inputs = self.plan.inputs
        if (rule := inputs.time_split) is None:
            return None
        narrowed = tuple(only_times(spec, rule.column) for spec in inputs.file_specs)
        plan = replace(inputs, spec=only_times(inputs.spec, rule.column), file_specs=narrowed)
        journal = self.passes.journal("times", TimedUnit)
        passes = PassRunner(plan, self.passes.executor)
        units = passes.over_units(CountTimes(narrowed, journal), plan.sources_of({"train"}))
        rows = RowsByTime([journal.path(unit.extent.name, TIMES) for unit in units])
        cuts = cut_times(rule, inputs.fractions, rows, units)
        starts = ", ".join(f"{name} from {moment_text(start)}" for name, start in cuts.starts.items())
        logger.info(f"split by {rule.column} (UTC): {starts}")
        return cuts

    def encode(self, columns: MadeColumns) -> tuple[Journal[EncodedUnit], list[EncodedUnit]]:
        """Encodes all units. Raises DataError if too many lines are malformed or the input changes."""
        inputs, rules = self.plan.inputs, self.plan.columns
        journal = self.passes.journal("encode", EncodedUnit)
        dense, sparse = tuple(columns.dense), tuple(columns.sparse)
        is_known = rules.base is not None and rules.grows_from is None
        work = EncodeUnits(
            inputs,
            dense,
            sparse,
            bool(rules.counted),
            journal,
            folded=self.passes.journal("targets", DenseColumn).folder if rules.targets else None,
            wants_contents=inputs.splits_by == "content",
            learnt=learnt_rows(dense, inputs.output),
            counted=frozenset(inputs.splits if is_known else ("val", "test")),
            vectors=columns.vectors,
        )
        limit = RejectLimit(inputs, journal, self.plan.config.rejects.max_fraction)
        units = self.passes.over_units(work, inputs.sources, limit.check)
        check_unchanged(inputs.sources)
        limit.refuse(units)
        return journal, units

    def collect_shards(
        self, encoded: Journal[EncodedUnit], units: Sequence[EncodedUnit]
    ) -> dict[str, list[tuple[Path, Shard]]]:
        """The shards of each split that have rows, in order, with their paths. Gathers those of a full shuffle."""
        inputs = self.plan.inputs
        shards: dict[str, list[tuple[Path, Shard]]] = {split: [] for split in inputs.splits}
        for unit in units:
            for split, part in unit.splits.items():
                if part.shard is not None and part.shard.rows:
                    shards[split].append((encoded.folder / part.shard.path, part.shard))
        if inputs.shuffle == "full" and "train" in inputs.splits:
            training = [unit for unit in units if "train" in unit.splits]
            num_rows = sum(unit.splits["train"].rows for unit in training)
            num_parts = -(-num_rows // self.plan.config.layout.shuffled_shard_rows)
            runs = tuple(encoded.path(unit.extent.name, ".run") for unit in training)
            journal = self.passes.journal("gather", Shard)
            gather = Gather(runs, num_parts, inputs.row_group_rows, journal)
            gathered = self.passes.over_numbers(gather, num_parts)
            shards["train"] = [(journal.folder / shard.path, shard) for shard in gathered if shard.rows]
        return shards
